//! Condition types and reasons, and how conditions are merged. Their meaning is API: never redefined.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// IndexCluster and Index: everything that was declared is observed.
pub const READY: &str = "Ready";
/// IndexCluster: every primary serves.
pub const AVAILABLE: &str = "Available";
/// IndexCluster: something is being changed.
pub const PROGRESSING: &str = "Progressing";
/// IndexCluster: something is wrong that may need a person.
pub const DEGRADED: &str = "Degraded";
/// IndexCluster: a full restart is due or running.
pub const UPGRADING: &str = "Upgrading";
/// IndexCluster: `spec.paused`.
pub const PAUSED: &str = "Paused";
/// Both kinds: primaries are spread evenly over the nodes.
pub const PRIMARIES_BALANCED: &str = "PrimariesBalanced";
/// Index: every copy reports the declared durability.
pub const DURABILITY_APPLIED: &str = "DurabilityApplied";
/// Index: every copy reports the declared replication type and the declared number of replicas is in sync.
pub const REPLICATION_APPLIED: &str = "ReplicationApplied";
/// Index: uncommitted operations are within bounds on every copy.
pub const TRANSLOG_HEALTHY: &str = "TranslogHealthy";

/// Every condition type of an IndexCluster.
pub const CLUSTER_TYPES: [&str; 7] = [
    READY,
    AVAILABLE,
    PROGRESSING,
    DEGRADED,
    UPGRADING,
    PAUSED,
    PRIMARIES_BALANCED,
];
/// Every condition type of an Index.
pub const INDEX_TYPES: [&str; 5] = [
    READY,
    DURABILITY_APPLIED,
    REPLICATION_APPLIED,
    PRIMARIES_BALANCED,
    TRANSLOG_HEALTHY,
];

/// Reasons of conditions and events.
pub mod reason {
    /// All is as declared.
    pub const AS_DECLARED: &str = "AsDeclared";
    /// The spec breaks a rule.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Not known yet.
    pub const UNKNOWN: &str = "NotObserved";
    /// Nodes start or form the cluster.
    pub const STARTING: &str = "Starting";
    /// Fewer nodes answer than declared.
    pub const NODES_MISSING: &str = "NodesMissing";
    /// A linearizable read does not work.
    pub const NO_QUORUM: &str = "NoQuorum";
    /// A majority of the disks is gone.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// A disk lost its content and kept its identity.
    pub const DISK_EMPTIED: &str = "DiskEmptied";
    /// Nodes hold data of another cluster.
    pub const FOREIGN_DATA: &str = "ForeignData";
    /// The recorded cluster's data is gone from all nodes.
    pub const DATA_GONE: &str = "DataGone";
    /// An existing cluster was taken over.
    pub const ADOPTED: &str = "Adopted";
    /// The cluster was formed.
    pub const FORMED: &str = "Formed";
    /// A lost voter makes way for a new one.
    pub const VOTER_REPLACED: &str = "VoterReplaced";
    /// Shards are not all started.
    pub const SHARDS_NOT_STARTED: &str = "ShardsNotStarted";
    /// Nothing is being changed.
    pub const IDLE: &str = "Idle";
    /// A full restart runs.
    pub const RESTARTING: &str = "Restarting";
    /// A full restart is due and waits for a guard.
    pub const WAITING: &str = "Waiting";
    /// A full restart began.
    pub const RESTART_STARTED: &str = "RestartStarted";
    /// A full restart ended.
    pub const RESTART_FINISHED: &str = "RestartFinished";
    /// A restart that was prepared is not wanted any more.
    pub const RESTART_ABANDONED: &str = "RestartAbandoned";
    /// Pods that do not run on a template that is not wanted are replaced.
    pub const BROKEN_PODS_REPLACED: &str = "BrokenPodsReplaced";
    /// `spec.paused` is true.
    pub const PAUSED: &str = "PausedBySpec";
    /// `spec.paused` is not set.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Counts of primaries differ by at most one.
    pub const EVEN: &str = "Even";
    /// Counts of primaries differ by more than one.
    pub const UNEVEN: &str = "Uneven";
    /// Balancing is off.
    pub const BALANCING_OFF: &str = "Off";
    /// An object of that name belongs to somebody else.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// Another operator looks after the object.
    pub const CLAIMED_BY_OTHER: &str = "ClaimedByOther";
    /// A call failed; retried.
    pub const RETRYING: &str = "Retrying";
    /// The IndexCluster of an Index is not there.
    pub const CLUSTER_MISSING: &str = "ClusterMissing";
    /// The IndexCluster of an Index is not formed or does not answer.
    pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";
    /// The index belongs to another Index.
    pub const OWNED_BY_OTHER: &str = "OwnedByOther";
    /// An ownerless index of that name has another shape.
    pub const NOT_ADOPTED: &str = "NotAdopted";
    /// The recorded index is gone.
    pub const INDEX_GONE: &str = "IndexGone";
    /// The index was created.
    pub const INDEX_CREATED: &str = "IndexCreated";
    /// The index was created again on a person's word.
    pub const INDEX_RECREATED: &str = "IndexRecreated";
    /// The index was deleted.
    pub const INDEX_DELETED: &str = "IndexDeleted";
    /// The object is gone, its data stays.
    pub const INDEX_DATA_LEFT: &str = "IndexDataLeft";
    /// The node refused what was declared.
    pub const REFUSED: &str = "Refused";
    /// The spec differs from the index in a field that never changes.
    pub const IMMUTABLE_DIFFERS: &str = "ImmutableDiffers";
    /// Copies do not report what was declared yet.
    pub const APPLYING: &str = "Applying";
    /// Too much is not in a durable commit.
    pub const UNCOMMITTED_HIGH: &str = "UncommittedHigh";
    /// The object is being deleted.
    pub const DELETING: &str = "Deleting";
}

