//! The Raft log as one append-only file.
//!
//! ```text
//!   header, 32 bytes   "SGMRLOG1" | format u32 | 0 u32 | seed u64 | crc32c u32 of the 24 bytes before | 0 u32
//!   frame              length u32 | crc32c u32 | payload (JSON of `Record`)
//! ```
//! Integers are little-endian. A frame's checksum covers the seed (random for each file), the frame's offset, its length and
//! its payload: bytes of an older file or of another place never pass. Each frame is synced before the next one is written,
//! so every frame but the last was durable when the one after it was written:
//!
//! - a bad frame with a good one behind it is damage: the file is refused ([`OpenError::Corrupt`]);
//! - a bad frame with nothing good behind it is a write that was cut off before its sync: never acknowledged, removed.
//!
//! The file is rewritten (durably, beside it, then renamed) once most of it is purged entries.

use super::{Entry, LogId, OpenError, Vote};
use rand::Rng;
use segmentry_vfs::{Vfs, VfsFile, write_durably};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

const MAGIC: &[u8; 8] = b"SGMRLOG1";
const FORMAT: u32 = 1;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 8;
/// A frame's payload is at most this long; a longer length is damage.
const MAX_PAYLOAD: usize = 1 << 30;

/// One frame. Parts take effect in the order of the fields.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vote: Option<Vote>,
    /// Entries up to this one are in the snapshot and gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purged: Option<LogId>,
    /// Entries from this index on are void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    /// Known to be committed when the frame was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<LogId>,
}

/// What the file says, in memory.
#[derive(Debug, Default, Clone)]
pub struct Content {
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    pub entries: BTreeMap<u64, Entry>,
    pub committed: Option<LogId>,
}

impl Content {
    pub fn take_in(&mut self, record: Record) {
        if record.vote.is_some() {
            self.vote = record.vote;
        }
        if let Some(purged) = record.purged {
            self.entries = self.entries.split_off(&(purged.index + 1));
            self.purged = Some(purged);
        }
        if let Some(from) = record.truncate {
            self.entries.split_off(&from);
        }
        for entry in record.entries {
            self.entries.insert(entry.log_id.index, entry);
        }
        if record.committed.is_some() {
            self.committed = record.committed;
        }
    }

    pub fn last(&self) -> Option<LogId> {
        self.entries
            .values()
            .next_back()
            .map(|e| e.log_id)
            .or(self.purged)
    }

    fn whole(&self) -> Record {
        Record {
            vote: self.vote,
            purged: self.purged,
            truncate: None,
            entries: self.entries.values().cloned().collect(),
            committed: self.committed,
        }
    }

    /// Entries follow each other without a hole, from the purged one on.
    fn hole(&self) -> Option<u64> {
        let mut expected = self.purged.map(|p| p.index + 1);
        for index in self.entries.keys() {
            if expected.is_some_and(|e| e != *index) {
                return Some(*index);
            }
            expected = Some(index + 1);
        }
        None
    }
}

/// The open file; owned by one thread.
pub struct LogFile {
    fs: Arc<dyn Vfs>,
    path: PathBuf,
    file: Box<dyn VfsFile>,
    seed: u64,
    len: u64,
    failed: Option<String>,
}

