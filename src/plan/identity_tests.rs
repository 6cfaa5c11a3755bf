#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::runtime::Instance;
use segmentry_settings::admin::{Health, NodeOverview, Overview};

fn names() -> Vec<String> {
    (0..3).map(|n| format!("q-{n}")).collect()
}

fn node(name: &str, id: &str, uuid: Option<&str>, formed: bool) -> NodeStatus {
    NodeStatus {
        name: name.to_owned(),
        node_id: id.to_owned(),
        boot_id: "b".to_owned(),
        version: "0.1.0".to_owned(),
        format_written: 1,
        formats_readable: vec![1],
        cluster_uuid: uuid.map(ToOwned::to_owned),
        formed,
        empty: uuid.is_none(),
        indices_on_disk: 0,
        disk_id: None,
        leader: None,
        opened: formed,
        waiting_for: None,
    }
}

fn observed(nodes: Vec<NodeStatus>) -> Observed {
    let mut observed = Observed::default();
    for status in nodes {
        observed.runtime.instances.push(Instance {
            name: status.name.clone(),
            running: true,
            disk_id: Some(format!("disk-{}", status.name)),
            ..Instance::default()
        });
        observed.nodes.insert(status.name.clone(), Ok(status));
    }
    observed
}

fn recorded(uuid: &str, formed: bool) -> Identity {
    let members = names()
        .into_iter()
        .map(|name| MemberRecord {
            node_id: format!("id-{name}"),
            disk_id: Some(format!("disk-{name}")),
            name,
        })
        .collect();
    Identity {
        cluster_uuid: uuid.to_owned(),
        formed,
        members,
    }
}

fn all(uuid: Option<&str>, formed: bool) -> Vec<NodeStatus> {
    names()
        .iter()
        .map(|name| node(name, &format!("id-{name}"), uuid, formed))
        .collect()
}

fn overview(observed: &Observed, dead: &[&str]) -> Overview {
    Overview {
        cluster_uuid: "u".to_owned(),
        cluster_name: "q".to_owned(),
        state_version: 1,
        health: Health::Green,
        leader: None,
        nodes: names()
            .into_iter()
            .map(|name| NodeOverview {
                node_id: format!("id-{name}"),
                boot_id: None,
                alive: !dead.contains(&name.as_str()),
                voter: true,
                version: "0.1.0".to_owned(),
                rest_address: String::new(),
                disk_id: Some(format!("disk-{name}")),
                primaries: 0,
                copies: 0,
                name,
            })
            .collect(),
        indices: Vec::new(),
        settings: BTreeMap::new(),
        settled: true,
        unsettled: Vec::new(),
        restart: None,
        epoch: u64::from(observed.overview.is_some()),
    }
}

fn decide(identity: Option<&Identity>, observed: &Observed, adopt: Option<&str>) -> Row {
    let addresses = names()
        .into_iter()
        .map(|name| (name.clone(), format!("{name}.nodes:9300")))
        .collect();
    row(identity, &names(), observed, adopt, "fresh", &addresses)
}

#[test]
fn nothing_is_decided_before_every_node_answers() {
    let mut seen = observed(all(None, false));
    seen.nodes.insert("q-1".to_owned(), Err("timeout".to_owned()));
    assert_eq!(decide(None, &seen, None), Row::Wait);
    assert_eq!(decide(Some(&recorded("u", false)), &seen, None), Row::Wait);
}

#[test]
fn empty_nodes_are_recorded_first_and_formed_only_as_recorded() {
    let seen = observed(all(None, false));
    let Row::Record(identity) = decide(None, &seen, None) else {
        panic!()
    };
    assert_eq!(
        (
            identity.cluster_uuid.as_str(),
            identity.formed,
            identity.members.len()
        ),
        ("fresh", false, 3)
    );
    assert_eq!(identity.members[0].disk_id.as_deref(), Some("disk-q-0"));
    assert_eq!(decide(Some(&identity), &seen, None), Row::Initialise);
}

#[test]
fn another_disk_before_formation_is_recorded_anew() {
    let mut nodes = all(None, false);
    nodes[2].node_id = "other".to_owned();
    let Row::Record(identity) = decide(Some(&recorded("u", false)), &observed(nodes), None) else {
        panic!()
    };
    assert_eq!(identity.members[2].node_id, "other");
    assert!(!identity.formed);
}

#[test]
fn a_formation_that_was_begun_with_other_members_is_reset_only_without_indices() {
    let mut nodes = all(None, false);
    nodes[0] = node("q-0", "id-q-0", Some("u"), false);
    nodes[2].node_id = "other".to_owned();
    assert_eq!(
        decide(Some(&recorded("u", false)), &observed(nodes.clone()), None),
        Row::Reset {
            node: "q-0".to_owned()
        }
    );
    nodes[0].indices_on_disk = 1;
    assert!(matches!(
        decide(Some(&recorded("u", false)), &observed(nodes), None),
        Row::Foreign(_)
    ));
}

