#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::api::conditions::{self, Truth, Verdict};
use crate::plan::restart::Guard;
use crate::{
    build::template::tests::sample,
    runtime::{Instance, Problem, SetFacts},
};
use segmentry_settings::admin::{CopyOverview, NodeOverview, NodeStatus, Owner, RestartRecord};

const WANTED: &str = "wanted";

struct World {
    cluster: ValidCluster,
    identity: Option<Identity>,
    observed: Observed,
    uids: BTreeSet<String>,
    slot_free: bool,
}

impl World {
    /// A formed cluster of three nodes, all as declared.
    fn healthy() -> Self {
        let cluster = sample();
        let mut observed = Observed::default();
        observed.runtime.set = Some(SetFacts {
            template_hash: Some(WANTED.to_owned()),
            image: Some("i".to_owned()),
            current: true,
        });
        observed.runtime.token = Some("t".to_owned());
        let mut nodes = Vec::new();
        for name in cluster.node_names() {
            observed.runtime.instances.push(Instance {
                name: name.clone(),
                instance_id: format!("uid-{name}"),
                template_hash: Some(WANTED.to_owned()),
                running: true,
                disk_id: Some(format!("disk-{name}")),
                address: Some("127.0.0.1:9300".to_owned()),
                ..Instance::default()
            });
            let status = NodeStatus {
                name: name.clone(),
                node_id: format!("id-{name}"),
                boot_id: "b".to_owned(),
                version: "0.1.0".to_owned(),
                format_written: 1,
                formats_readable: vec![1],
                cluster_uuid: Some("u".to_owned()),
                formed: true,
                empty: false,
                indices_on_disk: 0,
                disk_id: None,
                leader: None,
                opened: true,
                waiting_for: None,
            };
            observed.nodes.insert(name.clone(), Ok(status));
            nodes.push(NodeOverview {
                node_id: format!("id-{name}"),
                boot_id: Some("b".to_owned()),
                alive: true,
                voter: true,
                version: "0.1.0".to_owned(),
                rest_address: String::new(),
                disk_id: Some(format!("disk-{name}")),
                primaries: 1,
                copies: 2,
                name,
            });
        }
        let copy = |node: usize, primary| CopyOverview {
            shard: 0,
            node: Some(cluster.node_name(u32::try_from(node).unwrap())),
            primary,
            state: "STARTED".to_owned(),
            reason: None,
            in_sync: true,
            report: None,
        };
        let index = IndexOverview {
            name: "flights".to_owned(),
            uuid: "i1".to_owned(),
            owner: Some(Owner {
                uid: "ix".to_owned(),
                name: "search/flights".to_owned(),
                settings: BTreeSet::new(),
                mappings: false,
            }),
            health: admin::Health::Green,
            shards: 1,
            replicas: 1,
            settings: BTreeMap::new(),
            mappings: serde_json::json!({}),
            documents: 0,
            size_bytes: 0,
            copies: vec![copy(0, true), copy(1, false)],
        };
        observed.overview = Some(Overview {
            cluster_uuid: "u".to_owned(),
            cluster_name: "quick".to_owned(),
            state_version: 1,
            health: admin::Health::Green,
            leader: None,
            nodes,
            indices: vec![index],
            settings: BTreeMap::new(),
            settled: true,
            unsettled: Vec::new(),
            restart: None,
            epoch: 1,
        });
        let identity = identity::identity_of("u", &observed, &cluster.node_names());
        Self {
            cluster,
            identity: Some(identity),
            observed,
            uids: BTreeSet::from(["ix".to_owned()]),
            slot_free: true,
        }
    }

    fn plan(&self) -> ClusterPlan {
        plan(&Input {
            cluster: &self.cluster,
            identity: self.identity.as_ref(),
            observed: &self.observed,
            wanted_hash: WANTED,
            image: "i",
            index_uids: Some(&self.uids),
            slot_free: self.slot_free,
            fresh_uuid: "fresh",
            addresses: &BTreeMap::new(),
        })
    }

    fn overview(&mut self) -> &mut Overview {
        self.observed.overview.as_mut().unwrap()
    }

    fn all_old(&mut self) {
        self.observed.runtime.set.as_mut().unwrap().template_hash = Some("old".to_owned());
        self.observed
            .runtime
            .instances
            .iter_mut()
            .for_each(|instance| instance.template_hash = Some("old".to_owned()));
    }
}

fn verdict<'a>(plan: &'a ClusterPlan, kind: &str) -> &'a Verdict {
    plan.plan
        .verdicts
        .iter()
        .find(|verdict| verdict.kind == kind)
        .unwrap()
}

