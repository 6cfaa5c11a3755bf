//! Bytes on disk, apart from the records themselves (see [`crate::operation`]).
//!
//! Integers are little-endian. CRCs are CRC-32C.
//!
//! # `translog-<n>.tlog`, generation n
//!
//! ```text
//! offset  size  header
//!  0      8     magic "SGMTLOG\n"
//!  8      4     format, 1
//! 12      4     zero
//! 16     16     shard uuid
//! 32      8     generation n
//! 40      8     seed: random; so that bytes of another file or of an earlier use of this one never verify
//! 48      8     base: seq_no of the first operation that this generation continues with
//! 56      8     term in force at the beginning; 0 before the first term start
//! 64      4     crc of bytes 0..64
//! 68      4     zero
//!
//! then frames, one a batch, without anything between them:
//!  0      4     length of the records, at least 1
//!  4      4     crc of the seed (8 bytes), then of the records
//!  8      8     synced_to: generation } the log position that was durable
//! 16      8     synced_to: offset     } when this frame was written
//! 24      4     crc of the seed (8 bytes), then of bytes 0..24 of the frame
//! 28      -     records
//! ```
//!
//! The head has a crc of its own so that the search for frames beyond a bad one costs a few bytes a place: a length alone
//! would be any number there, and its records would be summed up to the end of the file for each.
//!
//! A header is durable, and so is the file's name, before the first frame is written. A generation is durable as a whole
//! before the next one is made.
//!
//! # `translog.ckp`
//!
//! 8192 bytes: two slots at offsets 0 (even counters) and 4096 (odd ones), written in turn; the valid one with the higher
//! counter counts, and one is always valid. A slot is written after the sync of the data that it vouches for. It is durable
//! before files that it no longer names are removed: its first seq_no tells a trimmed file from a lost one.
//!
//! ```text
//!  0      8     magic "SGMTCKP\n"
//!  8      8     counter
//! 16      8     generation } durable end of the log
//! 24      8     seed       } when the slot was written
//! 32      8     offset     }
//! 40      8     first seq_no that is held; u64::MAX for none
//! 48      8     last seq_no; u64::MAX for none
//! 56      4     crc of bytes 0..56
//! ```

use crate::operation::{u32_at, u64_at};
use std::path::{Path, PathBuf};
use uuid::Uuid;

pub const FORMAT: u32 = 1;
pub const HEADER: usize = 72;
pub const FRAME: usize = 28;
pub const SLOT: u64 = 4096;
pub const CHECKPOINT: &str = "translog.ckp";
const SLOT_BYTES: usize = 60;
const MAGIC: &[u8; 8] = b"SGMTLOG\n";
const CHECKPOINT_MAGIC: &[u8; 8] = b"SGMTCKP\n";

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    pub generation: u64,
    pub offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub shard: Uuid,
    pub generation: u64,
    pub seed: u64,
    pub base: u64,
    pub term: u64,
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(self.shard.as_bytes());
        for number in [self.generation, self.seed, self.base, self.term] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }

    /// The header, or what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some(head) = bytes.get(..HEADER) else {
            return Err("its header is cut".to_owned());
        };
        if !head.starts_with(MAGIC) {
            return Err("it does not begin as a translog does".to_owned());
        }
        if u32_at(head, 64) != Some(crc32c::crc32c(&head[..64])) {
            return Err("its header has a wrong checksum".to_owned());
        }
        if u32_at(head, 68) != Some(0) {
            return Err("its header does not end with zeros".to_owned());
        }
        let format = u32_at(head, 8).unwrap_or_default();
        if format != FORMAT {
            return Err(format!("its format is {format}, this program reads {FORMAT}"));
        }
        let field = |at| u64_at(head, at).unwrap_or_default();
        let mut shard = [0; 16];
        shard.copy_from_slice(&head[16..32]);
        let shard = Uuid::from_bytes(shard);
        Ok(Self {
            shard,
            generation: field(32),
            seed: field(40),
            base: field(48),
            term: field(56),
        })
    }
}

fn seeded_crc(seed: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&seed.to_le_bytes()), bytes)
}

/// Appends a frame. `length` is that of `records`, which callers have bounded.
pub fn put_frame(into: &mut Vec<u8>, seed: u64, synced_to: Place, records: &[u8], length: u32) {
    let start = into.len();
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&seeded_crc(seed, records).to_le_bytes());
    into.extend_from_slice(&synced_to.generation.to_le_bytes());
    into.extend_from_slice(&synced_to.offset.to_le_bytes());
    let crc = seeded_crc(seed, &into[start..]);
    into.extend_from_slice(&crc.to_le_bytes());
    into.extend_from_slice(records);
}

/// A frame's head, whose own checksum holds: the records may still be bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub synced_to: Place,
    /// Bytes of the whole frame.
    pub bytes: usize,
    crc: u32,
}

/// The head at `offset` of a generation's bytes, or what is wrong with it.
pub fn head_at(bytes: &[u8], offset: usize, seed: u64) -> Result<Head, &'static str> {
    let head = offset
        .checked_add(FRAME)
        .and_then(|end| bytes.get(offset..end))
        .ok_or("the frame's head is cut")?;
    let (Some(length), Some(crc), Some(generation), Some(synced), Some(own)) = (
        u32_at(head, 0),
        u32_at(head, 4),
        u64_at(head, 8),
        u64_at(head, 16),
        u32_at(head, 24),
    ) else {
        return Err("the frame's head is cut");
    };
    if seeded_crc(seed, &head[..24]) != own {
        return Err("the frame's head has a wrong checksum");
    }
    if length == 0 {
        return Err("the frame is empty");
    }
    let bytes = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_add(FRAME))
        .ok_or("the frame is too long")?;
    Ok(Head {
        synced_to: Place {
            generation,
            offset: synced,
        },
        bytes,
        crc,
    })
}