#[test]
fn a_half_told_formation_is_told_again() {
    let mut nodes = all(None, false);
    nodes[0] = node("q-0", "id-q-0", Some("u"), false);
    assert_eq!(
        decide(Some(&recorded("u", false)), &observed(nodes), None),
        Row::Initialise
    );
}

#[test]
fn what_the_nodes_formed_is_recorded() {
    assert!(
        matches!(decide(Some(&recorded("u", false)), &observed(all(Some("u"), true)), None), Row::MarkFormed(identity) if identity.formed && identity.cluster_uuid == "u")
    );
}

#[test]
fn an_unrecorded_cluster_is_adopted_only_if_all_nodes_agree() {
    assert!(
        matches!(decide(None, &observed(all(Some("x"), true)), None), Row::Adopt(identity) if identity.cluster_uuid == "x" && identity.formed)
    );
    let mut mixed = all(Some("x"), true);
    mixed[1] = node("q-1", "id-q-1", None, false);
    assert!(matches!(
        decide(None, &observed(mixed.clone()), None),
        Row::Foreign(_)
    ));
    assert!(matches!(decide(None, &observed(mixed), Some("x")), Row::Adopt(_)));
}

#[test]
fn data_of_another_cluster_is_foreign_until_a_person_decides() {
    let seen = observed(all(Some("x"), true));
    assert!(matches!(
        decide(Some(&recorded("u", true)), &seen, None),
        Row::Foreign(_)
    ));
    assert!(matches!(
        decide(Some(&recorded("u", true)), &seen, Some("y")),
        Row::Foreign(_)
    ));
    assert!(matches!(
        decide(Some(&recorded("u", true)), &seen, Some("x")),
        Row::Adopt(_)
    ));
}

#[test]
fn an_emptied_disk_of_the_same_claim_needs_a_person() {
    let mut nodes = all(Some("u"), true);
    nodes[1] = node("q-1", "new", None, false);
    let mut seen = observed(nodes);
    seen.overview = Some(overview(&seen, &["q-1"]));
    assert_eq!(
        decide(Some(&recorded("u", true)), &seen, None),
        Row::DiskEmptied(vec!["q-1".to_owned()])
    );
}

#[test]
fn a_new_claim_replaces_the_voter_once_the_old_one_is_dead_and_a_majority_lives() {
    let mut nodes = all(Some("u"), true);
    nodes[1] = node("q-1", "new", None, false);
    let mut seen = observed(nodes);
    seen.runtime.instances[1].disk_id = Some("new-claim".to_owned());
    // Without quorum nothing changes the membership.
    assert_eq!(decide(Some(&recorded("u", true)), &seen, None), Row::Formed);
    seen.overview = Some(overview(&seen, &[]));
    assert_eq!(
        decide(Some(&recorded("u", true)), &seen, None),
        Row::Formed,
        "the old one still answers pings"
    );
    seen.overview = Some(overview(&seen, &["q-1", "q-2"]));
    assert_eq!(
        decide(Some(&recorded("u", true)), &seen, None),
        Row::Formed,
        "no majority of others"
    );
    seen.overview = Some(overview(&seen, &["q-1"]));
    let Row::Replace(replacement) = decide(Some(&recorded("u", true)), &seen, None) else {
        panic!()
    };
    assert_eq!(replacement.lost_node_id, "id-q-1");
    assert_eq!(
        replacement.member,
        Member {
            node_id: "new".to_owned(),
            name: "q-1".to_owned(),
            address: "q-1.nodes:9300".to_owned(),
            disk_id: Some("new-claim".to_owned())
        }
    );
}

#[test]
fn two_lost_of_three_is_quorum_lost_and_three_is_gone() {
    let mut nodes = all(Some("u"), true);
    nodes[1] = node("q-1", "new1", None, false);
    nodes[2] = node("q-2", "new2", None, false);
    let mut seen = observed(nodes);
    seen.runtime.instances[1].disk_id = Some("new-claim".to_owned());
    assert_eq!(
        decide(Some(&recorded("u", true)), &seen, None),
        Row::QuorumLost(vec!["q-1".to_owned(), "q-2".to_owned()])
    );
    let mut all_new = all(None, false);
    for status in &mut all_new {
        status.node_id = "new".to_owned();
    }
    assert_eq!(
        decide(Some(&recorded("u", true)), &observed(all_new), None),
        Row::Gone
    );
}

#[test]
fn a_replaced_node_that_waits_for_its_first_state_is_not_lost() {
    let mut nodes = all(Some("u"), true);
    nodes[1] = node("q-1", "new", None, false);
    let mut seen = observed(nodes);
    let mut known = overview(&seen, &[]);
    known.nodes[1].node_id = "new".to_owned();
    seen.overview = Some(known);
    assert_eq!(decide(Some(&recorded("u", true)), &seen, None), Row::Formed);
}