/// `True`, `False`, `Unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// Observed.
    True,
    /// Observed not to be.
    False,
    /// Not observed.
    Unknown,
}

impl Truth {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A condition as a plan decides it: without times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Condition type.
    pub kind: &'static str,
    /// Its status.
    pub truth: Truth,
    /// CamelCase reason.
    pub reason: String,
    /// A sentence; says what to do where somebody has to.
    pub message: String,
}

impl Verdict {
    /// Short form.
    pub fn new(
        kind: &'static str,
        truth: impl Into<Truth>,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            truth: truth.into(),
            reason: reason.to_owned(),
            message: clip(&message.into()),
        }
    }
}

/// The API allows 32768 bytes; people read far less.
fn clip(message: &str) -> String {
    message.chars().take(1024).collect()
}

/// The new list of conditions: one for each of `types`, in that order. A transition time moves only when the status does, so
/// that an unchanged verdict gives an unchanged list. Types without a verdict keep what they had, or are `Unknown`.
pub fn merge(
    old: &[Condition],
    types: &[&'static str],
    verdicts: &[Verdict],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    types
        .iter()
        .map(|kind| {
            let before = old.iter().find(|condition| condition.type_ == *kind);
            let Some(verdict) = verdicts.iter().find(|verdict| verdict.kind == *kind) else {
                return before.cloned().unwrap_or_else(|| Condition {
                    type_: (*kind).to_owned(),
                    status: Truth::Unknown.as_str().to_owned(),
                    reason: reason::UNKNOWN.to_owned(),
                    message: "not observed yet".to_owned(),
                    last_transition_time: Time(now),
                    observed_generation: Some(generation),
                });
            };
            let status = verdict.truth.as_str();
            let time = before
                .filter(|condition| condition.status == status)
                .map_or(Time(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: (*kind).to_owned(),
                status: status.to_owned(),
                reason: verdict.reason.clone(),
                message: verdict.message.clone(),
                last_transition_time: time,
                observed_generation: Some(generation),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_first_visit_sets_every_type() {
        let merged = merge(
            &[],
            &CLUSTER_TYPES,
            &[Verdict::new(READY, false, reason::STARTING, "x")],
            3,
            at(5),
        );
        assert_eq!(merged.len(), CLUSTER_TYPES.len());
        assert!(
            merged
                .iter()
                .all(|condition| !condition.reason.is_empty() && condition.observed_generation == Some(3))
        );
        assert_eq!(merged[0].status, "False");
        assert_eq!(merged[1].status, "Unknown");
    }

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let first = merge(
            &[],
            &INDEX_TYPES,
            &[Verdict::new(READY, false, "A", "a")],
            1,
            at(5),
        );
        let same = merge(
            &first,
            &INDEX_TYPES,
            &[Verdict::new(READY, false, "B", "b")],
            1,
            at(9),
        );
        assert_eq!(same[0].last_transition_time.0, at(5));
        assert_eq!(same[0].reason, "B");
        let flipped = merge(
            &same,
            &INDEX_TYPES,
            &[Verdict::new(READY, true, "B", "b")],
            1,
            at(9),
        );
        assert_eq!(flipped[0].last_transition_time.0, at(9));
    }

    #[test]
    fn an_unchanged_verdict_changes_nothing() {
        let verdicts = [Verdict::new(READY, true, "A", "a")];
        let first = merge(&[], &INDEX_TYPES, &verdicts, 1, at(5));
        assert_eq!(merge(&first, &INDEX_TYPES, &verdicts, 1, at(90)), first);
    }
}
