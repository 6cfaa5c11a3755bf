//! Who wrote what to the API server: the audit log, read back.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::fs;
use std::path::Path;

/// Name of the log below the control plane's folder.
pub(crate) const FILE: &str = "audit.log";

/// Writes only, without bodies.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
- {level: None}
";

/// One write that the API server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// `system:serviceaccount:<namespace>:<name>`, `admin`, ...
    pub user: String,
    /// create, update, patch, delete, deletecollection
    pub verb: String,
    /// Plural of the kind, with its subresource: `pods`, `indices/status`.
    pub resource: String,
    /// Namespace; empty for none.
    pub namespace: String,
    /// Object name; empty when the server chose it.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// A place in the log: [`since`] answers what came after it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark(usize);

/// The end of the log.
pub fn mark(folder: &Path) -> Result<Mark> {
    Ok(Mark(read(folder)?.len()))
}

/// Every write after a mark.
pub fn since(folder: &Path, mark: Mark) -> Result<Vec<Write>> {
    let text = read(folder)?;
    let text = text.get(mark.0..).context("the audit log was cut")?;
    text.lines()
        .filter(|line| line.ends_with('}'))
        .map(parse)
        .collect()
}

fn read(folder: &Path) -> Result<String> {
    let path = folder.join(FILE);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

fn parse(line: &str) -> Result<Write> {
    #[derive(Deserialize)]
    struct User {
        username: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Object {
        resource: String,
        subresource: String,
        namespace: String,
        name: String,
    }
    #[derive(Deserialize, Default)]
    struct Response {
        code: u16,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event {
        verb: String,
        user: User,
        #[serde(default)]
        object_ref: Object,
        #[serde(default)]
        response_status: Response,
    }
    let Event {
        verb,
        user,
        object_ref,
        response_status,
    } = serde_json::from_str(line).with_context(|| format!("audit line {line}"))?;
    let Object {
        mut resource,
        subresource,
        namespace,
        name,
    } = object_ref;
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    Ok(Write {
        user: user.username,
        verb,
        resource,
        namespace,
        name,
        code: response_status.code,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_what_was_written_after_the_mark_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let line = |name: &str| {
            format!(
                r#"{{"verb":"patch","user":{{"username":"admin"}},"objectRef":{{"resource":"pods","subresource":"status","namespace":"a","name":"{name}"}},"responseStatus":{{"code":200}}}}"#
            ) + "\n"
        };
        fs::write(folder.path().join(FILE), line("before")).unwrap();
        let mark = mark(folder.path()).unwrap();
        fs::write(folder.path().join(FILE), line("before") + &line("after")).unwrap();
        let writes = since(folder.path(), mark).unwrap();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (
                writes[0].name.as_str(),
                writes[0].resource.as_str(),
                writes[0].code
            ),
            ("after", "pods/status", 200)
        );
    }
}
