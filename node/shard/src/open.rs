//! What lies in the folder of a copy: made, or opened.

use crate::{
    CopyFailure, OpenError, ShardConfig,
    record::{CopyRecord, io},
};
use segmentry_engine::{CommitPayload, Engine, EngineConfig, EngineError};
use segmentry_mapping::Limits;
use segmentry_state::{Index, ShardId};
use segmentry_translog::{Config as LogConfig, Translog};
use segmentry_vfs::create_dir_durably;
use std::{sync::Arc, time::Duration};
use tracing::warn;
use uuid::Uuid;

/// Identity that the log's files carry.
fn log_uuid(id: ShardId) -> Uuid {
    Uuid::from_u128(id.index.as_u128() ^ u128::from(id.shard))
}

pub(crate) fn log_config(index: &Index) -> LogConfig {
    LogConfig {
        durability: index.settings.durability,
        sync_interval: Duration::from_millis(index.settings.sync_interval_ms),
        generation_threshold: index.settings.generation_threshold_bytes,
        ..LogConfig::default()
    }
}

pub(crate) fn limits(index: &Index) -> Limits {
    Limits {
        total_fields: index.settings.total_fields_limit,
        ..Limits::default()
    }
}

/// What lies in a folder, opened.
pub(crate) struct Parts {
    pub engine: Engine,
    pub log: Translog,
    pub last: Option<u64>,
    pub suspect: bool,
}

impl Parts {
    pub fn create(config: &ShardConfig, history: Uuid, complete: bool) -> Result<Self, OpenError> {
        let ShardConfig {
            node,
            dir,
            index,
            shard,
            allocation,
        } = config;
        let fs = node.fs.as_ref();
        match CopyRecord::read(fs, dir) {
            Ok(Some(record)) if record.complete => {
                return Err(OpenError::Foreign {
                    dir: dir.clone(),
                    found: record.allocation,
                });
            }
            Ok(_) => {
                // An attempt that was not finished: nothing in it was ever acknowledged.
                if fs
                    .exists(dir)
                    .map_err(io(format!("look for [{}]", dir.display())))?
                {
                    fs.remove_dir_all(dir)
                        .map_err(io(format!("remove [{}]", dir.display())))?;
                }
            }
            Err(error) => return Err(error),
        }
        create_dir_durably(fs, dir).map_err(io(format!("make [{}]", dir.display())))?;
        let payload = CommitPayload {
            term: 0,
            max_seq_no: None,
            history,
            mapping_version: index.mapping.version,
        };
        let engine = Engine::create(engine_config(config), &payload)?;
        let id = ShardId {
            index: index.uuid,
            shard: *shard,
        };
        let log = Translog::create(
            Arc::clone(&node.fs),
            &dir.join("translog"),
            log_uuid(id),
            log_config(index),
        )?;
        // Last: without it the folder holds nothing.
        CopyRecord::new(*allocation, false, &node.kernel_boot_id, complete).write(fs, dir)?;
        Ok(Self {
            engine,
            log,
            last: None,
            suspect: false,
        })
    }

    pub fn open(config: &ShardConfig, history: Uuid) -> Result<Self, OpenError> {
        let ShardConfig {
            node,
            dir,
            index,
            shard,
            allocation,
        } = config;
        let fs = node.fs.as_ref();
        let record = CopyRecord::read(fs, dir)?.ok_or_else(|| OpenError::NoCopy(dir.clone()))?;
        if record.allocation != *allocation {
            return Err(OpenError::Foreign {
                dir: dir.clone(),
                found: record.allocation,
            });
        }
        if !record.complete {
            return Err(OpenError::Incomplete(dir.clone()));
        }
        let engine = Engine::open(engine_config(config))?;
        let commit = engine.durable_info();
        if commit.history != history {
            return Err(OpenError::History {
                found: commit.history,
                wanted: history,
            });
        }
        let id = ShardId {
            index: index.uuid,
            shard: *shard,
        };
        let (log, opened) = Translog::open(
            Arc::clone(&node.fs),
            &dir.join("translog"),
            log_uuid(id),
            log_config(index),
        )?;
        if opened.max_seq_no < commit.max_seq_no {
            return Err(OpenError::LogBehindCommit {
                log: opened.max_seq_no,
                commit: commit.max_seq_no,
            });
        }
        if let Some(torn) = &opened.torn {
            warn!(shard = %id, file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes, reason = torn.reason, "translog had a torn tail, it was cut");
        }
        // `AsyncLossBounded`: only the loss of the machine loses what the kernel had. The durability of now says nothing of the writes then.
        let suspect = !record.clean && record.kernel_boot_id != node.kernel_boot_id;
        // It stays so, whatever happens to this process, until the copy holds what the others hold.
        let kernel = if suspect {
            &record.kernel_boot_id
        } else {
            &node.kernel_boot_id
        };
        CopyRecord::new(*allocation, false, kernel, true).write(fs, dir)?;
        Ok(Self {
            engine,
            log,
            last: opened.max_seq_no,
            suspect,
        })
    }
}

fn engine_config(config: &ShardConfig) -> EngineConfig {
    EngineConfig {
        map_files: config.node.map_files,
        ..EngineConfig::new(
            Arc::clone(&config.node.fs),
            config.dir.join("index"),
            Arc::clone(&config.index.mapping),
        )
    }
}

/// Term of the last operation; 0 where nobody knows it any more.
pub(crate) fn term_of(
    log: &Translog,
    last: Option<u64>,
    commit: &CommitPayload,
) -> Result<u64, segmentry_translog::Error> {
    let Some(seq_no) = last else { return Ok(0) };
    if commit.max_seq_no == last {
        return Ok(commit.term);
    }
    match log.read(seq_no) {
        Ok(operation) => Ok(operation.map_or(0, |operation| operation.term)),
        Err(segmentry_translog::Error::Trimmed { .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Sorts what an engine's error means for the copy.
pub(crate) fn failure_of(error: &EngineError) -> CopyFailure {
    match error {
        EngineError::WriterKilled(_) | EngineError::Tantivy(_) => CopyFailure::Writer(error.to_string()),
        _ => CopyFailure::Engine(error.to_string()),
    }
}
