//! Building a copy from the primary's files.
//!
//! | step | before | after | a cancel leaves |
//! | --- | --- | --- | --- |
//! | pin | an empty, incomplete folder | the primary holds a checkpoint and the operations behind it | a pin that ends by itself |
//! | mapping | – | this node knows the mapping of the checkpoint | – |
//! | link, fetch | – | every file is here and verified | an incomplete folder, removed by the next attempt |
//! | complete | – | the commit is durable, the log begins behind it, `copy.json` says complete | as above, or the next state; a log that has begun begins no second time, so the keeper closes the copy |
//! | ready | a complete copy that is not in sync | the primary sends operations, awaits the copy, then `AddInSync` | a complete copy: the next attempt begins with `ready` |

use crate::{
    applier::Inner,
    folders,
    protocol::{
        CALL_DEADLINE, FILES, FILES_SILENCE, FilesRequest, PIN, PinRequest, Pinned, READY, Ready, UNPIN,
        Which, call,
    },
};
use futures::StreamExt;
use segmentry_engine::{Checkpoint, Engine, EngineError, FileMeta};
use segmentry_shard::{CopyError, Role, ShardCopy};
use segmentry_wire::{CallError, Peer};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tracing::{info, warn};
use uuid::Uuid;

/// How long a copy waits for a mapping that the primary has already.
const MAPPING: Duration = Duration::from_secs(30);

/// Recoveries that are remembered for reports.
const REMEMBERED: usize = 256;

/// Why an attempt failed; another one follows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{0}")]
    Other(String),
}

/// What an attempt moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Files of the checkpoint.
    pub files: u64,
    /// Files that were linked from an older folder.
    pub linked: u64,
    /// Files that came over the network.
    pub fetched: u64,
    /// Bytes that came over the network.
    pub bytes: u64,
}

/// Builds the copy where it is incomplete, then asks the primary to continue its log.
pub(crate) async fn recover(
    inner: &Arc<Inner>,
    copy: &Arc<ShardCopy>,
    primary: &Peer,
    term: u64,
) -> Result<(), RecoveryError> {
    let which = Which {
        shard: copy.shard(),
        allocation: copy.allocation(),
    };
    if copy.role() == Role::Recovering {
        let request = PinRequest {
            which,
            term,
            recovery: true,
            have: None,
        };
        let pinned: Pinned = call(&inner.client, primary, PIN, &request, CALL_DEADLINE).await?;
        let Some((pin, checkpoint)) = pinned.pin else {
            return Err(RecoveryError::Other("the primary holds no checkpoint".to_owned()));
        };
        wait_for_mapping(copy, checkpoint.payload.mapping_version).await?;
        let moved = receive(inner, copy, primary, pin, &checkpoint, true).await?;
        inner.moved.send_modify(|all| {
            all.push((which.allocation, moved));
            let surplus = all.len().saturating_sub(REMEMBERED);
            all.drain(..surplus);
        });
        info!(shard = %which.shard, allocation = %which.allocation, files = moved.files, linked = moved.linked, fetched = moved.fetched, bytes = moved.bytes, max_seq_no = ?checkpoint.payload.max_seq_no, "files of the primary are here");
        copy.complete(checkpoint, term).await?;
    }
    call::<_, ()>(
        &inner.client,
        primary,
        READY,
        &Ready { which, term },
        CALL_DEADLINE,
    )
    .await?;
    Ok(())
}

