//! The newest operations, in memory: what streams to other copies and reads by id need before the log has it, or before all
//! in-sync copies have it. Everything else is read from the log.

use segmentry_translog::Operation;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Contiguous.
    operations: VecDeque<Operation>,
}

impl Tail {
    pub fn push(&mut self, operations: &[Operation]) {
        if let (Some(last), Some(first)) = (self.operations.back(), operations.first())
            && last.seq_no + 1 != first.seq_no
        {
            debug_assert!(false, "ContiguousLog: {} after {}", first.seq_no, last.seq_no);
            self.operations.clear();
        }
        self.operations.extend(operations.iter().cloned());
    }

    fn position(&self, seq_no: u64) -> Option<usize> {
        let first = self.operations.front()?.seq_no;
        usize::try_from(seq_no.checked_sub(first)?)
            .ok()
            .filter(|position| *position < self.operations.len())
    }

    pub fn get(&self, seq_no: u64) -> Option<Operation> {
        self.operations.get(self.position(seq_no)?).cloned()
    }

    /// Operations from `seq_no` on, at least one, up to about `bytes`; none where it does not hold `seq_no`.
    pub fn read_from(&self, seq_no: u64, bytes: usize) -> Option<Vec<Operation>> {
        let position = self.position(seq_no)?;
        let mut taken = 0;
        let mut out = Vec::new();
        for operation in self.operations.range(position..) {
            taken += operation.encoded_len();
            if !out.is_empty() && taken > bytes {
                break;
            }
            out.push(operation.clone());
        }
        Some(out)
    }

    /// Forgets what is at or below `to`.
    pub fn forget(&mut self, to: Option<u64>) {
        let Some(to) = to else { return };
        while self
            .operations
            .front()
            .is_some_and(|operation| operation.seq_no <= to)
        {
            self.operations.pop_front();
        }
        if self.operations.is_empty() {
            self.operations.shrink_to(1024);
        }
    }

    pub fn clear(&mut self) {
        self.operations = VecDeque::new();
    }
}
