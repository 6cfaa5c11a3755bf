//! What travels between copies, and how long it may take.
//!
//! | path | request | answer |
//! | --- | --- | --- |
//! | `…/append` | [`encode_batch`] | [`Appended`] |
//! | `…/state` | [`Which`] | `Option<LogState>` |
//! | `…/pin` | [`PinRequest`] | [`Pinned`] |
//! | `…/files` | [`FilesRequest`] (JSON) | stream: the bytes of the files, one after the other, in the order asked for |
//! | `…/unpin` | pin | `()` |
//! | `…/ready` | [`Ready`] | `()`: the primary continues the log of this copy, and has it in sync once it has caught up |
//! | `…/checkpoint` | [`Notice`] | `()` |
//! | `…/show` | [`Show`] | `Option<u64>`: what the copy shows |
//!
//! All below `/_data/replication/`. Where nothing else is said, both ways are postcard.

use bytes::{BufMut, Bytes, BytesMut};
use segmentry_engine::Checkpoint;
use segmentry_shard::{AppendRefusal, Batch, LogState, TermStart};
use segmentry_state::{AllocationId, ShardId};
use segmentry_wire::{CallError, Client, Peer, RemoteError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;
use uuid::Uuid;

pub(crate) const APPEND: &str = "/_data/replication/append";
pub(crate) const STATE: &str = "/_data/replication/state";
pub(crate) const PIN: &str = "/_data/replication/pin";
pub(crate) const FILES: &str = "/_data/replication/files";
pub(crate) const UNPIN: &str = "/_data/replication/unpin";
pub(crate) const READY: &str = "/_data/replication/ready";
pub(crate) const CHECKPOINT: &str = "/_data/replication/checkpoint";
pub(crate) const SHOW: &str = "/_data/replication/show";

/// Silence of a copy that a write needs, until it is failed.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);
/// The same for a copy whose node answers that it is not open yet, and during a prepared restart.
pub(crate) const OPENING: Duration = Duration::from_secs(60);
/// One batch; beyond it the copy counts as silent.
pub(crate) const APPEND_DEADLINE: Duration = SILENCE;
/// A small call.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Silence in a stream of files.
pub(crate) const FILES_SILENCE: Duration = Duration::from_secs(30);
/// Longest wait for copies to show a write.
pub(crate) const REFRESH_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of operations in one batch.
pub(crate) const BATCH_BYTES: usize = 4 << 20;
/// Type of the error of a copy that is not here, or not what was asked for.
pub(crate) const NOT_HERE: &str = "copy_not_here";

/// One copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Which {
    pub shard: ShardId,
    pub allocation: AllocationId,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    which: Which,
    term: u64,
    start: Option<TermStart>,
    previous: Option<u64>,
    global_checkpoint: Option<u64>,
    primary_last: Option<u64>,
    sync: bool,
}

/// Answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Appended {
    Done(LogState),
    Refused(AppendRefusal),
    /// The copy is not open (yet).
    NotHere(String),
}

/// Asks for the newest checkpoint of a primary, and holds its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinRequest {
    pub which: Which,
    /// Term of the primary that is meant.
    pub term: u64,
    /// The copy is being built: operations behind the checkpoint are held as well.
    pub recovery: bool,
    /// Version that the copy has.
    pub have: Option<u64>,
}

/// A held checkpoint; none where the copy has the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pinned {
    pub pin: Option<(Uuid, Checkpoint)>,
}

/// Files of a held checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilesRequest {
    pub pin: Uuid,
    pub names: Vec<String>,
}

/// A copy is complete and takes operations from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub which: Which,
    pub term: u64,
}

/// A primary of SEGMENT has a new checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    pub which: Which,
    pub term: u64,
    pub meta_version: u64,
}

