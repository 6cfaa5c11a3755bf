//! Opening: reads what is there, tells a torn end from damage.

use crate::{
    Error, Opened, Operation, OperationKind, Result, TornTail, decode,
    format::{self, CHECKPOINT, FRAME, HEADER, Header, Place, Slot},
    index::{Generation, Index},
};
use bytes::Bytes;
use segmentry_vfs::Vfs;
use std::{io, path::Path, sync::Arc, time::SystemTime};
use uuid::Uuid;

pub struct Scanned {
    pub index: Index,
    pub opened: Opened,
    pub end: Place,
    pub checkpoint: Slot,
}

pub fn millis(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

pub fn generations(fs: &dyn Vfs, dir: &Path) -> Result<Vec<u64>> {
    let mut found: Vec<u64> = fs
        .list(dir)
        .map_err(Error::io("list", dir))?
        .iter()
        .filter_map(|name| format::generation_of(name))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Reads the whole log. A torn end is cut and synced before this returns.
pub fn open(fs: &dyn Vfs, dir: &Path, shard: Uuid) -> Result<Scanned> {
    let checkpoint_path = dir.join(CHECKPOINT);
    // Its first slot is durable before a log is used, and only one slot is ever being written.
    let checkpoint = match fs.read(&checkpoint_path) {
        Ok(bytes) => Slot::newest(&bytes)
            .ok_or_else(|| Error::corrupt(&checkpoint_path, 0, "neither of its slots is valid"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::corrupt(&checkpoint_path, 0, "the file is missing"));
        }
        Err(error) => return Err(Error::io("read", &checkpoint_path)(error)),
    };
    let mut numbers = generations(fs, dir)?;
    let mut index = Index::default();
    let mut torn = None;
    // a generation without a whole header never had a frame: the power went while it was made
    if let Some(newest) = numbers.last().copied() {
        let path = format::path(dir, newest);
        let length = fs.len(&path).map_err(Error::io("look at", &path))?;
        let durable_here = checkpoint.end.generation == newest;
        let head = read_head(fs, &path)?;
        if Header::decode(&head).is_err() && numbers.len() > 1 && !durable_here && length <= HEADER as u64 {
            fs.remove(&path)
                .and_then(|()| fs.sync_dir(dir))
                .map_err(Error::io("remove", &path))?;
            numbers.pop();
            torn = Some(TornTail {
                file: path,
                offset: 0,
                bytes: length,
                reason: "its header is incomplete".to_owned(),
            });
        }
    }
    let Some(newest) = numbers.last().copied() else {
        return Err(Error::corrupt(dir, 0, "there is no translog file"));
    };
    if checkpoint.end.generation > newest {
        let path = format::path(dir, checkpoint.end.generation);
        return Err(Error::corrupt(
            &path,
            0,
            "the checkpoint names this file, and it is missing",
        ));
    }
    let mut end = Place::default();
    for (position, number) in numbers.iter().copied().enumerate() {
        let path = format::path(dir, number);
        if position > 0 && numbers.get(position - 1) != Some(&(number - 1)) {
            return Err(Error::corrupt(
                &format::path(dir, number - 1),
                0,
                "a file is missing between others",
            ));
        }
        let bytes = Bytes::from(fs.read(&path).map_err(Error::io("read", &path))?);
        let header = Header::decode(&bytes).map_err(|reason| Error::corrupt(&path, 0, reason))?;
        if header.shard != shard {
            let reason = format!("it is of [{}], not of [{shard}]", header.shard);
            return Err(Error::Foreign { file: path, reason });
        }
        if header.generation != number {
            return Err(Error::corrupt(
                &path,
                32,
                format!("it says that it is generation {}", header.generation),
            ));
        }
        if position == 0 {
            index.last = header.base.checked_sub(1);
            index.term = header.term;
        } else if (header.base, header.term) != (index.next(), index.term) {
            // also where the file before was cut between two frames
            return Err(Error::corrupt(
                &format::path(dir, number - 1),
                end.offset,
                format!(
                    "it ends before operation {} of term {}, its successor continues at {} of term {}",
                    index.next(),
                    index.term,
                    header.base,
                    header.term
                ),
            ));
        }
        let file: Arc<dyn segmentry_vfs::VfsFile> =
            Arc::from(fs.open(&path).map_err(Error::io("open", &path))?);
        let modified_ms = fs.modified(&path).map_or(0, millis);
        let Frames { good_to, bad, synced } = frames(&mut index, &bytes, &path, number, header.seed)?;
        let mut durable = synced.max(HEADER as u64);
        if checkpoint.end.generation == number {
            if checkpoint.seed != header.seed {
                return Err(Error::corrupt(
                    &path,
                    40,
                    "the checkpoint is of another use of this file",
                ));
            }
            durable = durable.max(checkpoint.end.offset);
        }
        if number < newest {
            // whole before its successor was made
            durable = durable.max(bytes.len() as u64);
        }
        if (good_to as u64) < durable {
            let reason = bad.unwrap_or("the file ends here, and more was durable");
            return Err(Error::corrupt(&path, good_to as u64, reason));
        }
        if number == newest {
            // A sync that failed before this process began may have left pages that the kernel calls clean and the disk does
            // not have: what is not known to be durable is written again before it is synced and counts as persisted.
            let from = usize::try_from(durable).unwrap_or(good_to).min(good_to);
            file.write_at(&bytes[from..good_to], from as u64)
                .map_err(Error::io("write again", &path))?;
        }
        if good_to < bytes.len() {
            file.set_len(good_to as u64)
                .and_then(|()| file.sync())
                .map_err(Error::io("cut", &path))?;
            torn = Some(TornTail {
                file: path.clone(),
                offset: good_to as u64,
                bytes: (bytes.len() - good_to) as u64,
                reason: bad.unwrap_or("the frame is cut").to_owned(),
            });
        }
        end = Place {
            generation: number,
            offset: good_to as u64,
        };
        let generation = Generation {
            path,
            file,
            seed: header.seed,
            base: header.base,
            bytes: good_to as u64,
            modified_ms,
        };
        index.generations.insert(number, generation);
    }
    // the checkpoint is durable before files that it no longer names go, so that one that is missed was lost
    let held_from = index.runs.first().map_or(index.next(), |run| run.first);
    if let Some(first) = checkpoint.first
        && held_from > first
    {
        let lost = numbers.first().map_or(0, |oldest| oldest.saturating_sub(1));
        return Err(Error::corrupt(
            &format::path(dir, lost),
            0,
            format!("the checkpoint names operation {first}, and the file that holds it is missing"),
        ));
    }
    let opened = Opened {
        max_seq_no: index.last,
        min_seq_no: index.runs.first().map(|run| run.first),
        max_term: index.term,
        operations: index.operations(),
        torn,
    };
    Ok(Scanned {
        index,
        opened,
        end,
        checkpoint,
    })
}

fn read_head(fs: &dyn Vfs, path: &Path) -> Result<Vec<u8>> {
    let file = fs.open(path).map_err(Error::io("open", path))?;
    let mut head = vec![0; HEADER];
    let read = file.read_at(&mut head, 0).map_err(Error::io("read", path))?;
    head.truncate(read);
    Ok(head)
}

struct Frames {
    /// Where the first bad frame begins, or the end.
    good_to: usize,
    /// What is wrong with it.
    bad: Option<&'static str>,
    /// The highest `synced_to` inside this generation that any frame states, also one beyond the bad one.
    synced: u64,
}

/// Takes frames into the index until the first bad one.
fn frames(index: &mut Index, bytes: &Bytes, path: &Path, generation: u64, seed: u64) -> Result<Frames> {
    let mut found = Frames {
        good_to: HEADER,
        bad: None,
        synced: 0,
    };
    let stated = |found: &mut Frames, place: Place| {
        if place.generation == generation {
            found.synced = found.synced.max(place.offset);
        }
    };
    while found.good_to < bytes.len() {
        let offset = found.good_to;
        let (synced_to, records) = match format::frame_at(bytes, offset, seed) {
            Ok(frame) => frame,
            Err(reason) => {
                found.bad = Some(reason);
                break;
            }
        };
        stated(&mut found, synced_to);
        let corrupt = |reason: String| Error::corrupt(path, offset as u64, reason);
        let operations = decode(bytes.slice(records.clone())).map_err(|error| corrupt(error.to_string()))?;
        take(index, &operations, generation, offset, records.end).map_err(corrupt)?;
        found.good_to = records.end;
    }
    // past a bad head nothing tells where the next one begins
    let mut offset = found.good_to;
    while offset + FRAME <= bytes.len() {
        match format::head_at(bytes, offset, seed) {
            Ok(head) => {
                stated(&mut found, head.synced_to);
                offset = offset.saturating_add(head.bytes);
            }
            Err(_) => offset += 1,
        }
    }
    Ok(found)
}

fn take(
    index: &mut Index,
    operations: &[Operation],
    generation: u64,
    offset: usize,
    end: usize,
) -> Result<(), String> {
    let Some(first) = operations.first() else {
        return Err("the frame holds no record".to_owned());
    };
    if let OperationKind::TermStart { keep_to } = first.kind {
        index.cut(first.term, keep_to);
        return Ok(());
    }
    let mut expected = index.next();
    for operation in operations {
        if operation.seq_no != expected {
            return Err(format!(
                "operation {} stands where {expected} is due",
                operation.seq_no
            ));
        }
        expected += 1;
    }
    index.add(
        first.seq_no,
        expected - 1,
        generation,
        offset as u64,
        (end - offset) as u64,
    );
    Ok(())
}
