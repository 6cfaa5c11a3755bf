//! An operator that has nothing to do writes nothing.

use super::flow::Flow;
use std::time::Duration;

/// Long enough for two passes over each object.
const WATCHED: Duration = Duration::from_secs(60);

#[tokio::test]
async fn sixty_quiet_seconds_without_a_write_but_the_lease() {
    let flow = Flow::with_indices("quiet").await;
    // Counters settle within their minute; a write that follows from the start is not what is asked here.
    let user = format!("system:serviceaccount:{}:", flow.operator.name);
    let written = |mark| {
        let writes = flow.bed.writes_since(mark).unwrap();
        writes
            .into_iter()
            .filter(|write| write.user.starts_with(&user) && write.resource != "leases")
            .collect::<Vec<_>>()
    };
    segmentry_testbed::eventually(super::flow::LIMIT, "ten seconds without a write", || async {
        let mark = flow.bed.audit_mark()?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let writes = written(mark);
        anyhow::ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
    .await
    .unwrap();
    let mark = flow.bed.audit_mark().unwrap();
    tokio::time::sleep(WATCHED).await;
    let writes = written(mark);
    assert!(writes.is_empty(), "{writes:#?}");
    let leases = flow.bed.writes_since(mark).unwrap();
    assert!(
        leases
            .iter()
            .any(|write| write.user.starts_with(&user) && write.resource == "leases"),
        "the operator did not run"
    );
}
