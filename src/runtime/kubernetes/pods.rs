//! What a pod says, as an instance.

use crate::{
    api::{INTERNAL_PORT, labels},
    runtime::{Instance, Problem},
};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;

/// Name of the pod's data volume claim.
pub fn claim_name(pod: &Pod) -> Option<String> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let volume = volumes.iter().find(|volume| volume.name == "data")?;
    Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())
}

/// The pod as an instance, without its disk.
pub fn instance(pod: &Pod) -> Instance {
    let status = pod.status.clone().unwrap_or_default();
    let container = status
        .container_statuses
        .as_ref()
        .and_then(|list| list.iter().find(|container| container.name == "node"))
        .cloned();
    let running = container
        .as_ref()
        .and_then(|container| container.state.as_ref())
        .is_some_and(|state| state.running.is_some());
    let phase = status.phase.clone().unwrap_or_default();
    let broken =
        !running && (phase == "Pending" || phase == "Failed" || container.as_ref().is_some_and(failed));
    Instance {
        name: pod.name_any(),
        instance_id: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version(),
        template_hash: pod.annotations().get(labels::TEMPLATE_HASH).cloned(),
        running,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        disk_id: None,
        address: status.pod_ip.as_ref().filter(|ip| !ip.is_empty()).map(|ip| {
            if ip.contains(':') {
                format!("[{ip}]:{INTERNAL_PORT}")
            } else {
                format!("{ip}:{INTERNAL_PORT}")
            }
        }),
        problem: problem(pod, container.as_ref()),
        broken,
    }
}

/// The container failed for a reason that its template may hold: not a single end, which a restart may cure.
fn failed(container: &ContainerStatus) -> bool {
    let Some(state) = &container.state else {
        return false;
    };
    let waiting = state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default();
    let bad_wait = [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    ]
    .contains(&waiting);
    bad_wait || state.terminated.is_some() && container.restart_count >= 2
}

fn ended(terminated: &ContainerStateTerminated) -> Problem {
    let why = terminated
        .reason
        .clone()
        .filter(|why| !why.is_empty())
        .unwrap_or_else(|| "Terminated".to_owned());
    let mut message = format!("exit code {}", terminated.exit_code);
    if let Some(signal) = terminated.signal {
        message = format!("{message}, signal {signal}");
    }
    if let Some(text) = terminated.message.as_deref().filter(|text| !text.is_empty()) {
        message = format!("{message}, {text}");
    }
    Problem { reason: why, message }
}

/// Scheduler first, then the kubelet: the first obstacle is the one to tell.
fn problem(pod: &Pod, container: Option<&ContainerStatus>) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unscheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        return Some(Problem {
            reason: condition
                .reason
                .clone()
                .unwrap_or_else(|| "Unschedulable".to_owned()),
            message: condition.message.clone().unwrap_or_default(),
        });
    }
    if status.phase.as_deref() == Some("Failed") && status.reason.is_some() {
        return Some(Problem {
            reason: status.reason.clone().unwrap_or_default(),
            message: status.message.clone().unwrap_or_default(),
        });
    }
    let container = container?;
    let state = container.state.as_ref()?;
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref())
        .map(ended);
    if let Some(waiting) = &state.waiting {
        let why = waiting.reason.clone().unwrap_or_default();
        if why == "ContainerCreating" || why == "PodInitializing" || why.is_empty() {
            return None;
        }
        let mut message = waiting.message.clone().unwrap_or_default();
        if let Some(last) = last {
            message = format!("last end: {last}; {message}");
        }
        return Some(Problem { reason: why, message });
    }
    if let Some(terminated) = &state.terminated {
        return Some(ended(terminated));
    }
    // It runs: how it ended before is worth telling while it is not ready.
    if container.ready {
        None
    } else {
        last.map(|last| Problem {
            reason: last.reason,
            message: format!("restarted; last end: {}", last.message),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn pod(status: serde_json::Value) -> Instance {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "q-nodes-0", "uid": "u", "resourceVersion": "5", "annotations": {labels::TEMPLATE_HASH: "h"}},
            "spec": {"containers": [], "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-q-nodes-0"}}]},
            "status": status
        }))
        .unwrap();
        assert_eq!(claim_name(&pod).unwrap(), "data-q-nodes-0");
        instance(&pod)
    }

    fn container(state: serde_json::Value, restarts: i32, last: serde_json::Value) -> serde_json::Value {
        json!({"phase": "Running", "podIP": "127.0.0.2", "containerStatuses": [{"name": "node", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state, "lastState": last}]})
    }

    #[test]
    fn an_unschedulable_pod_is_broken_and_says_why() {
        let found = pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: insufficient memory"}]}),
        );
        assert!(found.broken && !found.running);
        assert_eq!(
            found.problem.unwrap().to_string(),
            "Unschedulable: 0/3 nodes: insufficient memory"
        );
    }

    #[test]
    fn a_pull_error_is_broken_and_says_why() {
        let found = pod(container(
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            0,
            json!({}),
        ));
        assert!(found.broken);
        assert_eq!(found.problem.unwrap().reason, "ImagePullBackOff");
    }

    #[test]
    fn an_out_of_memory_kill_keeps_its_exit_code() {
        let found = pod(container(
            json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}),
            3,
            json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
        ));
        assert!(found.broken);
        let text = found.problem.unwrap().to_string();
        assert!(text.contains("OOMKilled") && text.contains("137"), "{text}");
    }

    #[test]
    fn running_but_not_ready_is_never_broken() {
        let found = pod(container(json!({"running": {}}), 9, json!({})));
        assert!(found.running && !found.broken);
        assert_eq!(found.address.as_deref(), Some("127.0.0.2:9300"));
    }

    #[test]
    fn one_end_is_not_broken_two_restarts_are() {
        let state = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        assert!(!pod(container(state.clone(), 1, json!({}))).broken);
        assert!(pod(container(state, 2, json!({}))).broken);
    }
}
