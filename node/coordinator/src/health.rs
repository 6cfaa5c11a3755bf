//! Cluster health, and waiting for it.

use crate::{ApiError, Coordinator};
use segmentry_settings::admin::Health;
use segmentry_state::{ClusterState, CopyState, Index};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long a plain question for health waits for a quorum.
const QUORUM: Duration = Duration::from_secs(5);

/// Counts of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyCounts {
    /// Started primaries.
    pub active_primaries: u32,
    /// Started copies.
    pub active: u32,
    /// Copies that are being opened or built.
    pub initializing: u32,
    /// Wanted copies that are neither.
    pub unassigned: u32,
    /// Of these, copies whose node is away and is waited for.
    pub delayed: u32,
}

/// Health of one index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexHealth {
    /// The index.
    pub index: Arc<Index>,
    /// Worst of its shards.
    pub status: Health,
    /// Its copies.
    pub counts: CopyCounts,
    /// By shard number.
    pub shards: Vec<(Health, CopyCounts)>,
}

/// Health of a cluster, or of some indices of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterHealth {
    /// Human name of the cluster.
    pub cluster_name: String,
    /// Worst of the indices.
    pub status: Health,
    /// What was waited for did not come in time.
    pub timed_out: bool,
    /// Members that are alive.
    pub nodes: u32,
    /// This node knows a leader of the cluster metadata.
    pub has_leader: bool,
    /// All copies.
    pub counts: CopyCounts,
    /// By index, in the order of the request.
    pub indices: Vec<IndexHealth>,
}

impl ClusterHealth {
    /// Started copies of a hundred wanted ones.
    pub fn active_percent(&self) -> f64 {
        let CopyCounts {
            active,
            initializing,
            unassigned,
            ..
        } = self.counts;
        let wanted = active + initializing + unassigned;
        if wanted == 0 {
            100.0
        } else {
            f64::from(active) * 100.0 / f64::from(wanted)
        }
    }
}

/// What a health request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthWait {
    /// This status, or a better one.
    pub status: Option<Health>,
    /// So many nodes.
    pub nodes: Option<NodeCount>,
    /// So many started copies; `None` within means all.
    pub active_shards: Option<Option<u32>>,
    /// Nothing initialises.
    pub no_initializing: bool,
    /// The indices that must exist, exact names.
    pub indices: Vec<String>,
}

/// A condition on the number of nodes: `3`, `>=2`, `<=4`, `>2`, `<5`, `ge(2)`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCount {
    at_least: u32,
    at_most: u32,
}

impl NodeCount {
    /// Reads `wait_for_nodes`.
    ///
    /// # Errors
    /// Not of one of the forms.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let refuse = || ApiError::illegal(format!("failed to parse [wait_for_nodes] with value [{text}]"));
        let forms: [(&str, &str, &str); 4] = [
            (">=", "ge(", ">="),
            ("<=", "le(", "<="),
            (">", "gt(", ">"),
            ("<", "lt(", "<"),
        ];
        let (sign, number) = forms
            .iter()
            .find_map(|(sign, word, name)| {
                text.strip_prefix(sign)
                    .or_else(|| text.strip_prefix(word).and_then(|rest| rest.strip_suffix(')')))
                    .map(|number| (*name, number))
            })
            .unwrap_or(("", text));
        let number: u32 = number.trim().parse().map_err(|_| refuse())?;
        Ok(match sign {
            ">=" => Self {
                at_least: number,
                at_most: u32::MAX,
            },
            "<=" => Self {
                at_least: 0,
                at_most: number,
            },
            ">" => Self {
                at_least: number.saturating_add(1),
                at_most: u32::MAX,
            },
            "<" => Self {
                at_least: 0,
                at_most: number.checked_sub(1).ok_or_else(refuse)?,
            },
            _ => Self {
                at_least: number,
                at_most: number,
            },
        })
    }

    const fn holds(self, nodes: u32) -> bool {
        nodes >= self.at_least && nodes <= self.at_most
    }
}

/// Counts of an index, and of each of its shards.
pub fn index_health(state: &ClusterState, index: &Arc<Index>) -> IndexHealth {
    let mut sum = CopyCounts::default();
    let mut shards = Vec::with_capacity(index.shards.len());
    for shard in &index.shards {
        let mut counts = CopyCounts::default();
        for copy in &shard.copies {
            match state.copy_state(shard, copy) {
                CopyState::Started => {
                    counts.active += 1;
                    counts.active_primaries += u32::from(shard.primary == Some(copy.allocation));
                }
                CopyState::Initializing => counts.initializing += 1,
                CopyState::Unassigned => counts.delayed += u32::from(!state.is_alive(copy.node)),
            }
        }
        let wanted = 1 + index.settings.number_of_replicas;
        counts.unassigned = wanted.saturating_sub(counts.active + counts.initializing);
        counts.delayed = counts.delayed.min(counts.unassigned);
        sum.active_primaries += counts.active_primaries;
        sum.active += counts.active;
        sum.initializing += counts.initializing;
        sum.unassigned += counts.unassigned;
        sum.delayed += counts.delayed;
        shards.push((state.shard_health(index, shard), counts));
    }
    IndexHealth {
        index: Arc::clone(index),
        status: state.index_health(index),
        counts: sum,
        shards,
    }
}

