//! Facts about one cluster, read through the doors and from the nodes themselves. Nothing here decides.

use crate::{
    api::valid::ValidCluster,
    nodeclient::{Endpoint, NodeClient},
    runtime::{Runtime, RuntimeError, RuntimeFacts},
};
use futures::future::join_all;
use segmentry_settings::admin::{NodeStatus, Overview};
use std::collections::BTreeMap;

/// Everything that a plan for a cluster looks at.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// What the runtime says.
    pub runtime: RuntimeFacts,
    /// What each running node says of itself, or why it did not answer.
    pub nodes: BTreeMap<String, Result<NodeStatus, String>>,
    /// The whole cluster by a linearizable read, or why there is none.
    pub overview: Option<Overview>,
    /// Why there is no overview.
    pub overview_error: Option<String>,
}

impl Observed {
    /// Status of a node that answered.
    pub fn node(&self, name: &str) -> Option<&NodeStatus> {
        self.nodes.get(name).and_then(|answer| answer.as_ref().ok())
    }
}

/// Reads live facts. A node that does not answer is a fact, not an error.
///
/// `uuid`: the recorded cluster uuid; without one no overview is asked for.
///
/// # Errors
/// The runtime could not be asked.
pub async fn observe<R: Runtime>(
    runtime: &R,
    client: &NodeClient,
    cluster: &ValidCluster,
    uuid: Option<&str>,
) -> Result<Observed, RuntimeError> {
    let facts = runtime.observe(cluster).await?;
    let mut observed = Observed {
        runtime: facts,
        ..Observed::default()
    };
    let Some(token) = observed.runtime.token.clone() else {
        observed.overview_error = Some("the internal token does not exist yet".to_owned());
        return Ok(observed);
    };
    let reachable: Vec<(String, Endpoint)> = observed
        .runtime
        .instances
        .iter()
        .filter(|instance| instance.running)
        .filter_map(|instance| {
            let address = instance.address.clone()?;
            Some((
                instance.name.clone(),
                Endpoint {
                    address,
                    token: token.clone(),
                    cluster_uuid: None,
                },
            ))
        })
        .collect();
    let answers = join_all(reachable.iter().map(|(_, endpoint)| client.node_status(endpoint))).await;
    for ((name, _), answer) in reachable.iter().zip(answers) {
        observed
            .nodes
            .insert(name.clone(), answer.map_err(|error| error.to_string()));
    }
    let Some(uuid) = uuid else {
        return Ok(observed);
    };
    // The leader first, where somebody knows it: the others would only forward.
    let leader = observed
        .nodes
        .values()
        .find_map(|answer| answer.as_ref().ok().and_then(|status| status.leader.clone()));
    let mut asked: Vec<(String, Endpoint)> = reachable
        .into_iter()
        .filter(|(name, _)| {
            observed
                .node(name)
                .is_some_and(|status| status.formed && status.cluster_uuid.as_deref() == Some(uuid))
        })
        .collect();
    asked.sort_by_key(|(name, _)| Some(name) != leader.as_ref());
    observed.overview_error = Some("no node of this cluster answers".to_owned());
    for (_, mut endpoint) in asked {
        endpoint.cluster_uuid = Some(uuid.to_owned());
        match client.overview(&endpoint).await {
            Ok(overview) => {
                observed.overview = Some(overview);
                observed.overview_error = None;
                break;
            }
            Err(error) => observed.overview_error = Some(error.to_string()),
        }
    }
    Ok(observed)
}