/// A valid frame at `offset` of a generation's bytes: where it was synced to, and the range of its records.
pub fn frame_at(
    bytes: &[u8],
    offset: usize,
    seed: u64,
) -> Result<(Place, std::ops::Range<usize>), &'static str> {
    let head = head_at(bytes, offset, seed)?;
    let end = offset.checked_add(head.bytes).ok_or("the frame is too long")?;
    let range = offset + FRAME..end;
    let records = bytes.get(range.clone()).ok_or("the frame is cut")?;
    if seeded_crc(seed, records) != head.crc {
        return Err("the frame's records have a wrong checksum");
    }
    Ok((head.synced_to, range))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub counter: u64,
    pub seed: u64,
    pub end: Place,
    pub first: Option<u64>,
    pub last: Option<u64>,
}

impl Slot {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        bytes.extend_from_slice(CHECKPOINT_MAGIC);
        let some = |seq_no: Option<u64>| seq_no.unwrap_or(u64::MAX);
        for number in [
            self.counter,
            self.end.generation,
            self.seed,
            self.end.offset,
            some(self.first),
            some(self.last),
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Where in the file it is written.
    pub fn offset(&self) -> u64 {
        if self.counter.is_multiple_of(2) { 0 } else { SLOT }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let slot = bytes.get(..SLOT_BYTES)?;
        if !slot.starts_with(CHECKPOINT_MAGIC) || u32_at(slot, 56)? != crc32c::crc32c(&slot[..56]) {
            return None;
        }
        let none = |seq_no: u64| (seq_no != u64::MAX).then_some(seq_no);
        Some(Self {
            counter: u64_at(slot, 8)?,
            end: Place {
                generation: u64_at(slot, 16)?,
                offset: u64_at(slot, 32)?,
            },
            seed: u64_at(slot, 24)?,
            first: none(u64_at(slot, 40)?),
            last: none(u64_at(slot, 48)?),
        })
    }

    /// The newest valid slot of a checkpoint file.
    pub fn newest(bytes: &[u8]) -> Option<Self> {
        let second = bytes
            .get(usize::try_from(SLOT).unwrap_or(usize::MAX)..)
            .and_then(Self::decode);
        Self::decode(bytes)
            .into_iter()
            .chain(second)
            .max_by_key(|slot| slot.counter)
    }
}

pub fn file_name(generation: u64) -> String {
    format!("translog-{generation}.tlog")
}

pub fn path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(file_name(generation))
}

/// Generation of a file name, if it is one.
pub fn generation_of(name: &str) -> Option<u64> {
    name.strip_prefix("translog-")?
        .strip_suffix(".tlog")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_bytes_of_a_header_and_a_frame_are_these() {
        let header = Header {
            shard: Uuid::from_u128(7),
            generation: 3,
            seed: 0x0102,
            base: 9,
            term: 2,
        };
        let bytes = header.encode();
        assert_eq!(bytes.len(), HEADER);
        assert_eq!(&bytes[..16], b"SGMTLOG\n\x01\0\0\0\0\0\0\0");
        assert_eq!(&bytes[16..32], Uuid::from_u128(7).as_bytes());
        assert_eq!(&bytes[64..68], crc32c::crc32c(&bytes[..64]).to_le_bytes());
        assert_eq!(&bytes[68..], [0; 4]);
        assert_eq!(
            &bytes[32..64],
            [
                [3, 0, 0, 0, 0, 0, 0, 0],
                [2, 1, 0, 0, 0, 0, 0, 0],
                [9, 0, 0, 0, 0, 0, 0, 0],
                [2, 0, 0, 0, 0, 0, 0, 0]
            ]
            .concat()
        );
        assert_eq!(Header::decode(&bytes).unwrap(), header);

        let mut frame = Vec::new();
        put_frame(
            &mut frame,
            0x0102,
            Place {
                generation: 3,
                offset: 72,
            },
            b"abc",
            3,
        );
        let mut expected = vec![3, 0, 0, 0];
        expected.extend(crc32c::crc32c(b"\x02\x01\0\0\0\0\0\0abc").to_le_bytes());
        expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0, 0, 0]);
        let head = [b"\x02\x01\0\0\0\0\0\0".as_slice(), &expected].concat();
        expected.extend(crc32c::crc32c(&head).to_le_bytes());
        expected.extend(b"abc");
        assert_eq!(frame, expected);
        let (synced, records) = frame_at(&frame, 0, 0x0102).unwrap();
        assert_eq!((synced.offset, &frame[records]), (72, b"abc".as_slice()));
        assert!(frame_at(&frame, 0, 0x0103).is_err(), "another seed");
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_seen() {
        let mut frame = Vec::new();
        put_frame(&mut frame, 5, Place::default(), b"some records", 12);
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(frame_at(&bad, 0, 5).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_newest_valid_slot_counts() {
        let slot = |counter| Slot {
            counter,
            seed: 1,
            end: Place {
                generation: 1,
                offset: 100 + counter,
            },
            first: None,
            last: Some(4),
        };
        let mut file = vec![0; 4096];
        file[..SLOT_BYTES].copy_from_slice(&slot(2).encode());
        file.extend(slot(3).encode());
        assert_eq!(Slot::newest(&file), Some(slot(3)));
        file[4096 + 20] ^= 1;
        assert_eq!(Slot::newest(&file), Some(slot(2)));
        assert_eq!(Slot::newest(&[]), None);
    }
}
