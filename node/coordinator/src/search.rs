//! Searches: one copy of each shard is asked, this node's first; another copy where one fails; the answers are merged.

use crate::{
    ApiError, Coordinator, ShardFailure,
    copies::{Answer, COUNT, Copies, SEARCH, ShardSearch},
    route::{Encoding, Failure},
};
use futures::{StreamExt, stream};
use segmentry_engine::search::{PartialResult, SearchResult};
use segmentry_query::{Query, SearchRequest};
use segmentry_state::{ClusterState, Index, Node, ShardId};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long one copy may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// Shards of one request that are asked at the same time.
const AT_ONCE: usize = 64;

/// Which copies may answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Preference {
    /// This node's copy where there is one, else each in turn.
    #[default]
    Any,
    /// `_primary`.
    Primary,
    /// `_replica`.
    Replica,
    /// `_local`: this node's copy where there is one.
    Local,
    /// `_only_local`: this node's copies.
    OnlyLocal,
    /// `_only_nodes:a,b`: copies on these nodes, by name or id; `*` matches.
    OnlyNodes(Vec<String>),
    /// Any other text: the same copies for the same text.
    Session(String),
}

impl Preference {
    /// Reads `preference`.
    ///
    /// # Errors
    /// A form that is not supported.
    pub fn parse(text: Option<&str>) -> Result<Self, ApiError> {
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(Self::Any);
        };
        if !text.starts_with('_') {
            return Ok(Self::Session(text.to_owned()));
        }
        let (word, list) = text.split_once(':').unwrap_or((text, ""));
        match (word, list.is_empty()) {
            ("_primary", true) => Ok(Self::Primary),
            ("_replica", true) => Ok(Self::Replica),
            ("_local", true) => Ok(Self::Local),
            ("_only_local", true) => Ok(Self::OnlyLocal),
            ("_only_nodes", false) => Ok(Self::OnlyNodes(list.split(',').map(str::to_owned).collect())),
            ("_shards" | "_prefer_nodes" | "_primary_first" | "_replica_first", _) => {
                Err(ApiError::unsupported(format!("preference [{text}]")))
            }
            _ => Err(ApiError::illegal(format!("no Preference for [{text}]"))),
        }
    }
}

/// `_shards` of a search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardTally {
    /// Shards.
    pub total: usize,
    /// Shards that answered.
    pub successful: usize,
    /// Shards of which no copy answered.
    pub failures: Vec<ShardFailure>,
}

/// A search that at least one shard answered.
#[derive(Debug)]
pub struct Searched {
    /// Hits and aggregations.
    pub result: SearchResult,
    /// `_shards`.
    pub shards: ShardTally,
    /// Index of each shard that was asked, by its ordinal; hits name their ordinal.
    pub targets: Vec<(Arc<Index>, u32)>,
    /// Milliseconds.
    pub took_ms: u64,
}

