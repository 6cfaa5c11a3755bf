//! The one thread that writes: whatever arrived while its last sync ran becomes one group, with one write and at most one
//! sync (group commit without a timer).

use crate::{
    Error, Result,
    format::{self, CHECKPOINT, HEADER, Header, Place, SLOT, Slot},
    index::Generation,
    queue::{Inner, Pending, Request},
    scan::millis,
};
use rand::Rng as _;
use segmentry_settings::Durability;
use segmentry_vfs::{Vfs, VfsFile};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use uuid::Uuid;

/// After so much quiet the checkpoint is written, so that opening need not search for the durable end.
const QUIET: Duration = Duration::from_millis(500);

/// Makes a generation, durable with its name.
pub fn make_generation(
    fs: &dyn Vfs,
    dir: &Path,
    shard: Uuid,
    number: u64,
    base: u64,
    term: u64,
) -> Result<Generation> {
    let path = format::path(dir, number);
    let seed = rand::rng().random();
    let header = Header {
        shard,
        generation: number,
        seed,
        base,
        term,
    };
    let file: Arc<dyn VfsFile> = Arc::from(fs.create(&path).map_err(Error::io("create", &path))?);
    file.append(&header.encode())
        .and_then(|()| file.sync())
        .map_err(Error::io("write", &path))?;
    fs.sync_dir(dir).map_err(Error::io("sync", dir))?;
    Ok(Generation {
        path,
        file,
        seed,
        base,
        bytes: HEADER as u64,
        modified_ms: millis(SystemTime::now()),
    })
}

pub struct Committer {
    pub inner: Arc<Inner>,
    /// End of what was written.
    pub end: Place,
    /// End of what is synced.
    pub durable: Place,
    pub counter: u64,
    /// Durable end of the newest checkpoint slot.
    pub checkpointed: Place,
    pub unsynced_since: Option<Instant>,
}

impl Committer {
    pub fn run(mut self) {
        let mut closing = None;
        loop {
            let (batches, requests) = self.take();
            if requests.iter().any(|request| matches!(request, Request::Abandon)) {
                return;
            }
            let done = self.commit(batches, requests, &mut closing);
            if let Err(error) = done {
                self.fail(&error);
                return;
            }
            if let Some(reply) = closing {
                let last = self.checkpoint();
                match &last {
                    Ok(()) => self.inner.closed(),
                    Err(error) => self.fail(error),
                }
                // whoever closed may have gone away
                let _ = reply.send(last);
                return;
            }
        }
    }

    /// Waits for work. Nothing in both lists: a deadline has passed.
    fn take(&self) -> (Vec<Pending>, Vec<Request>) {
        let mut queue = self.inner.queue.lock();
        loop {
            if !queue.batches.is_empty() || !queue.requests.is_empty() {
                return (
                    std::mem::take(&mut queue.batches),
                    std::mem::take(&mut queue.requests),
                );
            }
            let config = self.inner.config.lock();
            let interval = config.sync_interval;
            drop(config);
            let due = match self.unsynced_since {
                Some(since) => (since + interval).saturating_duration_since(Instant::now()),
                None if self.checkpointed != self.durable => QUIET,
                None => Duration::from_secs(3600),
            };
            if due.is_zero() || self.inner.wake.wait_for(&mut queue, due).timed_out() {
                return Default::default();
            }
        }
    }

