//! Operations and their encoding: the records of a translog frame, and the body of a replication batch.
//!
//! # Bytes of a record
//!
//! A batch is a sequence of records without anything between them. Integers are little-endian.
//!
//! ```text
//! offset  size  field
//!  0      4     length of the record after this field
//!  4      1     kind: 0 index, 1 delete, 2 no-op, 3 term start, 4 unindexable
//!  5      1     flags: bit 0 = the operation has a routing, bit 1 = keep_to is present; the others are zero
//!  6      2     zero
//!  8      8     seq_no (zero in a term start)
//! 16      8     primary term
//! 24      8     version
//! 32      8     mapping version
//! 40      4     length of the id, n
//! 44      4     length of the routing, r (zero without flag bit 0)
//! 48      n     id, UTF-8
//! 48+n    r     routing, UTF-8
//! 48+n+r  rest  source, as the client sent it; in a term start keep_to (8 bytes with flag bit 1, else nothing)
//! ```

use crate::Error;
use bytes::Bytes;
use std::sync::Arc;

/// A resolved operation: replay and replicas never resolve a version or infer a type again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Position in the shard's history, from 0, without gaps.
    pub seq_no: u64,
    /// Primary term that gave the `seq_no`.
    pub term: u64,
    /// Version of the document after this operation.
    pub version: u64,
    /// Mapping version that the document was parsed by: a copy that indexes it needs at least this one.
    pub mapping_version: u64,
    /// What it does.
    pub kind: OperationKind,
    /// `_id`; empty where the kind has none.
    pub id: Arc<str>,
    /// `routing`, if the client gave one.
    pub routing: Option<Arc<str>>,
    /// `_source`, byte for byte; empty for deletes and no-ops.
    pub source: Bytes,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// Stores a document, whether it is new or replaces one.
    Index,
    /// Deletes a document.
    Delete,
    /// Fills a seq_no.
    NoOp,
    /// Not an operation of a client and without a seq_no: from here on a new primary term is in force, and records that
    /// stand *before* this one in the log with a seq_no above `keep_to` (all of them if `None`) are void.
    /// Written by [`crate::Translog::start_term`] only.
    TermStart {
        /// Last seq_no of earlier terms that stays.
        keep_to: Option<u64>,
    },
    /// A document that killed the index writer: kept as `_id`, `_seq_no`, `_source` only.
    Unindexable,
}

const FIXED: usize = 48;
const HAS_ROUTING: u8 = 1;
const HAS_KEEP_TO: u8 = 2;

impl Operation {
    /// Bytes that [`encode`] adds for this operation.
    pub fn encoded_len(&self) -> usize {
        let body = match self.kind {
            OperationKind::TermStart { keep_to } => keep_to.map_or(0, |_| 8),
            _ => self.source.len(),
        };
        FIXED + self.id.len() + self.routing.as_deref().map_or(0, str::len) + body
    }
}

/// Appends the records of a batch to `into`.
///
/// # Errors
/// [`Error::Invalid`] for an operation of 4 GiB or more; `into` then holds the records before it.
pub fn encode(operations: &[Operation], into: &mut Vec<u8>) -> Result<(), Error> {
    into.reserve(operations.iter().map(Operation::encoded_len).sum());
    for operation in operations {
        encode_one(operation, into)?;
    }
    Ok(())
}

fn encode_one(operation: &Operation, into: &mut Vec<u8>) -> Result<(), Error> {
    let Operation {
        seq_no,
        term,
        version,
        mapping_version,
        kind,
        id,
        routing,
        source,
    } = operation;
    let too_long = || {
        Error::Invalid(format!(
            "operation {seq_no} is longer than a record can be (4 GiB)"
        ))
    };
    let length = u32::try_from(operation.encoded_len() - 4).map_err(|_| too_long())?;
    let id_length = u32::try_from(id.len()).map_err(|_| too_long())?;
    let routing_length = u32::try_from(routing.as_deref().map_or(0, str::len)).map_err(|_| too_long())?;
    let (code, keep_to) = match *kind {
        OperationKind::Index => (0, None),
        OperationKind::Delete => (1, None),
        OperationKind::NoOp => (2, None),
        OperationKind::TermStart { keep_to } => (3, keep_to),
        OperationKind::Unindexable => (4, None),
    };
    let flags =
        if routing.is_some() { HAS_ROUTING } else { 0 } | if keep_to.is_some() { HAS_KEEP_TO } else { 0 };
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&[code, flags, 0, 0]);
    for number in [seq_no, term, version, mapping_version] {
        into.extend_from_slice(&number.to_le_bytes());
    }
    into.extend_from_slice(&id_length.to_le_bytes());
    into.extend_from_slice(&routing_length.to_le_bytes());
    into.extend_from_slice(id.as_bytes());
    if let Some(routing) = routing {
        into.extend_from_slice(routing.as_bytes());
    }
    match kind {
        OperationKind::TermStart { .. } => {
            if let Some(keep_to) = keep_to {
                into.extend_from_slice(&keep_to.to_le_bytes());
            }
        }
        _ => into.extend_from_slice(source),
    }
    Ok(())
}