/// Makes a copy show operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Show {
    pub which: Which,
    pub term: u64,
    pub seq_no: u64,
    /// At once; else with its periodic refresh.
    pub force: bool,
    pub global_checkpoint: Option<u64>,
    /// How long it may take.
    pub milliseconds: u64,
}

/// Length of the header (u32, little-endian), header, operations as the log encodes them.
pub(crate) fn encode_batch(which: Which, batch: &Batch) -> Result<Bytes, String> {
    let Batch {
        term,
        start,
        previous,
        operations,
        global_checkpoint,
        primary_last,
        sync,
    } = batch;
    let header = Header {
        which,
        term: *term,
        start: *start,
        previous: *previous,
        global_checkpoint: *global_checkpoint,
        primary_last: *primary_last,
        sync: *sync,
    };
    let header = postcard::to_stdvec(&header).map_err(|error| error.to_string())?;
    let mut body = Vec::new();
    segmentry_translog::encode(operations, &mut body).map_err(|error| error.to_string())?;
    let mut out = BytesMut::with_capacity(4 + header.len() + body.len());
    out.put_u32_le(u32::try_from(header.len()).map_err(|error| error.to_string())?);
    out.put_slice(&header);
    out.put_slice(&body);
    Ok(out.freeze())
}

pub(crate) fn decode_batch(body: &Bytes) -> Result<(Which, Batch), String> {
    let cut = || "a batch is cut".to_owned();
    let length = body
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or_else(cut)?;
    let end = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_add(4))
        .ok_or_else(cut)?;
    let header = body.get(4..end).ok_or_else(cut)?;
    let Header {
        which,
        term,
        start,
        previous,
        global_checkpoint,
        primary_last,
        sync,
    } = postcard::from_bytes(header).map_err(|error| error.to_string())?;
    let operations = segmentry_translog::decode(body.slice(end..)).map_err(|error| error.to_string())?;
    Ok((
        which,
        Batch {
            term,
            start,
            previous,
            operations,
            global_checkpoint,
            primary_last,
            sync,
        },
    ))
}

/// One call, postcard both ways.
pub(crate) async fn call<Req: Serialize, Resp: DeserializeOwned>(
    client: &Client,
    peer: &Peer,
    path: &'static str,
    request: &Req,
    deadline: Duration,
) -> Result<Resp, CallError> {
    let body = postcard::to_stdvec(request).map_err(|error| RemoteError::internal(error.to_string()))?;
    let answer = client.call_bytes(peer, path, Bytes::from(body), deadline).await?;
    read_answer(path, &answer)
}

pub(crate) fn read_answer<Resp: DeserializeOwned>(
    path: &'static str,
    answer: &[u8],
) -> Result<Resp, CallError> {
    postcard::from_bytes(answer).map_err(|error| {
        RemoteError::new(
            502,
            "unreadable_answer",
            format!("answer of {path} cannot be read: {error}"),
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use segmentry_translog::{Operation, OperationKind};

    #[test]
    fn a_batch_arrives_as_it_was_sent_and_a_cut_one_is_refused() {
        let which = Which {
            shard: ShardId {
                index: Uuid::from_u128(1),
                shard: 2,
            },
            allocation: Uuid::from_u128(3),
        };
        let operation = Operation {
            seq_no: 7,
            term: 2,
            version: 1,
            mapping_version: 4,
            kind: OperationKind::Index,
            id: "a".into(),
            routing: Some("r".into()),
            source: Bytes::from_static(b"{}"),
        };
        let batch = Batch {
            term: 2,
            start: Some(TermStart { keep_to: Some(6) }),
            previous: Some(6),
            operations: vec![operation],
            global_checkpoint: None,
            primary_last: Some(7),
            sync: true,
        };
        let bytes = encode_batch(which, &batch).unwrap();
        assert_eq!(decode_batch(&bytes).unwrap(), (which, batch));
        for end in [0, 3, 10, bytes.len() - 1] {
            assert!(decode_batch(&bytes.slice(..end)).is_err(), "{end}");
        }
    }
}
