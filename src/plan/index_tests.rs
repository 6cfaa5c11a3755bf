#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::api::Index;
use segmentry_settings::admin::{self, CopyOverview, CopyReport, Owner};
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

fn object(spec: &Value) -> Index {
    serde_json::from_value(json!({
        "apiVersion": "segmentry.io/v1alpha1", "kind": "Index",
        "metadata": {"name": "flights", "namespace": "search", "uid": "ix"},
        "spec": spec
    }))
    .unwrap()
}

fn declared() -> ValidIndex {
    ValidIndex::new(&object(&json!({"clusterRef": {"name": "quick"}, "shards": 1, "replicas": 1, "replicationType": "Segment", "translog": {"durability": "Async"}, "refreshIntervalMilliseconds": 2000}))).unwrap()
}

fn report(durability: Durability) -> CopyReport {
    CopyReport {
        documents: 7,
        size_bytes: 100,
        max_seq_no: 6,
        global_checkpoint: 6,
        lag_operations: 0,
        lag_millis: 0,
        durability,
        replication_type: ReplicationType::Segment,
        translog_operations: 7,
        translog_size_bytes: 70,
        uncommitted_operations: 1,
        uncommitted_size_bytes: 10,
    }
}

fn living() -> IndexOverview {
    let copy = |node: &str, primary| CopyOverview {
        shard: 0,
        node: Some(node.to_owned()),
        primary,
        state: "STARTED".to_owned(),
        reason: None,
        in_sync: true,
        report: Some(report(Durability::Async)),
    };
    IndexOverview {
        name: "flights".to_owned(),
        uuid: "i1".to_owned(),
        owner: Some(declared().owner()),
        health: admin::Health::Green,
        shards: 1,
        replicas: 1,
        settings: BTreeMap::from(
            [
                ("index.replication.type", "SEGMENT"),
                ("index.translog.durability", "async"),
                ("index.refresh_interval", "2s"),
                ("index.number_of_replicas", "1"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        mappings: json!({"properties": {"a": {"type": "keyword"}, "b": {"type": "long"}}}),
        documents: 7,
        size_bytes: 200,
        copies: vec![copy("n-0", true), copy("n-1", false)],
    }
}

fn up(indices: Vec<IndexOverview>) -> ClusterView {
    ClusterView::Up(Box::new(Up {
        overview: Overview {
            cluster_uuid: "u".to_owned(),
            cluster_name: "quick".to_owned(),
            state_version: 1,
            health: admin::Health::Green,
            leader: None,
            nodes: Vec::new(),
            indices,
            settings: BTreeMap::new(),
            settled: true,
            unsettled: Vec::new(),
            restart: None,
            epoch: 1,
        },
        default_replication: Some(ReplicationType::Document),
        default_durability: Some(Durability::Async),
        paused: false,
    }))
}

fn known() -> IndexStatus {
    IndexStatus {
        index_uuid: Some("i1".to_owned()),
        cluster_uuid: Some("u".to_owned()),
        ..IndexStatus::default()
    }
}

fn ready(plan: &Plan) -> (Truth, &str) {
    let verdict = plan
        .verdicts
        .iter()
        .find(|verdict| verdict.kind == conditions::READY)
        .unwrap();
    (verdict.truth, &verdict.reason)
}

#[test]
fn an_index_without_its_cluster_waits_with_a_reason() {
    let (plan, _) = plan(&declared(), &IndexStatus::default(), &ClusterView::Missing);
    assert_eq!(ready(&plan), (Truth::False, reason::CLUSTER_MISSING));
    assert!(plan.steps.is_empty());
    assert_eq!(plan.verdicts.len(), conditions::INDEX_TYPES.len());
}

#[test]
fn a_new_index_is_created_with_its_owner_and_the_clusters_defaults() {
    let bare = ValidIndex::new(&object(&json!({"clusterRef": {"name": "quick"}, "shards": 2, "settings": {"index.max_result_window": "500"}}))).unwrap();
    let (plan, _) = plan(&bare, &IndexStatus::default(), &up(Vec::new()));
    let [Step::CreateIndex(request)] = plan.steps.as_slice() else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!(request.settings["index.replication.type"], "DOCUMENT");
    assert_eq!(request.settings["index.translog.durability"], "async");
    assert_eq!(request.settings["index.number_of_shards"], "2");
    let owner = request.owner.as_ref().unwrap();
    assert_eq!(
        (owner.uid.as_str(), owner.name.as_str()),
        ("ix", "search/flights")
    );
    // Defaults are fixed at creation and stay REST's afterwards.
    assert!(
        !owner.settings.contains("index.translog.durability")
            && owner.settings.contains("index.max_result_window")
    );
}

#[test]
fn an_index_as_declared_is_ready_and_nothing_is_written() {
    let (plan, found) = plan(&declared(), &known(), &up(vec![living()]));
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert!(
        plan.verdicts.iter().all(|verdict| verdict.truth == Truth::True),
        "{:?}",
        plan.verdicts
    );
    assert_eq!(found.unwrap().uuid, "i1");
}

#[test]
fn a_dynamic_setting_is_compared_by_value_and_changed_when_it_differs() {
    let mut other = living();
    other
        .settings
        .insert("index.refresh_interval".to_owned(), "1s".to_owned());
    other.replicas = 2;
    let (plan, _) = plan(&declared(), &known(), &up(vec![other]));
    let [Step::UpdateIndex { update, .. }] = plan.steps.as_slice() else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!(
        update.settings.keys().collect::<Vec<_>>(),
        ["index.number_of_replicas", "index.refresh_interval"]
    );
}

#[test]
fn a_field_that_is_set_no_more_is_given_back_to_rest_and_keeps_its_value() {
    let mut fewer = declared();
    fewer.dynamic.remove("index.refresh_interval");
    let (plan, _) = plan(&fewer, &known(), &up(vec![living()]));
    let [Step::UpdateIndex { update, .. }] = plan.steps.as_slice() else {
        panic!("{:?}", plan.steps)
    };
    assert!(update.settings.is_empty() && !update.owner.settings.contains("index.refresh_interval"));
}

#[test]
fn an_index_of_another_owner_is_not_touched() {
    let mut other = living();
    other.owner = Some(Owner {
        uid: "else".to_owned(),
        name: "search/else".to_owned(),
        settings: BTreeSet::new(),
        mappings: false,
    });
    let (plan, _) = plan(&declared(), &IndexStatus::default(), &up(vec![other]));
    assert_eq!(ready(&plan), (Truth::False, reason::OWNED_BY_OTHER));
    assert!(plan.steps.is_empty());
}

#[test]
fn an_ownerless_index_is_adopted_where_it_matches_or_where_a_person_says_so() {
    let mut orphan = living();
    orphan.owner = None;
    let adopted = |index: &ValidIndex, orphan: &IndexOverview| {
        matches!(
            plan(index, &IndexStatus::default(), &up(vec![orphan.clone()]))
                .0
                .steps
                .as_slice(),
            [Step::AdoptIndex { .. }]
        )
    };
    let mut index = declared();
    index.mappings = Some(json!({"properties": {"a": {"type": "keyword"}}}));
    assert!(adopted(&index, &orphan));
    index.mappings = Some(json!({"properties": {"a": {"type": "text"}}}));
    assert!(!adopted(&index, &orphan));
    assert_eq!(
        ready(&plan(&index, &IndexStatus::default(), &up(vec![orphan.clone()])).0),
        (Truth::False, reason::NOT_ADOPTED)
    );
    index.adopt = true;
    assert!(adopted(&index, &orphan));
    index = declared();
    orphan.shards = 2;
    assert!(!adopted(&index, &orphan));
}

#[test]
fn a_recorded_index_that_is_gone_is_created_anew_only_on_a_persons_word() {
    let (gone, _) = plan(&declared(), &known(), &up(Vec::new()));
    assert_eq!(ready(&gone), (Truth::False, reason::INDEX_GONE));
    assert!(gone.steps.is_empty());
    let mut index = declared();
    index.recreate = Some("another".to_owned());
    assert!(plan(&index, &known(), &up(Vec::new())).0.steps.is_empty());
    index.recreate = Some("i1".to_owned());
    let (again, _) = plan(&index, &known(), &up(Vec::new()));
    assert!(matches!(again.steps.as_slice(), [Step::CreateIndex(_)]));
    assert_eq!(again.notes[0].reason, reason::INDEX_RECREATED);
    // The same uuid under another cluster is another index.
    let elsewhere = IndexStatus {
        cluster_uuid: Some("old".to_owned()),
        ..known()
    };
    assert_eq!(
        ready(&plan(&declared(), &elsewhere, &up(vec![living()])).0),
        (Truth::False, reason::INDEX_GONE)
    );
}

#[test]
fn conditions_say_what_copies_report_not_what_was_asked() {
    let mut lagging = living();
    lagging.copies[1].report = Some(report(Durability::Request));
    lagging.copies[1].report.as_mut().unwrap().uncommitted_size_bytes = 2 << 30;
    let (plan, found) = plan(&declared(), &known(), &up(vec![lagging]));
    let truth = |kind: &str| {
        plan.verdicts
            .iter()
            .find(|verdict| verdict.kind == kind)
            .unwrap()
            .truth
    };
    assert_eq!(truth(conditions::DURABILITY_APPLIED), Truth::False);
    assert_eq!(truth(conditions::REPLICATION_APPLIED), Truth::True);
    assert_eq!(truth(conditions::TRANSLOG_HEALTHY), Truth::False);
    assert_eq!(plan.notes[0].reason, reason::UNCOMMITTED_HIGH);
    let mut status = IndexStatus::default();
    observed_status(&mut status, &found.unwrap(), "u");
    assert_eq!(status.durability, None);
    assert_eq!(
        status.replication_type,
        Some(crate::api::ReplicationType::Segment)
    );
}

#[test]
fn status_lists_unhealthy_copies_first_and_never_repeats_a_key() {
    let mut found = living();
    found.copies[1].state = "INITIALIZING".to_owned();
    found.copies.push(found.copies[0].clone());
    for _ in 0..2 {
        found.copies.push(CopyOverview {
            shard: 0,
            node: None,
            primary: false,
            state: "UNASSIGNED".to_owned(),
            reason: Some("no node".to_owned()),
            in_sync: false,
            report: None,
        });
    }
    let mut status = IndexStatus::default();
    observed_status(&mut status, &found, "u");
    assert_eq!(
        status
            .copies
            .iter()
            .map(|copy| copy.node.as_str())
            .collect::<Vec<_>>(),
        ["n-1", "n-0"]
    );
    assert_eq!(status.unassigned.len(), 1);
    assert_eq!(status.unassigned[0].copies, 2);
    assert_eq!(status.translog.unwrap().operations, 21);
}

#[test]
fn deletion_always_ends() {
    let retain = object(&json!({"clusterRef": {"name": "quick"}}));
    let delete = object(&json!({"clusterRef": {"name": "quick"}, "deletionPolicy": "Delete"}));
    let soon = Duration::from_secs(5);
    assert_eq!(finalize(&retain, &up(vec![living()]), soon), Finalize::Drop(None));
    assert_eq!(
        finalize(&delete, &up(vec![living()]), soon),
        Finalize::Delete {
            index: "i1".to_owned()
        }
    );
    assert_eq!(finalize(&delete, &up(Vec::new()), soon), Finalize::Drop(None));
    assert!(matches!(
        finalize(&delete, &ClusterView::Missing, soon),
        Finalize::Drop(_)
    ));
    assert!(matches!(
        finalize(&delete, &ClusterView::Deleting, soon),
        Finalize::Drop(_)
    ));
    assert_eq!(
        finalize(&delete, &ClusterView::Forming("not formed".to_owned()), soon),
        Finalize::Drop(None)
    );
    let away = ClusterView::NotReady("silent".to_owned());
    assert!(matches!(finalize(&delete, &away, soon), Finalize::Wait(_)));
    assert!(
        matches!(finalize(&delete, &away, FINALIZE_BOUND), Finalize::Drop(Some(note)) if note.reason == reason::INDEX_DATA_LEFT && note.warning)
    );
    let mut foreign = living();
    foreign.owner.as_mut().unwrap().uid = "else".to_owned();
    assert_eq!(finalize(&delete, &up(vec![foreign]), soon), Finalize::Drop(None));
}
