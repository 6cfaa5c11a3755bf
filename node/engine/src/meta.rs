//! The two forms of a commit.
//!
//! *Meta*: tantivy's `meta.json`, kept in memory, replaced by each refresh and merge. *Durable commit*: the file
//! [`COMMIT_FILE`], written by a flush:
//!
//! ```text
//! 8 hex digits   crc32 of what follows the line feed
//! line feed
//! JSON           {"format":1, "version":…, "created_ms":…, "files":[{"name":…,"disk_name":…,"len":…,"crc":…}], "meta":"…"}
//! ```
//!
//! `name` is what tantivy calls a file, `disk_name` its name in the directory. They differ only where a file was received whose
//! name was taken by other bytes: nothing is ever written over.

use crate::{CommitPayload, EngineError, FileMeta};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};
use tantivy::{index::SegmentId, schema::Schema};

/// The durable commit's file.
pub(crate) const COMMIT_FILE: &str = "commit.json";
const FORMAT: u32 = 1;

/// Where the bytes of a file of tantivy are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// Name for tantivy.
    pub name: String,
    /// Name in the directory.
    pub disk_name: String,
    /// Bytes.
    pub len: u64,
    /// crc32 of all bytes.
    pub crc: u32,
}

impl Stored {
    pub(crate) fn meta(&self) -> FileMeta {
        FileMeta {
            name: self.name.clone(),
            len: self.len,
            crc: self.crc,
        }
    }
}

/// One segment of a meta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// 32 hex digits.
    pub id: String,
    pub max_doc: u32,
    /// Number of deleted documents and opstamp of the `.del` file.
    pub deletes: Option<(u32, u64)>,
}

/// A meta, understood.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    /// Grows with each publication; above `term << 40` of the term that it was written in.
    pub version: u64,
    pub created_ms: u64,
    pub bytes: Bytes,
    pub opstamp: u64,
    pub payload: CommitPayload,
    pub schema: Schema,
    /// Ids of the fields that need norms.
    pub norm_fields: Vec<u32>,
    pub segments: Vec<Segment>,
    /// Files of all segments.
    pub files: Vec<Stored>,
}

#[derive(Deserialize)]
struct RawMeta {
    segments: Vec<RawSegment>,
    schema: Schema,
    opstamp: u64,
    payload: Option<String>,
}

#[derive(Deserialize)]
struct RawSegment {
    segment_id: SegmentId,
    max_doc: u32,
    deletes: Option<RawDeletes>,
}

#[derive(Deserialize)]
struct RawDeletes {
    num_deleted_docs: u32,
    opstamp: u64,
}

fn invalid(reason: impl std::fmt::Display) -> EngineError {
    EngineError::Corrupt {
        file: "meta.json".to_owned(),
        reason: reason.to_string(),
    }
}

impl Meta {
    /// Reads tantivy's meta and finds its files among `files`.
    pub(crate) fn read(
        version: u64,
        created_ms: u64,
        bytes: Bytes,
        files: &HashMap<String, Stored>,
    ) -> Result<Self, EngineError> {
        let raw: RawMeta = serde_json::from_slice(&bytes).map_err(invalid)?;
        let payload = raw.payload.ok_or_else(|| invalid("it carries no payload"))?;
        let payload: CommitPayload = serde_json::from_str(&payload).map_err(invalid)?;
        let norm_fields = raw
            .schema
            .fields()
            .filter(|(_, entry)| entry.is_indexed() && entry.has_fieldnorms())
            .map(|(field, _)| field.field_id())
            .collect();
        let segments: Vec<Segment> = raw
            .segments
            .into_iter()
            .map(|segment| Segment {
                id: segment.segment_id.uuid_string(),
                max_doc: segment.max_doc,
                deletes: segment
                    .deletes
                    .filter(|deletes| deletes.num_deleted_docs > 0)
                    .map(|deletes| (deletes.num_deleted_docs, deletes.opstamp)),
            })
            .collect();
        let mut found = Vec::new();
        for segment in &segments {
            for name in segment.file_names() {
                let stored = files
                    .get(&name)
                    .ok_or_else(|| invalid(format!("file [{name}] is not there")))?;
                found.push(stored.clone());
            }
        }
        Ok(Self {
            version,
            created_ms,
            bytes,
            opstamp: raw.opstamp,
            payload,
            schema: raw.schema,
            norm_fields,
            segments,
            files: found,
        })
    }
}

