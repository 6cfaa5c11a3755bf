//! Reading back what was written, through the index.

use crate::{
    Error, Operation, OperationKind, Result, Translog, decode, format,
    index::{Index, Run},
};
use bytes::Bytes;
use segmentry_vfs::VfsFile;
use std::sync::Arc;

impl Translog {
    /// One current operation that was written; `None` if it is voided, trimmed or not there yet. Blocks (page cache).
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn read(&self, seq_no: u64) -> Result<Option<Operation>> {
        let found = {
            let index = self.inner.index.lock();
            index.run_of(seq_no).and_then(|at| read_run(&index, at))
        };
        let Some((run, file, seed)) = found else {
            return Ok(None);
        };
        let operations = read_frames(&run, file.as_ref(), seed)?;
        Ok(operations
            .into_iter()
            .find(|operation| operation.seq_no == seq_no))
    }

    /// Current operations from `seq_no` on, ascending, at most about `max_bytes` of the log (one operation at least); empty at
    /// the end of what was written. Blocks.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if operations from `seq_no` on are gone, [`Error::Corrupt`], [`Error::Io`].
    pub fn read_from(&self, seq_no: u64, max_bytes: usize) -> Result<Vec<Operation>> {
        let runs = {
            let index = self.inner.index.lock();
            let oldest = index.runs.first().map_or(index.next(), |run| run.first);
            if seq_no < oldest {
                return Err(Error::Trimmed {
                    asked: seq_no,
                    oldest,
                });
            }
            let Some(first) = index.run_of(seq_no) else {
                return Ok(Vec::new());
            };
            let mut bytes = 0;
            let mut runs = Vec::new();
            for at in first..index.runs.len() {
                let Some(found) = read_run(&index, at) else { break };
                bytes += found.0.bytes;
                if !runs.is_empty() && bytes > max_bytes as u64 {
                    break;
                }
                runs.push(found);
            }
            runs
        };
        let (mut operations, mut bytes) = (Vec::new(), 0);
        for (run, file, seed) in runs {
            for operation in read_frames(&run, file.as_ref(), seed)? {
                if operation.seq_no < seq_no {
                    continue;
                }
                bytes += operation.encoded_len();
                if !operations.is_empty() && bytes > max_bytes {
                    return Ok(operations);
                }
                operations.push(operation);
            }
        }
        Ok(operations)
    }
}

/// A run with what it takes to read its frames.
fn read_run(index: &Index, at: usize) -> Option<(Run, Arc<dyn VfsFile>, u64)> {
    let run = *index.runs.get(at)?;
    let generation = index.generations.get(&run.generation)?;
    Some((run, generation.file.clone(), generation.seed))
}

fn read_frames(run: &Run, file: &dyn VfsFile, seed: u64) -> Result<Vec<Operation>> {
    let length = usize::try_from(run.bytes).map_err(|_| Error::Invalid("a run is too long".to_owned()))?;
    let mut bytes = vec![0; length];
    let read = file
        .read_at(&mut bytes, run.offset)
        .map_err(Error::io("read", file.path()))?;
    bytes.truncate(read);
    let bytes = Bytes::from(bytes);
    let (mut operations, mut offset) = (Vec::new(), 0);
    while offset < length {
        let at = run.offset + offset as u64;
        let corrupt = |reason: &str| Error::corrupt(file.path(), at, reason);
        let (_, records) = format::frame_at(&bytes, offset, seed).map_err(corrupt)?;
        offset = records.end;
        let frame = decode(bytes.slice(records)).map_err(|error| corrupt(&error.to_string()))?;
        operations.extend(frame.into_iter().filter(|operation| {
            (run.first..=run.last).contains(&operation.seq_no)
                && !matches!(operation.kind, OperationKind::TermStart { .. })
        }));
    }
    Ok(operations)
}