impl LogFile {
    /// Opens `<dir>/log`, or creates it; answers what it holds and how many bytes of a cut-off write were removed.
    pub fn open(fs: Arc<dyn Vfs>, dir: &Path) -> Result<(Self, Content, u64), OpenError> {
        let path = dir.join("log");
        let io = |source| OpenError::Io {
            path: path.clone(),
            source,
        };
        if !fs.exists(&path).map_err(io)? {
            write_durably(fs.as_ref(), &path, &header(rand::rng().random())).map_err(io)?;
        }
        let bytes = fs.read(&path).map_err(io)?;
        let seed = read_header(&path, &bytes)?;
        let mut content = Content::default();
        let mut at = HEADER;
        while let Some((payload, next)) = frame_at(&bytes, at, seed) {
            let record: Record = serde_json::from_slice(payload).map_err(|e| OpenError::Corrupt {
                path: path.clone(),
                offset: offset(at),
                why: format!("a frame with a good checksum cannot be read: {e}"),
            })?;
            content.take_in(record);
            if let Some(index) = content.hole() {
                return Err(OpenError::Corrupt {
                    path: path.clone(),
                    offset: offset(at),
                    why: format!("log entries before index {index} are missing"),
                });
            }
            at = next;
        }
        let torn = bytes.len() - at;
        let file = fs.open(&path).map_err(io)?;
        if torn > 0 {
            // A good frame behind a bad one proves that the bad one had been synced.
            if let Some(good) = (at + 1..bytes.len()).find(|start| frame_at(&bytes, *start, seed).is_some()) {
                return Err(OpenError::Corrupt {
                    path: path.clone(),
                    offset: offset(at),
                    why: format!("a bad frame lies before a good one at byte {good}"),
                });
            }
            file.set_len(offset(at)).map_err(io)?;
            file.sync().map_err(io)?;
        }
        let log = Self {
            fs,
            path: path.clone(),
            file,
            seed,
            len: offset(at),
            failed: None,
        };
        Ok((log, content, offset(torn)))
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Writes one frame and syncs it. After a failure nothing more is written: what the disk holds is unknown.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        self.guarded(|log| {
            let frame = frame(log.seed, log.len, record)?;
            log.file.append(&frame)?;
            log.file.sync()?;
            log.len += offset(frame.len());
            Ok(())
        })
    }

    /// Replaces the file by one that holds only `content`.
    pub fn rewrite(&mut self, content: &Content) -> io::Result<()> {
        self.guarded(|log| {
            let seed = rand::rng().random();
            let mut bytes = header(seed);
            bytes.extend(frame(seed, offset(HEADER), &content.whole())?);
            write_durably(log.fs.as_ref(), &log.path, &bytes)?;
            log.file = log.fs.open(&log.path)?;
            log.seed = seed;
            log.len = offset(bytes.len());
            Ok(())
        })
    }

    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        if let Some(why) = &self.failed {
            return Err(io::Error::other(format!(
                "an earlier write of the metadata log failed: {why}"
            )));
        }
        work(self).inspect_err(|e| self.failed = Some(e.to_string()))
    }
}

fn offset(position: usize) -> u64 {
    // A position in memory fits in 64 bits on every platform that this builds for.
    u64::try_from(position).unwrap_or(u64::MAX)
}

fn header(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(seed.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<u64, OpenError> {
    let corrupt = |why: &str| OpenError::Corrupt {
        path: path.to_owned(),
        offset: 0,
        why: why.to_owned(),
    };
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(corrupt("it does not start as a metadata log"));
    }
    let crc = u32_at(bytes, 24).ok_or_else(|| corrupt("its header is short"))?;
    if crc32c::crc32c(&bytes[..24]) != crc {
        return Err(corrupt("the checksum of its header is wrong"));
    }
    match u32_at(bytes, 8) {
        Some(FORMAT) => {}
        found => {
            return Err(OpenError::Format {
                path: path.to_owned(),
                found: found.unwrap_or(0),
                readable: FORMAT,
            });
        }
    }
    let seed: [u8; 8] = bytes[16..24]
        .try_into()
        .map_err(|_| corrupt("its header is short"))?;
    Ok(u64::from_le_bytes(seed))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn checksum(seed: u64, at: u64, payload: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&seed.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &at.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &offset(payload.len()).to_le_bytes());
    crc32c::crc32c_append(crc, payload)
}

fn frame(seed: u64, at: u64, record: &Record) -> io::Result<Vec<u8>> {
    let payload = serde_json::to_vec(record)?;
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a metadata log frame is too long"))?;
    let mut bytes = Vec::with_capacity(FRAME_HEADER + payload.len());
    bytes.extend(length.to_le_bytes());
    bytes.extend(checksum(seed, at, &payload).to_le_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// The payload of a whole, good frame at `at`, and where the next one starts.
fn frame_at(bytes: &[u8], at: usize, seed: u64) -> Option<(&[u8], usize)> {
    let length = usize::try_from(u32_at(bytes, at)?)
        .ok()
        .filter(|l| *l <= MAX_PAYLOAD && *l > 0)?;
    let crc = u32_at(bytes, at + 4)?;
    let start = at + FRAME_HEADER;
    let payload = bytes.get(start..start.checked_add(length)?)?;
    (checksum(seed, offset(at), payload) == crc).then_some((payload, start + length))
}

#[cfg(test)]
#[path = "log_file_tests.rs"]
mod tests;