#[test]
fn a_healthy_cluster_is_ready_and_nothing_is_to_be_done() {
    let planned = World::healthy().plan();
    assert_eq!(
        planned.plan.steps,
        [Step::Ensure {
            apply_template: true,
            disruption_allowed: true
        }]
    );
    assert!(planned.plan.waiting.is_empty() && planned.plan.notes.is_empty());
    assert_eq!(planned.nodes, NodeCounts { ready: 3, desired: 3 });
    for kind in conditions::CLUSTER_TYPES {
        let expected = matches!(
            kind,
            conditions::READY | conditions::AVAILABLE | conditions::PRIMARIES_BALANCED
        );
        assert_eq!(verdict(&planned, kind).truth, Truth::from(expected), "{kind}");
    }
}

#[test]
fn a_due_restart_keeps_the_running_template_until_it_is_prepared() {
    let mut world = World::healthy();
    world.all_old();
    let planned = world.plan();
    assert_eq!(planned.restart, restart::Row::Prepare);
    assert!(matches!(
        planned.plan.steps[0],
        Step::Ensure {
            apply_template: false,
            ..
        }
    ));
    assert!(matches!(planned.plan.steps.last(), Some(Step::PrepareRestart(_))));

    world.overview().restart = Some(RestartRecord {
        target: WANTED.to_owned(),
        primaries: BTreeMap::from([("i1/0".to_owned(), "n".to_owned())]),
    });
    let planned = world.plan();
    assert_eq!(planned.restart, restart::Row::Apply);
    assert!(matches!(
        planned.plan.steps.as_slice(),
        [Step::Ensure {
            apply_template: true,
            ..
        }]
    ));

    world.observed.runtime.set.as_mut().unwrap().template_hash = Some(WANTED.to_owned());
    let planned = world.plan();
    let Some(Step::Stop(stopped)) = planned.plan.steps.last() else {
        panic!("{:?}", planned.plan.steps)
    };
    assert_eq!(stopped.len(), 3);
}

#[test]
fn an_unsettled_cluster_is_not_restarted_and_says_which_shards_it_waits_for() {
    let mut world = World::healthy();
    world.all_old();
    world.overview().settled = false;
    world.overview().unsettled = vec!["flights/0 recovers".to_owned()];
    let planned = world.plan();
    assert_eq!(planned.restart, restart::Row::Hold(Guard::Settled));
    let wait = planned.plan.waiting.last().unwrap();
    assert_eq!(wait.blocked_by, Some("Settled"));
    assert!(wait.waiting_for.as_ref().unwrap().contains("flights/0 recovers"));
    assert!(
        !planned
            .plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::Stop(_) | Step::PrepareRestart(_)))
    );
}

#[test]
fn one_cluster_at_a_time_restarts() {
    let mut world = World::healthy();
    world.all_old();
    world.slot_free = false;
    assert_eq!(
        world.plan().plan.waiting.last().unwrap().blocked_by,
        Some("OneRestartAtATime")
    );
}

#[test]
fn a_restart_ends_when_every_recorded_primary_that_still_exists_is_active() {
    let mut world = World::healthy();
    world.overview().restart = Some(RestartRecord {
        target: WANTED.to_owned(),
        primaries: BTreeMap::from([
            ("i1/0".to_owned(), "n".to_owned()),
            ("deleted/0".to_owned(), "n".to_owned()),
        ]),
    });
    assert_eq!(world.plan().restart, restart::Row::Finish);
    world.overview().indices[0].copies[0].state = "INITIALIZING".to_owned();
    assert_eq!(world.plan().restart, restart::Row::WaitPrimaries);
    assert_ne!(verdict(&world.plan(), conditions::READY).truth, Truth::True);
}

#[test]
fn a_wrong_image_without_quorum_is_corrected_at_once() {
    let mut world = World::healthy();
    world.all_old();
    world.observed.overview = None;
    world.observed.nodes.clear();
    for instance in &mut world.observed.runtime.instances {
        instance.running = false;
        instance.broken = true;
        instance.problem = Some(Problem {
            reason: "ImagePullBackOff".to_owned(),
            message: "no such image".to_owned(),
        });
    }
    let planned = world.plan();
    assert!(matches!(
        planned.plan.steps.as_slice(),
        [Step::Ensure {
            apply_template: true,
            ..
        }]
    ));
    assert!(
        verdict(&planned, conditions::READY)
            .message
            .contains("ImagePullBackOff: no such image")
    );
    assert!(planned.plan.waiting.iter().any(|wait| {
        wait.waiting_for
            .as_ref()
            .is_some_and(|text| text.contains("ImagePullBackOff"))
    }));
    world.observed.runtime.set.as_mut().unwrap().template_hash = Some(WANTED.to_owned());
    assert!(matches!(world.plan().plan.steps.last(), Some(Step::Stop(stopped)) if stopped.len() == 3));
}

