//! An operator that has nothing to do writes nothing.

use super::flow::Flow;
use std::time::Duration;

/// Long enough for two passes over each object.
const WATCHED: Duration = Duration::from_secs(60);

#[tokio::test]
async fn sixty_quiet_seconds_without_a_write_but_the_lease() {
    let flow = Flow::with_indices("quiet").await;
    let user = format!("system:serviceaccount:{}:", flow.operator.name);
    // A counter that moved just after it was written is written again a minute later: that is the one write that may come first.
    let mut seen = Vec::new();
    let mut quiet = None;
    for _ in 0..3 {
        let mark = flow.bed.audit_mark().unwrap();
        tokio::time::sleep(WATCHED).await;
        seen = flow.bed.writes_since(mark).unwrap();
        seen.retain(|write| write.user.starts_with(&user) && write.resource != "leases");
        if seen.is_empty() {
            quiet = Some(mark);
            break;
        }
    }
    let mark = quiet.unwrap_or_else(|| panic!("no quiet minute in three: {seen:#?}"));
    let leases = flow.bed.writes_since(mark).unwrap();
    assert!(
        leases
            .iter()
            .any(|write| write.user.starts_with(&user) && write.resource == "leases"),
        "the operator did not run"
    );
}
