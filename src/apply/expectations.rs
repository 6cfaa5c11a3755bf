//! What was stopped and is not yet seen to go. An API server that answers from a lagging replica must not lead to a second
//! stop: the new instance of the same name would be taken for the old one.

use crate::{api::valid::Key, runtime::Instance};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

/// Instance ids, by cluster.
#[derive(Debug, Default)]
pub struct Expectations {
    stopped: Mutex<BTreeMap<Key, BTreeSet<String>>>,
}

impl Expectations {
    /// This incarnation was told to end.
    pub fn stopped(&self, cluster: &Key, instance_id: &str) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped
            .entry(cluster.clone())
            .or_default()
            .insert(instance_id.to_owned());
    }

    /// Everything that was told to end is gone or ending in this observation.
    pub fn are_met(&self, cluster: &Key, instances: &[Instance]) -> bool {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(expected) = stopped.get_mut(cluster) else {
            return true;
        };
        expected.retain(|id| {
            instances
                .iter()
                .any(|instance| instance.instance_id == *id && !instance.terminating)
        });
        let met = expected.is_empty();
        if met {
            stopped.remove(cluster);
        }
        met
    }

    /// A stop that was refused is expected no more; so is everything of a cluster that is gone.
    pub fn forget(&self, cluster: &Key) {
        self.stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: &str, terminating: bool) -> Instance {
        Instance {
            name: "n-0".to_owned(),
            instance_id: id.to_owned(),
            terminating,
            ..Instance::default()
        }
    }

    #[test]
    fn a_stale_view_after_a_stop_is_noticed() {
        let expectations = Expectations::default();
        let key = Key {
            namespace: "a".to_owned(),
            name: "b".to_owned(),
        };
        assert!(expectations.are_met(&key, &[instance("1", false)]));
        expectations.stopped(&key, "1");
        assert!(!expectations.are_met(&key, &[instance("1", false)]));
        assert!(expectations.are_met(&key, &[instance("1", true)]));
        assert!(expectations.are_met(&key, &[instance("2", false)]));
    }
}