#[test]
fn running_but_not_ready_is_never_a_reason_to_stop() {
    let mut world = World::healthy();
    world.all_old();
    world.observed.overview = None;
    for answer in world.observed.nodes.values_mut() {
        *answer = Err("deadline exceeded".to_owned());
    }
    let planned = world.plan();
    assert_eq!(planned.restart, restart::Row::Hold(Guard::Quorum));
    assert!(
        !planned
            .plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::Stop(_)))
    );
}

#[test]
fn pods_may_not_be_evicted_while_a_shard_has_one_copy_or_a_node_is_away() {
    let allowed = |world: &World| {
        matches!(
            world.plan().plan.steps[0],
            Step::Ensure {
                disruption_allowed: true,
                ..
            }
        )
    };
    let mut one_copy = World::healthy();
    one_copy.overview().indices[0].copies[1].in_sync = false;
    assert!(!allowed(&one_copy));
    let mut away = World::healthy();
    away.overview().nodes[2].alive = false;
    assert!(!allowed(&away));
    let mut no_quorum = World::healthy();
    no_quorum.observed.overview = None;
    assert!(!allowed(&no_quorum));
    assert!(allowed(&World::healthy()));
}

#[test]
fn a_paused_cluster_is_observed_and_left_alone() {
    let mut world = World::healthy();
    world.all_old();
    world.cluster.paused = true;
    let planned = world.plan();
    assert!(planned.plan.steps.is_empty());
    assert_eq!(verdict(&planned, conditions::PAUSED).truth, Truth::True);
    assert_eq!(verdict(&planned, conditions::UPGRADING).truth, Truth::True);
}

#[test]
fn an_index_whose_object_is_gone_loses_its_owner_and_keeps_its_data() {
    let mut world = World::healthy();
    world.uids.clear();
    let planned = world.plan();
    assert!(planned.plan.steps.contains(&Step::ReleaseIndex {
        index: "i1".to_owned(),
        owner_uid: "ix".to_owned()
    }));
    let mut elsewhere = World::healthy();
    elsewhere.uids.clear();
    elsewhere.overview().indices[0].owner.as_mut().unwrap().name = "other/flights".to_owned();
    assert!(
        !elsewhere
            .plan()
            .plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::ReleaseIndex { .. }))
    );
}

#[test]
fn nothing_goes_on_after_the_identity_is_to_be_written() {
    let mut world = World::healthy();
    world.identity = None;
    world.observed.overview = None;
    let planned = world.plan();
    assert!(
        matches!(planned.plan.steps.last(), Some(Step::WriteIdentity(identity)) if identity.cluster_uuid == "u")
    );
    assert_eq!(planned.plan.notes[0].reason, reason::ADOPTED);
}

#[test]
fn a_cluster_that_is_gone_is_degraded_and_never_formed_anew() {
    let mut world = World::healthy();
    world.observed.overview = None;
    for answer in world.observed.nodes.values_mut() {
        let status = answer.as_mut().unwrap();
        status.node_id = "new".to_owned();
        (status.cluster_uuid, status.formed, status.empty, status.opened) = (None, false, true, false);
    }
    let planned = world.plan();
    assert_eq!(verdict(&planned, conditions::DEGRADED).reason, reason::DATA_GONE);
    assert_eq!(verdict(&planned, conditions::READY).reason, reason::DATA_GONE);
    assert!(
        planned
            .plan
            .steps
            .iter()
            .all(|step| matches!(step, Step::Ensure { .. }))
    );
}

#[test]
fn balancing_is_switched_and_its_counts_are_told() {
    let mut world = World::healthy();
    world.cluster.balancing = BalancingMode::Off;
    world.overview().nodes[0].primaries = 3;
    let planned = world.plan();
    assert!(planned.plan.steps.iter().any(|step| matches!(step, Step::ClusterSettings(settings) if settings[PREFER_PRIMARY].as_deref() == Some("false"))));
    let balanced = verdict(&planned, conditions::PRIMARIES_BALANCED);
    assert_eq!(
        (balanced.truth, balanced.reason.as_str()),
        (Truth::False, reason::BALANCING_OFF)
    );
    assert!(balanced.message.contains("quick-nodes-0: 3"));
    world
        .overview()
        .settings
        .insert(PREFER_PRIMARY.to_owned(), "false".to_owned());
    assert!(
        !world
            .plan()
            .plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::ClusterSettings(_)))
    );
}