impl Segment {
    /// Names of its files; all must exist.
    fn file_names(&self) -> Vec<String> {
        let mut names: Vec<String> = ["idx", "pos", "term", "store", "fast", "fieldnorm"]
            .iter()
            .map(|extension| format!("{}.{extension}", self.id))
            .collect();
        if let Some((_, opstamp)) = self.deletes {
            names.push(format!("{}.{opstamp}.del", self.id));
        }
        names
    }
}

#[derive(Serialize, Deserialize)]
struct CommitFile {
    format: u32,
    version: u64,
    created_ms: u64,
    files: Vec<Stored>,
    meta: String,
}

/// Bytes of the durable commit's file.
pub(crate) fn encode_commit(meta: &Meta) -> Result<Vec<u8>, EngineError> {
    let text = String::from_utf8(meta.bytes.to_vec()).map_err(invalid)?;
    let file = CommitFile {
        format: FORMAT,
        version: meta.version,
        created_ms: meta.created_ms,
        files: meta.files.clone(),
        meta: text,
    };
    let json = serde_json::to_vec(&file).map_err(invalid)?;
    let mut out = format!("{:08x}\n", crc32fast::hash(&json)).into_bytes();
    out.extend_from_slice(&json);
    Ok(out)
}

/// Reads the durable commit's file.
pub(crate) fn decode_commit(bytes: &[u8]) -> Result<Meta, EngineError> {
    let corrupt = |reason: String| EngineError::Corrupt {
        file: COMMIT_FILE.to_owned(),
        reason,
    };
    let (Some(crc), Some(b'\n'), Some(json)) = (bytes.get(..8), bytes.get(8), bytes.get(9..)) else {
        return Err(corrupt("too short".to_owned()));
    };
    let crc = std::str::from_utf8(crc)
        .ok()
        .and_then(|crc| u32::from_str_radix(crc, 16).ok());
    if crc != Some(crc32fast::hash(json)) {
        return Err(corrupt("its checksum differs".to_owned()));
    }
    let file: CommitFile = serde_json::from_slice(json).map_err(|error| corrupt(error.to_string()))?;
    if file.format != FORMAT {
        return Err(corrupt(format!("format {} is not {FORMAT}", file.format)));
    }
    let files = file
        .files
        .into_iter()
        .map(|stored| (stored.name.clone(), stored))
        .collect();
    Meta::read(file.version, file.created_ms, Bytes::from(file.meta), &files)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Term of an opstamp or version.
pub(crate) const fn term_of(stamp: u64) -> u64 {
    stamp >> TERM_SHIFT
}

/// Bits below the term.
pub(crate) const TERM_SHIFT: u32 = 40;

/// The stamp that a writer of `term` goes on from: `(term << 40) | (old & (2^40 − 1))`, above `old` in any case.
///
/// Two copies that continue one commit under different terms therefore never give one name to two `.del` files.
pub(crate) fn next_stamp(term: u64, old: u64) -> Result<u64, EngineError> {
    let known = term_of(old);
    if term < known || term >= 1 << (64 - TERM_SHIFT) {
        return Err(EngineError::StaleTerm { given: term, known });
    }
    let next = ((term << TERM_SHIFT) | (old & ((1 << TERM_SHIFT) - 1))).max(old.saturating_add(1));
    if next > old {
        Ok(next)
    } else {
        Err(EngineError::Failed("stamps are used up".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn a_stamp_carries_its_term_and_always_grows() {
        assert_eq!(next_stamp(1, 0).unwrap(), 1 << 40);
        assert_eq!(next_stamp(2, (1 << 40) | 7).unwrap(), (2 << 40) | 7);
        assert_eq!(next_stamp(2, (2 << 40) | 7).unwrap(), (2 << 40) | 8);
        assert!(matches!(
            next_stamp(1, (2 << 40) | 7),
            Err(EngineError::StaleTerm { given: 1, known: 2 })
        ));
        assert!(next_stamp(1 << 24, 0).is_err());
    }

    #[test]
    fn a_changed_commit_file_is_found_out() {
        let meta = crate::engine::empty_meta(&CommitPayload::default()).unwrap();
        let bytes = encode_commit(&meta).unwrap();
        assert_eq!(decode_commit(&bytes).unwrap().payload, meta.payload);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode_commit(&damaged).is_err(), "byte {at}");
            assert!(decode_commit(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
