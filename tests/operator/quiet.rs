//! An operator that has nothing to do writes nothing, and one that watches a load writes seldom.

use super::flow::Flow;
use super::writers::Writers;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Long enough for two passes over each object.
const WATCHED: Duration = Duration::from_secs(60);
/// Counters that moved with the last write are written once more, at most a minute later.
const SETTLED: Duration = Duration::from_secs(65);

#[tokio::test]
async fn sixty_quiet_seconds_without_a_write_but_the_lease() {
    let flow = Flow::with_indices("quiet").await;
    let user = format!("system:serviceaccount:{}:", flow.operator.name);
    tokio::time::sleep(SETTLED).await;
    let mark = flow.bed.audit_mark().unwrap();
    tokio::time::sleep(WATCHED).await;
    let mut seen = flow.bed.writes_since(mark).unwrap();
    seen.retain(|write| write.user.starts_with(&user));
    assert!(
        seen.iter().any(|write| write.resource == "leases"),
        "the operator did not run"
    );
    seen.retain(|write| write.resource != "leases");
    assert!(seen.is_empty(), "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_at_most_one_write_a_minute_for_each_object() {
    let flow = Arc::new(Flow::with_indices("busy").await);
    let user = format!("system:serviceaccount:{}:", flow.operator.name);
    let writers = [
        Writers::start(&flow, "documents"),
        Writers::start(&flow, "segments"),
    ];
    for writer in &writers {
        writer.go_on(&flow).await;
    }
    tokio::time::sleep(SETTLED).await;
    let mark = flow.bed.audit_mark().unwrap();
    tokio::time::sleep(WATCHED * 2).await;
    let seen = flow.bed.writes_since(mark).unwrap();
    for writer in writers {
        writer.assert_kept(&flow).await;
    }
    let mut writes: BTreeMap<(String, String), u32> = BTreeMap::new();
    for write in seen {
        if write.user.starts_with(&user) && write.resource != "leases" {
            *writes.entry((write.resource, write.name)).or_default() += 1;
        }
    }
    println!("writes in two minutes of load: {writes:?}");
    assert!(
        writes.keys().any(|(resource, _)| resource == "indices/status"),
        "counters under load are written: {writes:?}"
    );
    // Two minutes hold two writes, and a third where the first comes with their beginning.
    assert!(writes.values().all(|count| *count <= 3), "{writes:#?}");
}
