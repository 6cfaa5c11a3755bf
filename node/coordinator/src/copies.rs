//! The door to the copies of one node, and the internal routes that lead through it.
//!
//! | path | request | answer |
//! | --- | --- | --- |
//! | `/_data/doc/write` | [`ShardWrite`] (postcard) | [`ShardWritten`] |
//! | `/_data/doc/get` | [`ShardGet`] (postcard) | `Vec<Option<Found>>` |
//! | `/_data/search/query` | [`ShardSearch`] (JSON) | [`PartialResult`] |
//! | `/_data/search/count` | [`ShardSearch`] (JSON) | `u64` |
//! | `/_data/copy/refresh`, `/_data/copy/flush` | [`ShardId`] (JSON) | `()` |
//! | `/_data/copy/stats` | list of [`ShardId`] (JSON) | list of [`CopyStats`] |
//!
//! Every answer is a postcard `Result<T, ApiError>`: a refusal of a copy keeps all that a client is to be told.

use crate::{
    ApiError,
    document::{Found, ShardGet, ShardWrite, ShardWritten},
    stats::CopyStats,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use segmentry_engine::search::PartialResult;
use segmentry_query::SearchRequest;
use segmentry_state::ShardId;
use segmentry_wire::{RemoteError, Routes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// Type of the error of a copy that is not here, or not primary: nothing was done, the cluster state tells who is.
pub const NOT_HERE: &str = "shard_not_here_exception";
/// Type of the error of a write that may have been applied.
pub const UNKNOWN_OUTCOME: &str = "unknown_outcome_exception";

pub(crate) const WRITE: &str = "/_data/doc/write";
pub(crate) const GET: &str = "/_data/doc/get";
pub(crate) const SEARCH: &str = "/_data/search/query";
pub(crate) const COUNT: &str = "/_data/search/count";
pub(crate) const REFRESH: &str = "/_data/copy/refresh";
pub(crate) const FLUSH: &str = "/_data/copy/flush";
pub(crate) const STATS: &str = "/_data/copy/stats";

/// A search of one copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSearch {
    /// Which shard.
    pub shard: ShardId,
    /// Position of this shard among those of the request: breaks ties between equal hits.
    pub ordinal: u32,
    /// What to search; a count looks at its query alone.
    pub request: Arc<SearchRequest>,
}

/// What a call to a copy answers.
pub type Answer<T> = BoxFuture<'static, Result<T, ApiError>>;

/// The copies of this node. An error of type [`NOT_HERE`] promises that nothing was done.
pub trait Copies: Send + Sync + 'static {
    /// Writes on the primary; resolves when every operation is acknowledged or refused.
    fn write(&self, request: ShardWrite) -> Answer<ShardWritten>;
    /// Reads by id on the primary.
    fn get(&self, request: ShardGet) -> Answer<Vec<Option<Found>>>;
    /// Searches whichever copy of the shard is here.
    fn search(&self, request: ShardSearch) -> Answer<PartialResult>;
    /// Counts on whichever copy of the shard is here.
    fn count(&self, request: ShardSearch) -> Answer<u64>;
    /// Makes what the copy holds searchable.
    fn refresh(&self, shard: ShardId) -> Answer<()>;
    /// Makes a durable commit of the copy.
    fn flush(&self, shard: ShardId) -> Answer<()>;
    /// Numbers of those of the copies that are open here.
    fn stats(&self, shards: Vec<ShardId>) -> Answer<Vec<CopyStats>>;
}

/// Routes through which other nodes reach the copies of this one.
pub(crate) fn routes(copies: &Arc<dyn Copies>) -> Routes {
    let routes = Routes::new();
    let routes = add(routes, WRITE, postcard_in, copies, |copies, request| {
        copies.write(request)
    });
    let routes = add(routes, GET, postcard_in, copies, |copies, request| {
        copies.get(request)
    });
    let routes = add(routes, SEARCH, json_in, copies, |copies, request| {
        copies.search(request)
    });
    let routes = add(routes, COUNT, json_in, copies, |copies, request| {
        copies.count(request)
    });
    let routes = add(routes, REFRESH, json_in, copies, |copies, shard| {
        copies.refresh(shard)
    });
    let routes = add(routes, FLUSH, json_in, copies, |copies, shard| {
        copies.flush(shard)
    });
    add(routes, STATS, json_in, copies, |copies, shards| {
        copies.stats(shards)
    })
}

fn add<Req, Resp>(
    routes: Routes,
    path: &'static str,
    read: fn(&[u8]) -> Result<Req, RemoteError>,
    copies: &Arc<dyn Copies>,
    run: fn(&dyn Copies, Req) -> Answer<Resp>,
) -> Routes
where
    Req: Send + 'static,
    Resp: Serialize + Send + 'static,
{
    let copies = Arc::clone(copies);
    routes.bytes(path, move |_, body: Bytes| {
        let copies = Arc::clone(&copies);
        async move {
            let answer = run(copies.as_ref(), read(&body)?).await;
            postcard::to_stdvec(&answer).map(Bytes::from).map_err(|error| {
                RemoteError::internal(format!("answer of {path} cannot be encoded: {error}"))
            })
        }
    })
}

fn postcard_in<Req: DeserializeOwned>(body: &[u8]) -> Result<Req, RemoteError> {
    postcard::from_bytes(body).map_err(|error| unreadable(&error))
}

fn json_in<Req: DeserializeOwned>(body: &[u8]) -> Result<Req, RemoteError> {
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::fmt::Display) -> RemoteError {
    RemoteError::new(
        400,
        "unreadable_request",
        format!("request cannot be read: {error}"),
    )
}