impl Coordinator {
    /// Health of the indices that `select` finds in a state.
    pub fn health(&self, state: &ClusterState, indices: &[Arc<Index>]) -> ClusterHealth {
        let indices: Vec<IndexHealth> = indices.iter().map(|index| index_health(state, index)).collect();
        let mut counts = CopyCounts::default();
        for index in &indices {
            counts.active_primaries += index.counts.active_primaries;
            counts.active += index.counts.active;
            counts.initializing += index.counts.initializing;
            counts.unassigned += index.counts.unassigned;
            counts.delayed += index.counts.delayed;
        }
        let has_leader = self.leader().is_some();
        let worst = indices
            .iter()
            .map(|index| index.status)
            .max()
            .unwrap_or(Health::Green);
        ClusterHealth {
            cluster_name: state.cluster_name.clone(),
            status: if has_leader { worst } else { Health::Red },
            timed_out: false,
            nodes: u32::try_from(state.alive().count()).unwrap_or(u32::MAX),
            has_leader,
            counts,
            indices,
        }
    }

    /// Health by a linearizable read: a node that has just started knows an old state, in which everything may be well.
    /// Without a quorum it is red, and no leader is named.
    pub async fn fresh_health(
        &self,
        expression: Option<&str>,
        options: crate::NameOptions,
    ) -> Result<ClusterHealth, ApiError> {
        let read = tokio::time::timeout(QUORUM, self.inner.meta.read()).await;
        let fresh = matches!(read, Ok(Ok(_)));
        let state = match read {
            Ok(Ok(state)) => state,
            _ => self.state(),
        };
        let indices = crate::names::resolve(&state, expression, options)?;
        let health = self.health(&state, &indices);
        Ok(if fresh {
            health
        } else {
            ClusterHealth {
                status: Health::Red,
                has_leader: false,
                ..health
            }
        })
    }

    /// Health once `wait` holds, or as it is when `timeout` has passed (`timed_out` then).
    pub async fn wait_health(
        &self,
        expression: Option<&str>,
        options: crate::NameOptions,
        wait: &HealthWait,
        timeout: Duration,
    ) -> Result<ClusterHealth, ApiError> {
        let deadline = Instant::now() + timeout;
        let mut leadership = self.inner.meta.leadership();
        let mut watch = self.inner.meta.watch();
        loop {
            let state = Arc::clone(&watch.borrow_and_update());
            leadership.borrow_and_update();
            // An index that is waited for may not be there yet.
            let lenient = crate::NameOptions {
                ignore_unavailable: true,
                ..options
            };
            let indices = crate::names::resolve(&state, expression, lenient)?;
            let health = self.health(&state, &indices);
            let missing = wait
                .indices
                .iter()
                .any(|name| state.index_by_name(name).is_none());
            if !missing && wait.holds(&health) {
                // What holds in the state that was applied here may be over already.
                let fresh = self.fresh_health(expression, lenient).await?;
                if wait.holds(&fresh) {
                    return Ok(fresh);
                }
            }
            let changed = async {
                tokio::select! {
                    changed = watch.changed() => changed.is_ok(),
                    changed = leadership.changed() => changed.is_ok(),
                }
            };
            if !matches!(tokio::time::timeout_at(deadline, changed).await, Ok(true)) {
                return Ok(ClusterHealth {
                    status: if missing { Health::Red } else { health.status },
                    timed_out: true,
                    ..health
                });
            }
        }
    }
}

impl HealthWait {
    fn holds(&self, health: &ClusterHealth) -> bool {
        let active = match self.active_shards {
            None => true,
            Some(None) => health.counts.unassigned == 0 && health.counts.initializing == 0,
            Some(Some(count)) => health.counts.active >= count,
        };
        active
            && health.has_leader
            && self.status.is_none_or(|status| health.status <= status)
            && self.nodes.is_none_or(|nodes| nodes.holds(health.nodes))
            && (!self.no_initializing || health.counts.initializing == 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn node_conditions_are_read_in_both_forms() {
        for (text, nodes, holds) in [
            ("3", 3, true),
            ("3", 4, false),
            (">=2", 3, true),
            ("ge(2)", 1, false),
            ("<3", 3, false),
            ("lt(3)", 2, true),
            (">1", 2, true),
            ("<=2", 3, false),
        ] {
            assert_eq!(
                NodeCount::parse(text).unwrap().holds(nodes),
                holds,
                "{text} {nodes}"
            );
        }
        for bad in ["", "x", ">=", "ge(2", "<0"] {
            assert!(NodeCount::parse(bad).is_err(), "{bad}");
        }
    }
}