/// Reads the records of a batch. Sources are slices of `batch` (no copy), so an operation keeps the batch's memory alive.
///
/// Lengths are checked against what is there before anything is read or allocated: bytes from the network may be hostile.
///
/// # Errors
/// [`Error::Malformed`] with the offset of the record that is wrong. An empty batch is no error.
pub fn decode(batch: Bytes) -> Result<Vec<Operation>, Error> {
    let mut operations = Vec::new();
    let mut offset = 0;
    while offset < batch.len() {
        let (operation, length) = decode_one(&batch, offset)?;
        operations.push(operation);
        offset += length;
    }
    Ok(operations)
}

/// The record at `offset`, and its whole length.
pub(crate) fn decode_one(batch: &Bytes, offset: usize) -> Result<(Operation, usize), Error> {
    let malformed = |reason: &'static str| Error::Malformed { offset, reason };
    let rest = batch.get(offset..).ok_or(malformed("starts behind the end"))?;
    let length = u32_at(rest, 0).ok_or(malformed("cut in its length"))?;
    let length = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_add(4))
        .ok_or(malformed("too long"))?;
    if length < FIXED {
        return Err(malformed("shorter than its fixed part"));
    }
    let record = rest.get(..length).ok_or(malformed("longer than the batch"))?;
    let cut = malformed("cut in its fixed part");
    let [code, flags, zero_a, zero_b] = *record
        .get(4..8)
        .and_then(|b| b.first_chunk::<4>())
        .ok_or(malformed("cut"))?;
    if flags & !(HAS_ROUTING | HAS_KEEP_TO) != 0 || zero_a != 0 || zero_b != 0 {
        return Err(malformed("has flags of a format that is not known here"));
    }
    let (
        Some(seq_no),
        Some(term),
        Some(version),
        Some(mapping_version),
        Some(id_length),
        Some(routing_length),
    ) = (
        u64_at(record, 8),
        u64_at(record, 16),
        u64_at(record, 24),
        u64_at(record, 32),
        u32_at(record, 40),
        u32_at(record, 44),
    )
    else {
        return Err(cut);
    };
    let end_of = |start: usize, length: u32| {
        usize::try_from(length)
            .ok()
            .and_then(|length| start.checked_add(length))
    };
    let id_end = end_of(FIXED, id_length).ok_or(malformed("has an id longer than itself"))?;
    let routing_end = end_of(id_end, routing_length).ok_or(malformed("has a routing longer than itself"))?;
    let text = |from: usize, to: usize, long: &'static str| {
        let bytes = record.get(from..to).ok_or(malformed(long))?;
        std::str::from_utf8(bytes).map_err(|_| malformed("has text that is not UTF-8"))
    };
    let id = Arc::from(text(FIXED, id_end, "has an id longer than itself")?);
    let routing = text(id_end, routing_end, "has a routing longer than itself")?;
    let routing = match (flags & HAS_ROUTING != 0, routing) {
        (true, routing) => Some(Arc::from(routing)),
        (false, "") => None,
        (false, _) => return Err(malformed("has a routing that its flags deny")),
    };
    let body = offset + routing_end..offset + length;
    let mut source = batch.slice(body);
    let has_keep_to = flags & HAS_KEEP_TO != 0;
    let kind = match code {
        3 => {
            let keep_to = match (has_keep_to, source.len()) {
                (true, 8) => u64_at(&source, 0),
                (false, 0) => None,
                _ => return Err(malformed("is a term start with a body of another length")),
            };
            source = Bytes::new();
            OperationKind::TermStart { keep_to }
        }
        _ if has_keep_to => return Err(malformed("has a keep_to without being a term start")),
        0 => OperationKind::Index,
        1 => OperationKind::Delete,
        2 => OperationKind::NoOp,
        4 => OperationKind::Unindexable,
        _ => return Err(malformed("is of a kind that is not known here")),
    };
    Ok((
        Operation {
            seq_no,
            term,
            version,
            mapping_version,
            kind,
            id,
            routing,
            source,
        },
        length,
    ))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_le_bytes(*bytes.get(offset..end)?.first_chunk()?))
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let end = offset.checked_add(8)?;
    Some(u64::from_le_bytes(*bytes.get(offset..end)?.first_chunk()?))
}
