//! The log as the Raft library sees it: reads come from memory, writes go in order through one thread that syncs.

use super::{
    Entry, LogId, OpenError, StorageError, TypeConfig, Vote,
    log_file::{Content, LogFile, Record},
    write_error,
};
use openraft::{LogState, RaftLogReader, storage::LogFlushed, storage::RaftLogStorage};
use parking_lot::Mutex;
use segmentry_vfs::Vfs;
use std::{
    fmt::Debug,
    io,
    ops::RangeBounds,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};
use tokio::sync::oneshot;
use tracing::{error, warn};

/// The file is rewritten after a purge once it is longer than this and holds mostly purged entries.
const REWRITE_ABOVE: u64 = 1 << 20;

enum Job {
    Append(Record, LogFlushed<TypeConfig>),
    Write(Record, oneshot::Sender<io::Result<()>>),
    /// Purged: the memory no longer holds the entries, so the file may be replaced by what it does hold.
    Purge(Record, oneshot::Sender<io::Result<()>>),
    Stop(Record),
}

/// Shared by the library's core (writer) and its replication tasks (readers).
#[derive(Clone)]
pub struct LogStore {
    content: Arc<Mutex<Content>>,
    jobs: mpsc::Sender<Job>,
    size: Arc<AtomicU64>,
}

/// Owner of the writer thread.
pub struct LogWriter {
    store: LogStore,
    thread: JoinHandle<()>,
}

impl LogWriter {
    /// Writes what is known to be committed, and joins the thread. Blocks.
    pub fn stop(self) {
        let committed = self.store.content.lock().committed;
        let record = Record {
            committed,
            ..Record::default()
        };
        // An error here means that the thread is gone already: then there is nothing to stop.
        let _ = self.store.jobs.send(Job::Stop(record));
        if self.thread.join().is_err() {
            error!("the writer of the metadata log ended by a panic");
        }
    }
}

/// Opens the log below `dir`. Blocks.
pub fn open(fs: Arc<dyn Vfs>, dir: &Path) -> Result<(LogStore, LogWriter), OpenError> {
    let (file, content, torn) = LogFile::open(fs, dir)?;
    if torn > 0 {
        warn!(
            bytes = torn,
            "the end of the metadata log was cut off in a write that nobody was told of, removed"
        );
    }
    let size = Arc::new(AtomicU64::new(file.len()));
    let (jobs, queue) = mpsc::channel();
    let store = LogStore {
        content: Arc::new(Mutex::new(content)),
        jobs,
        size,
    };
    let shared = store.clone();
    let thread = std::thread::Builder::new()
        .name("meta-log".into())
        .spawn(move || write_in_order(file, &queue, &shared.content, &shared.size))
        .map_err(|source| OpenError::Io {
            path: dir.to_owned(),
            source,
        })?;
    Ok((store.clone(), LogWriter { store, thread }))
}

fn write_in_order(
    mut file: LogFile,
    queue: &mpsc::Receiver<Job>,
    content: &Mutex<Content>,
    size: &AtomicU64,
) {
    while let Ok(job) = queue.recv() {
        match job {
            Job::Append(record, done) => {
                let outcome = file.append(&record);
                size.store(file.len(), Ordering::Relaxed);
                done.log_io_completed(outcome);
            }
            // A receiver that is gone asks for no answer.
            Job::Write(record, done) => {
                let _ = done.send(file.append(&record));
            }
            Job::Purge(record, done) => {
                let mut outcome = file.append(&record);
                if outcome.is_ok() && file.len() > REWRITE_ABOVE {
                    // The library waits for this answer before its next write, so memory and file agree.
                    let whole = content.lock().clone();
                    outcome = file.rewrite(&whole);
                }
                size.store(file.len(), Ordering::Relaxed);
                let _ = done.send(outcome);
            }
            Job::Stop(record) => {
                if record.committed.is_some()
                    && let Err(e) = file.append(&record)
                {
                    warn!(error = %e, "the last committed position was not written");
                }
                return;
            }
        }
    }
}

impl LogStore {
    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// True while there is neither a vote nor an entry: a node that never belonged to a cluster.
    pub fn is_empty(&self) -> bool {
        let content = self.content.lock();
        content.vote.is_none() && content.last().is_none()
    }

    async fn write(
        &self,
        job: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Job,
    ) -> Result<(), StorageError> {
        let (done, outcome) = oneshot::channel();
        self.jobs
            .send(job(done))
            .map_err(|_| write_error("the writer of the metadata log has ended"))?;
        outcome
            .await
            .map_err(|_| write_error("the writer of the metadata log has ended"))?
            .map_err(write_error)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        Ok(self
            .content
            .lock()
            .entries
            .range(range)
            .map(|(_, e)| e.clone())
            .collect())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let content = self.content.lock();
        Ok(LogState {
            last_purged_log_id: content.purged,
            last_log_id: content.last(),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let record = || Record {
            vote: Some(*vote),
            ..Record::default()
        };
        self.write(|done| Job::Write(record(), done)).await?;
        self.content.lock().take_in(record());
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.content.lock().vote)
    }

    /// Kept in memory and written with the next frame: it only spares a restarted node to wait for a leader before it shows
    /// what it knew.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.content.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        let content = self.content.lock();
        // A frame may have been cut off that held the committed entry of this node's own memory.
        Ok(content.committed.min(content.last()))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let committed = {
            let mut content = self.content.lock();
            content.take_in(Record {
                entries: entries.clone(),
                ..Record::default()
            });
            content.committed
        };
        let record = Record {
            entries,
            committed,
            ..Record::default()
        };
        self.jobs
            .send(Job::Append(record, callback))
            .map_err(|_| write_error("the writer of the metadata log has ended"))
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let record = || Record {
            truncate: Some(log_id.index),
            ..Record::default()
        };
        self.content.lock().take_in(record());
        self.write(|done| Job::Write(record(), done)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let record = || Record {
            purged: Some(log_id),
            ..Record::default()
        };
        self.content.lock().take_in(record());
        self.write(|done| Job::Purge(record(), done)).await
    }
}
