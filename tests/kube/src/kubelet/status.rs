//! The pod's status, as a kubelet reports it.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The time now, as `metav1.Time`.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// State of the one container.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    Waiting { reason: &'static str, message: String },
    Running { since: String },
    Terminated(Ended),
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ended {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub started: String,
    pub finished: String,
}

impl Ended {
    fn json(&self) -> Value {
        let reason = if self.exit_code == 0 { "Completed" } else { "Error" };
        json!({"exitCode": self.exit_code, "signal": self.signal, "reason": reason, "startedAt": self.started, "finishedAt": self.finished})
    }
}

/// What is reported of one pod; [`Report::send`] writes it only when it has changed.
#[derive(Debug)]
pub(super) struct Report {
    pub address: Option<IpAddr>,
    pub started: Option<String>,
    pub state: State,
    pub last: Option<Ended>,
    pub restarts: i32,
    /// Startup probe passed.
    pub up: bool,
    /// Readiness probe passes.
    pub ready: bool,
    /// Why it cannot be scheduled.
    pub unschedulable: Option<String>,
    /// It will never run again: the container ended and its restart policy says so.
    pub finished: bool,
    transitions: BTreeMap<&'static str, (bool, String)>,
    sent: Option<Value>,
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            address: None,
            started: None,
            state: State::Waiting {
                reason: "ContainerCreating",
                message: String::new(),
            },
            last: None,
            restarts: 0,
            up: false,
            ready: false,
            unschedulable: None,
            finished: false,
            transitions: BTreeMap::new(),
            sent: None,
        }
    }

    fn condition(&mut self, kind: &'static str, holds: bool, reason: Option<&str>, message: &str) -> Value {
        let entry = self.transitions.entry(kind).or_insert_with(|| (holds, now()));
        if entry.0 != holds {
            *entry = (holds, now());
        }
        let status = if holds { "True" } else { "False" };
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": entry.1})
    }

    fn render(&mut self, container: &Container) -> Value {
        let scheduled = self.unschedulable.is_none();
        let message = self.unschedulable.clone().unwrap_or_default();
        let mut conditions = vec![self.condition(
            "PodScheduled",
            scheduled,
            (!scheduled).then_some("Unschedulable"),
            &message,
        )];
        if !scheduled {
            return json!({"phase": "Pending", "conditions": conditions});
        }
        let ready = self.ready && matches!(self.state, State::Running { .. });
        let (reason, text) = if ready {
            (None, String::new())
        } else {
            (
                Some("ContainersNotReady"),
                format!("containers with unready status: [{}]", container.name),
            )
        };
        conditions.push(self.condition("Initialized", true, None, ""));
        conditions.push(self.condition("ContainersReady", ready, reason, &text));
        conditions.push(self.condition("Ready", ready, reason, &text));
        let (phase, state) = match &self.state {
            State::Waiting { reason, message } => {
                // A container that ran once keeps its pod in phase Running while it waits for its restart.
                let phase = if self.restarts > 0 || self.last.is_some() {
                    "Running"
                } else {
                    "Pending"
                };
                (phase, json!({"waiting": {"reason": reason, "message": message}}))
            }
            State::Running { since } => ("Running", json!({"running": {"startedAt": since}})),
            State::Terminated(ended) if self.finished => (
                if ended.exit_code == 0 {
                    "Succeeded"
                } else {
                    "Failed"
                },
                json!({"terminated": ended.json()}),
            ),
            State::Terminated(ended) => ("Running", json!({"terminated": ended.json()})),
        };
        let last = self
            .last
            .as_ref()
            .map_or(json!({}), |ended| json!({"terminated": ended.json()}));
        let image = container.image.clone().unwrap_or_default();
        json!({
            "phase": phase,
            "hostIP": "127.0.0.1",
            "podIP": self.address,
            "podIPs": self.address.map(|ip| vec![json!({"ip": ip})]),
            "startTime": self.started,
            "conditions": conditions,
            "containerStatuses": [{
                "name": container.name, "image": image, "imageID": image,
                "ready": ready, "started": self.up, "restartCount": self.restarts,
                "state": state, "lastState": last,
            }],
        })
    }

    /// Writes what has changed. Conditions of others (an eviction's `DisruptionTarget`) stay: the list is merged by type.
    pub(super) async fn send(
        &mut self,
        client: &kube::Client,
        pod: &Pod,
        container: &Container,
    ) -> Result<()> {
        let status = self.render(container);
        if self.sent.as_ref() == Some(&status) {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        // The uid makes the server refuse a report for another incarnation of the name. Lists without a merge key are set whole.
        let mut patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
        if let Some(entry) = patch.pointer_mut("/status/containerStatuses/0/state") {
            replace_whole(entry);
        }
        if let Some(entry) = patch.pointer_mut("/status/containerStatuses/0/lastState") {
            replace_whole(entry);
        }
        match pods
            .patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await
        {
            Ok(_) => {}
            // Gone, or another incarnation: the watch tells so in a moment.
            Err(kube::Error::Api(refusal)) if refusal.is_not_found() || refusal.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
        self.sent = Some(status);
        Ok(())
    }
}

/// A merged state would be waiting and running at once: the other members are named and emptied.
fn replace_whole(state: &mut Value) {
    if let Some(members) = state.as_object_mut() {
        for name in ["waiting", "running", "terminated"] {
            members.entry(name).or_insert(Value::Null);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Container {
        Container {
            name: "node".to_owned(),
            image: Some("x".to_owned()),
            ..Container::default()
        }
    }

    fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
        status["conditions"]
            .as_array()?
            .iter()
            .find(|condition| condition["type"] == kind)
    }

    #[test]
    fn a_crashed_container_is_not_ready_and_its_pod_still_running() {
        let mut report = Report::new();
        report.ready = true;
        let ended = Ended {
            exit_code: 137,
            signal: Some(9),
            started: now(),
            finished: now(),
        };
        report.state = State::Terminated(ended);
        let status = report.render(&container());
        assert_eq!(status["phase"], "Running");
        assert_eq!(
            condition(&status, "Ready").map(|condition| &condition["status"]),
            Some(&json!("False"))
        );
        assert_eq!(
            status["containerStatuses"][0]["state"]["terminated"]["exitCode"],
            137
        );
    }

    #[test]
    fn an_unschedulable_pod_reports_nothing_of_containers() {
        let mut report = Report::new();
        report.unschedulable = Some("0/1 nodes".to_owned());
        let status = report.render(&container());
        assert_eq!(
            condition(&status, "PodScheduled").map(|condition| &condition["reason"]),
            Some(&json!("Unschedulable"))
        );
        assert_eq!(status.get("containerStatuses"), None);
    }
}