impl Coordinator {
    /// Searches indices. `routing` limits it to the shards of these values; `partial` takes answers of some shards for an
    /// answer.
    pub async fn search(
        &self,
        indices: &[Arc<Index>],
        request: SearchRequest,
        routing: Option<&str>,
        preference: &Preference,
        partial: bool,
    ) -> Result<Searched, ApiError> {
        let begun = Instant::now();
        for index in indices {
            let window = u64::try_from(request.from.saturating_add(request.size)).unwrap_or(u64::MAX);
            if window > index.settings.max_result_window {
                return Err(ApiError::illegal(format!(
                    "Result window is too large, from + size must be less than or equal to: [{}] but was [{window}]. See the \
                     scroll api for a more efficient way to request large data sets. This limit can be set by changing the \
                     [index.max_result_window] index level setting.",
                    index.settings.max_result_window
                ))
                .about(index));
            }
        }
        let request = Arc::new(request);
        let (partials, shards, targets) = self
            .scatter(
                indices,
                &request,
                routing,
                preference,
                partial,
                SEARCH,
                |copies, request| copies.search(request),
            )
            .await?;
        let partials: Vec<PartialResult> = partials.into_iter().map(|(_, partial)| partial).collect();
        // Merging is computation: it does not run where other requests wait.
        let merging =
            tokio::task::spawn_blocking(move || segmentry_engine::search::merge(partials, &request));
        let result = merging
            .await
            .map_err(|error| {
                ApiError::new(
                    500,
                    "internal_error",
                    format!("merging of partial results ended abnormally: {error}"),
                )
            })?
            .map_err(crate::error::search_error)?;
        Ok(Searched {
            result,
            shards,
            targets,
            took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Counts matches.
    pub async fn count(
        &self,
        indices: &[Arc<Index>],
        query: Query,
        routing: Option<&str>,
        preference: &Preference,
    ) -> Result<(u64, ShardTally), ApiError> {
        let now = i64::try_from(crate::now_ms()).unwrap_or(i64::MAX);
        let request = Arc::new(SearchRequest::new(query, now));
        let (counts, shards, _) = self
            .scatter(
                indices,
                &request,
                routing,
                preference,
                true,
                COUNT,
                |copies, request| copies.count(request),
            )
            .await?;
        Ok((counts.into_iter().map(|(_, count)| count).sum(), shards))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one internal function for searches and counts"
    )]
    #[allow(clippy::type_complexity, reason = "as above")]
    async fn scatter<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        indices: &[Arc<Index>],
        request: &Arc<SearchRequest>,
        routing: Option<&str>,
        preference: &Preference,
        partial: bool,
        path: &'static str,
        local: fn(&dyn Copies, ShardSearch) -> Answer<T>,
    ) -> Result<(Vec<(u32, T)>, ShardTally, Vec<(Arc<Index>, u32)>), ApiError> {
        let state = self.state();
        let targets: Vec<(Arc<Index>, u32)> = indices
            .iter()
            .flat_map(|index| {
                let mut shards: Vec<u32> = match routing {
                    None => (0..index.settings.number_of_shards).collect(),
                    Some(list) => list
                        .split(',')
                        .map(|value| index.shard_of("", Some(value)))
                        .collect(),
                };
                shards.sort_unstable();
                shards.dedup();
                shards.into_iter().map(|shard| (Arc::clone(index), shard))
            })
            .collect();
        let mut calls = Vec::with_capacity(targets.len());
        for (position, (index, shard)) in targets.iter().enumerate() {
            let ordinal = u32::try_from(position).unwrap_or(u32::MAX);
            let asked = ShardSearch {
                shard: ShardId {
                    index: index.uuid,
                    shard: *shard,
                },
                ordinal,
                request: Arc::clone(request),
            };
            let nodes = self.choose(&state, asked.shard, preference);
            calls.push(async move { (ordinal, self.ask(index, nodes, asked, path, local).await) });
        }
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
        let mut tally = ShardTally {
            total: targets.len(),
            ..ShardTally::default()
        };
        let mut results = Vec::with_capacity(answers.len());
        for (ordinal, answer) in answers {
            match answer {
                Ok(value) => results.push((ordinal, value)),
                Err(failure) => tally.failures.push(failure),
            }
        }
        results.sort_by_key(|(ordinal, _)| *ordinal);
        tally.successful = results.len();
        tally
            .failures
            .sort_by(|left, right| (&left.index, left.shard).cmp(&(&right.index, right.shard)));
        if !tally.failures.is_empty() && (results.is_empty() || !partial) {
            return Err(phase_error(tally, results.is_empty()));
        }
        Ok((results, tally, targets))
    }

    /// Nodes with a copy that may answer, in the order in which they are asked.
    fn choose(&self, state: &ClusterState, shard: ShardId, preference: &Preference) -> Vec<Node> {
        let own = self.inner.identity.node_id;
        let primary = state.shard(shard).and_then(|shard| shard.primary);
        let serving = state.serving(shard);
        let is_primary = |allocation| primary == Some(allocation);
        let mut nodes: Vec<Node> = serving
            .into_iter()
            .filter(|(copy, node)| match preference {
                Preference::Primary => is_primary(copy.allocation),
                Preference::Replica => !is_primary(copy.allocation),
                Preference::OnlyLocal => node.id == own,
                Preference::OnlyNodes(names) => names.iter().any(|name| {
                    segmentry_query::source::matches(name, &node.name) || *name == node.id.to_string()
                }),
                Preference::Any | Preference::Local | Preference::Session(_) => true,
            })
            .map(|(_, node)| node.clone())
            .collect();
        if nodes.is_empty() {
            return nodes;
        }
        let turn = match preference {
            Preference::Session(text) => segmentry_state::routing::hash(text).unsigned_abs() as usize,
            _ => self.next_turn(),
        };
        nodes.sort_by_key(|node| node.id);
        let turn = turn % nodes.len();
        nodes.rotate_left(turn);
        if matches!(preference, Preference::Any | Preference::Local) {
            nodes.sort_by_key(|node| node.id != own);
        }
        nodes
    }

    async fn ask<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        index: &Index,
        nodes: Vec<Node>,
        request: ShardSearch,
        path: &'static str,
        local: fn(&dyn Copies, ShardSearch) -> Answer<T>,
    ) -> Result<T, ShardFailure> {
        let shard = request.shard.shard;
        let mut failure = ShardFailure {
            index: index.name.clone(),
            shard,
            node: None,
            error: Box::new(
                ApiError::new(
                    503,
                    "no_shard_available_action_exception",
                    format!("no copy of shard [{}][{shard}] is available", index.name),
                )
                .about(index)
                .on_shard(shard),
            ),
        };
        for node in nodes {
            let answer = self
                .on_node(&node, path, Encoding::Json, request.clone(), DEADLINE, local)
                .await;
            match answer {
                Ok(value) => return Ok(value),
                Err(error) => {
                    // What the client got wrong is wrong on every copy.
                    let last = matches!(&error, Failure::Refused(error) if error.status == 400);
                    failure.node = Some(node.id.to_string());
                    failure.error = Box::new(error.into_error().about(index));
                    if last {
                        break;
                    }
                }
            }
        }
        Err(failure)
    }
}

/// The error of a search that has no answer: the status of its causes, where they agree that the client is at fault.
fn phase_error(tally: ShardTally, all: bool) -> ApiError {
    let client = tally
        .failures
        .iter()
        .map(|failure| failure.error.status)
        .find(|status| (400..500).contains(status));
    let status = tally
        .failures
        .iter()
        .map(|failure| failure.error.status)
        .filter(|status| *status >= 500)
        .max()
        .or(client)
        .unwrap_or(503);
    let reason = if all {
        "all shards failed"
    } else {
        "Partial shards failure"
    };
    ApiError {
        failures: tally.failures.into(),
        ..ApiError::new(status, "search_phase_execution_exception", reason)
    }
}
