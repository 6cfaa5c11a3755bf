//! What a write does to the document as it is: pure.

use crate::{Outcome, WriteError, WriteKind, WriteOp};
use segmentry_translog::OperationKind;

/// The document as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Current {
    pub seq_no: u64,
    pub term: u64,
    pub version: u64,
    /// It was deleted, and its version is still known.
    pub deleted: bool,
}

/// What is to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub kind: OperationKind,
    pub version: u64,
    pub outcome: Outcome,
}

/// Checks the conditions of a write, OpenSearch's way.
pub(crate) fn check(op: &WriteOp, current: Option<Current>) -> Result<(), WriteError> {
    let live = current.filter(|current| !current.deleted);
    let conflict = |reason: String| {
        Err(WriteError::VersionConflict {
            id: op.id.clone(),
            reason,
        })
    };
    match (op.if_seq_no, op.if_primary_term) {
        (None, None) => {}
        (Some(seq_no), Some(term)) => match live {
            None => {
                return conflict(format!(
                    "required seqNo [{seq_no}], primary term [{term}]. but no document was found"
                ));
            }
            Some(live) if live.seq_no != seq_no || live.term != term => {
                return conflict(format!(
                    "required seqNo [{seq_no}], primary term [{term}]. current document has seqNo [{}] and primary term [{}]",
                    live.seq_no, live.term
                ));
            }
            Some(_) => {}
        },
        _ => {
            return Err(WriteError::Illegal(
                "Validation Failed: 1: ifSeqNo and ifPrimaryTerm are given together or not at all;"
                    .to_owned(),
            ));
        }
    }
    match live {
        Some(live) if op.kind == WriteKind::Create => conflict(format!(
            "document already exists (current version [{}])",
            live.version
        )),
        _ => Ok(()),
    }
}

/// What an index, create or delete does. `check` has passed. (An update has become an index before.)
pub(crate) fn resolve(kind: WriteKind, current: Option<Current>) -> Resolved {
    let version = current.map_or(1, |current| current.version + 1);
    let live = current.is_some_and(|current| !current.deleted);
    let (kind, outcome) = match kind {
        WriteKind::Delete if live => (OperationKind::Delete, Outcome::Deleted),
        WriteKind::Delete => (OperationKind::Delete, Outcome::NotFound),
        _ if live => (OperationKind::Index, Outcome::Updated),
        _ => (OperationKind::Index, Outcome::Created),
    };
    Resolved {
        kind,
        version,
        outcome,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn op(kind: WriteKind, condition: Option<(u64, u64)>) -> WriteOp {
        WriteOp {
            kind,
            id: "7".into(),
            fresh_id: false,
            routing: None,
            if_seq_no: condition.map(|c| c.0),
            if_primary_term: condition.map(|c| c.1),
            source: bytes::Bytes::new(),
        }
    }

    const LIVE: Current = Current {
        seq_no: 3,
        term: 2,
        version: 4,
        deleted: false,
    };
    const GONE: Current = Current {
        deleted: true,
        ..LIVE
    };

    #[test]
    fn conflicts_speak_as_opensearch_does() {
        let text = |op, current| check(&op, current).unwrap_err().to_string();
        assert_eq!(
            text(op(WriteKind::Index, Some((1, 1))), Some(LIVE)),
            "[7]: version conflict, required seqNo [1], primary term [1]. current document has seqNo [3] and primary term [2]"
        );
        assert_eq!(
            text(op(WriteKind::Delete, Some((3, 2))), Some(GONE)),
            "[7]: version conflict, required seqNo [3], primary term [2]. but no document was found"
        );
        assert_eq!(
            text(op(WriteKind::Create, None), Some(LIVE)),
            "[7]: version conflict, document already exists (current version [4])"
        );
        assert!(check(&op(WriteKind::Index, Some((3, 2))), Some(LIVE)).is_ok());
        assert!(check(&op(WriteKind::Create, None), Some(GONE)).is_ok());
    }

    #[test]
    fn versions_go_on_over_a_remembered_delete() {
        let index = resolve(WriteKind::Index, Some(GONE));
        assert_eq!((index.version, index.outcome), (5, Outcome::Created));
        let delete = resolve(WriteKind::Delete, None);
        assert_eq!((delete.version, delete.outcome), (1, Outcome::NotFound));
    }
}