pub(crate) async fn wait_for_mapping(copy: &Arc<ShardCopy>, version: u64) -> Result<(), RecoveryError> {
    let begun = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(2);
    // The keeper of the copy hands the index over with each cluster state.
    while copy.mapping_version() < version {
        if begun.elapsed() > MAPPING {
            return Err(RecoveryError::Other(format!(
                "mapping version {version} did not arrive, known is {}",
                copy.mapping_version()
            )));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
    Ok(())
}

/// Brings the missing files of a checkpoint here, in one stream, verified.
pub(crate) async fn receive(
    inner: &Arc<Inner>,
    copy: &Arc<ShardCopy>,
    primary: &Peer,
    pin: Uuid,
    checkpoint: &Checkpoint,
    link: bool,
) -> Result<Moved, RecoveryError> {
    let mut moved = Moved {
        files: checkpoint.files.len() as u64,
        ..Moved::default()
    };
    let (engine, dir, fs) = (
        Arc::clone(copy.engine()),
        copy.dir().to_owned(),
        Arc::clone(&inner.fs),
    );
    let wanted = checkpoint.clone();
    let missing = tokio::task::spawn_blocking(move || {
        let missing = engine.missing_files(&wanted);
        if !link || missing.is_empty() {
            return (missing, 0);
        }
        let older = folders::older_files(fs.as_ref(), &dir);
        let before = missing.len();
        let missing: Vec<FileMeta> = missing
            .into_iter()
            .filter(|file| !adopt(&engine, file, &older))
            .collect();
        let linked = (before - missing.len()) as u64;
        (missing, linked)
    });
    let (missing, linked) = missing
        .await
        .map_err(|error| RecoveryError::Other(error.to_string()))?;
    moved.linked = linked;
    if !missing.is_empty() {
        let names = missing.iter().map(|file| file.name.clone()).collect();
        let request = FilesRequest { pin, names };
        let mut chunks = inner
            .client
            .stream(primary, FILES, &request, FILES_SILENCE)
            .await?;
        let (send, receive) = tokio::sync::mpsc::channel::<bytes::Bytes>(4);
        let engine = Arc::clone(copy.engine());
        moved.fetched = missing.len() as u64;
        let writing = tokio::task::spawn_blocking(move || write_files(&engine, missing, receive));
        let mut broken = None;
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(chunk) => {
                    moved.bytes += chunk.len() as u64;
                    if send.send(chunk).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        drop(send);
        let written = writing
            .await
            .map_err(|error| RecoveryError::Other(error.to_string()))?;
        if let Some(error) = broken {
            return Err(error.into());
        }
        written?;
    }
    if !link {
        let unpinned: Result<(), CallError> = call(&inner.client, primary, UNPIN, &pin, CALL_DEADLINE).await;
        if let Err(error) = unpinned {
            warn!(shard = %copy.shard(), %error, "a held checkpoint ends by itself");
        }
    }
    Ok(moved)
}

fn adopt(engine: &Engine, file: &FileMeta, older: &[(String, std::path::PathBuf)]) -> bool {
    older
        .iter()
        .filter(|(name, _)| *name == file.name)
        .any(|(_, path)| match engine.adopt_file(file, path) {
            Ok(adopted) => adopted,
            Err(error) => {
                // Then it comes over the network.
                warn!(file = %path.display(), %error, "a file of an older copy was not linked");
                false
            }
        })
}

/// Cuts the stream into files. Blocks.
fn write_files(
    engine: &Engine,
    files: Vec<FileMeta>,
    mut chunks: tokio::sync::mpsc::Receiver<bytes::Bytes>,
) -> Result<(), RecoveryError> {
    let mut chunk = bytes::Bytes::new();
    for file in files {
        let mut left = file.len;
        let name = file.name.clone();
        let mut sink = engine.receive_file(file)?;
        while left > 0 {
            if chunk.is_empty() {
                chunk = chunks.blocking_recv().ok_or_else(|| {
                    RecoveryError::Other(format!("the stream of files ended within [{name}]"))
                })?;
            }
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            sink.write(&chunk.split_to(count))?;
            left -= count as u64;
        }
        sink.finish()?;
    }
    if !chunk.is_empty() || chunks.blocking_recv().is_some() {
        return Err(RecoveryError::Other(
            "the stream of files is longer than its files".to_owned(),
        ));
    }
    Ok(())
}

/// What recoveries moved, for reports and tests.
pub(crate) type MovedWatch = watch::Sender<Vec<(segmentry_state::AllocationId, Moved)>>;