    fn commit(
        &mut self,
        batches: Vec<Pending>,
        requests: Vec<Request>,
        closing: &mut Option<tokio::sync::oneshot::Sender<Result<()>>>,
    ) -> Result<()> {
        let idle = batches.is_empty() && requests.is_empty();
        let mut sync = idle && self.unsynced_since.is_some();
        let mut group: Vec<Pending> = Vec::new();
        for batch in batches {
            if let Some(term) = batch.term_start {
                // what stands before it is written first, itself alone
                self.write(std::mem::take(&mut group))?;
                self.write(vec![batch])?;
                // not `sync`: what is void from here on must never be told to be persisted
                self.sync_file()?;
                self.inner.index.lock().cut(term.term, term.keep_to);
                self.inner.progress.send_modify(|at| {
                    at.written = term.keep_to;
                    at.persisted = term.keep_to;
                });
                continue;
            }
            sync |= batch.sync;
            group.push(batch);
        }
        self.write(group)?;
        let mut replies = Vec::new();
        let mut trims = Vec::new();
        for request in requests {
            match request {
                Request::Sync(reply) => {
                    sync = true;
                    replies.push(reply);
                }
                Request::Trim(below, reply) => trims.push((below, reply)),
                Request::Close(reply) => {
                    sync = true;
                    *closing = Some(reply);
                }
                Request::Look | Request::Abandon => {}
            }
        }
        let overdue = self
            .unsynced_since
            .is_some_and(|since| since.elapsed() >= self.inner.config.lock().sync_interval);
        // also a batch that was judged under async and came just after the change: nothing stays unsynced in request mode
        let request_mode = self.inner.config.lock().durability == Durability::Request;
        if sync || overdue || request_mode {
            self.sync()?;
        }
        for reply in replies {
            let _ = reply.send(Ok(()));
        }
        for (below, reply) in trims {
            self.trim(below)?;
            let _ = reply.send(Ok(()));
        }
        if idle && self.unsynced_since.is_none() && self.checkpointed != self.durable {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn write(&mut self, group: Vec<Pending>) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let threshold = self.inner.config.lock().generation_threshold;
        if self.end.offset >= threshold.max(HEADER as u64 + 1) {
            self.roll()?;
        }
        let (file, seed) = self.active()?;
        let mut bytes = Vec::with_capacity(
            group
                .iter()
                .map(|batch| batch.records.len() + format::FRAME)
                .sum(),
        );
        let mut frames = Vec::with_capacity(group.len());
        for batch in &group {
            let start = bytes.len();
            let length = u32::try_from(batch.records.len())
                .map_err(|_| Error::Invalid("a batch of 4 GiB or more".to_owned()))?;
            format::put_frame(&mut bytes, seed, self.durable, &batch.records, length);
            frames.push((batch, start, bytes.len() - start));
        }
        file.append(&bytes).map_err(Error::io("write", file.path()))?;
        let mut index = self.inner.index.lock();
        let generation = self.end.generation;
        for (batch, start, length) in frames {
            if batch.term_start.is_none() {
                let offset = self.end.offset + start as u64;
                index.add(batch.first, batch.last, generation, offset, length as u64);
            }
        }
        self.end.offset += bytes.len() as u64;
        if let Some(active) = index.generations.get_mut(&generation) {
            active.bytes = self.end.offset;
            active.modified_ms = millis(SystemTime::now());
        }
        drop(index);
        self.unsynced_since.get_or_insert_with(Instant::now);
        let last = group
            .iter()
            .filter(|batch| batch.term_start.is_none())
            .map(|batch| batch.last)
            .next_back();
        {
            let mut work = self.inner.work.lock();
            work.groups += 1;
            work.batches += group.len() as u64;
            work.largest_group = work.largest_group.max(group.len() as u64);
        }
        // the permits of their bytes go back
        drop(group);
        if let Some(last) = last {
            self.inner.progress.send_modify(|at| at.written = Some(last));
        }
        Ok(())
    }

    fn active(&self) -> Result<(Arc<dyn VfsFile>, u64)> {
        let index = self.inner.index.lock();
        let active = index.generations.get(&self.end.generation).ok_or(Error::Closed)?;
        Ok((active.file.clone(), active.seed))
    }

    fn sync(&mut self) -> Result<()> {
        if self.sync_file()? {
            self.inner.progress.send_modify(|at| at.persisted = at.written);
        }
        Ok(())
    }

    /// Whether there was anything to sync.
    fn sync_file(&mut self) -> Result<bool> {
        if self.unsynced_since.is_none() {
            return Ok(false);
        }
        let (file, _) = self.active()?;
        file.sync().map_err(Error::io("sync", file.path()))?;
        self.unsynced_since = None;
        self.durable = self.end;
        self.inner.work.lock().syncs += 1;
        Ok(true)
    }

    /// The generation is durable as a whole before the next one is made.
    fn roll(&mut self) -> Result<()> {
        self.sync()?;
        let Inner {
            fs,
            dir,
            shard,
            index,
            ..
        } = &*self.inner;
        let (number, base, term) = {
            let index = index.lock();
            (self.end.generation + 1, index.next(), index.term)
        };
        let generation = make_generation(fs.as_ref(), dir, *shard, number, base, term)?;
        index.lock().generations.insert(number, generation);
        self.end = Place {
            generation: number,
            offset: HEADER as u64,
        };
        self.durable = self.end;
        self.checkpoint()
    }

    fn trim(&mut self, below: u64) -> Result<()> {
        let whole = {
            let index = self.inner.index.lock();
            let held = index
                .generations
                .get(&self.end.generation)
                .is_some_and(|active| active.bytes > HEADER as u64);
            held && index.next() <= index.pinned().map_or(below, |pinned| pinned.min(below))
        };
        if whole {
            self.roll()?;
        }
        let gone: Vec<Generation> = {
            let mut index = self.inner.index.lock();
            // one step under the lock: a pin that comes after it is not promised what goes here
            let numbers = index.trimmable(below);
            numbers
                .iter()
                .filter_map(|number| index.forget(*number))
                .collect()
        };
        if gone.is_empty() {
            return Ok(());
        }
        // first, so that no checkpoint names operations or files that go: at opening those would be missed as damage
        self.write_checkpoint()?;
        let dir = &self.inner.dir;
        for Generation { path, .. } in gone {
            self.inner.fs.remove(&path).map_err(Error::io("remove", &path))?;
            // one by one: removals that come durable in another order would leave a hole, which reads as damage
            self.inner.fs.sync_dir(dir).map_err(Error::io("sync", dir))?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        if self.checkpointed == self.durable {
            return Ok(());
        }
        self.write_checkpoint()
    }

    /// Writes the other slot; never before the data that it vouches for is synced.
    fn write_checkpoint(&mut self) -> Result<()> {
        self.counter += 1;
        let slot = {
            let index = self.inner.index.lock();
            let active = index
                .generations
                .get(&self.durable.generation)
                .ok_or(Error::Closed)?;
            Slot {
                counter: self.counter,
                seed: active.seed,
                end: self.durable,
                first: index.runs.first().map(|run| run.first),
                last: index.last,
            }
        };
        let path = self.inner.dir.join(CHECKPOINT);
        let file = self.inner.fs.open(&path).map_err(Error::io("open", &path))?;
        file.write_at(&slot.encode(), slot.offset())
            .and_then(|()| file.sync())
            .map_err(Error::io("write", &path))?;
        self.inner.work.lock().checkpoint_syncs += 1;
        self.checkpointed = self.durable;
        Ok(())
    }

    /// For good: what the disk holds now is not known, and a second sync may lie.
    fn fail(&self, error: &Error) {
        let reason = error.to_string();
        tracing::error!(dir = %self.inner.dir.display(), reason, "translog failed");
        self.inner.fail(&reason);
    }
}

/// The first content of a checkpoint file: one valid slot for a log that holds nothing.
pub fn first_checkpoint(slot: &Slot) -> Vec<u8> {
    let mut bytes = slot.encode();
    bytes.resize(usize::try_from(2 * SLOT).unwrap_or(bytes.len()), 0);
    bytes
}
