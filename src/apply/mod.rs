//! Carries a plan out through the doors, step by step; the first failure ends the pass.
//!
//! - [`expectations`]: nothing is stopped while an earlier stop is not yet seen.

pub mod expectations;

use crate::{
    api::valid::ValidCluster,
    fault,
    nodeclient::{Endpoint, NodeClient, NodeError},
    observe::Observed,
    plan::Step,
    runtime::{NodeSet, Runtime, RuntimeError},
};
use expectations::Expectations;
use segmentry_settings::admin::{FinishRestart, IndexOverview, Reset};

/// Why a step was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A step for which a node is needed and none answers.
    #[error("no node of the cluster can be reached")]
    NoNode,
    /// An earlier stop is not seen yet.
    #[error("waits until the pods that were deleted are seen to go")]
    Unseen,
    /// Another cluster took the restart slot first.
    #[error("another cluster restarts")]
    SlotTaken,
}

/// What a step answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// Nothing was changed.
    Nothing,
    /// Something was changed.
    Changed,
    /// An index as it is now.
    Index(Box<IndexOverview>),
}

/// What steps of one pass share.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The declared cluster.
    pub cluster: &'a ValidCluster,
    /// Facts that the plan was made from.
    pub observed: &'a Observed,
    /// Recorded cluster uuid.
    pub uuid: Option<&'a str>,
    /// Lease epoch.
    pub epoch: u64,
    /// Image of the wanted template.
    pub image: &'a str,
    /// Hash of the wanted template.
    pub wanted_hash: &'a str,
}

impl Pass<'_> {
    /// A node by name, without stating a cluster: it may not be in one yet.
    fn node(&self, name: &str, uuid: Option<&str>) -> Result<Endpoint, ApplyError> {
        let token = self.observed.runtime.token.clone().ok_or(ApplyError::NoNode)?;
        let address = self
            .observed
            .runtime
            .instances
            .iter()
            .find(|instance| instance.name == name && instance.running)
            .and_then(|instance| instance.address.clone());
        Ok(Endpoint {
            address: address.ok_or(ApplyError::NoNode)?,
            token,
            cluster_uuid: uuid.map(ToOwned::to_owned),
        })
    }

    /// Any node of the cluster, the leader first.
    pub fn any_node(&self) -> Result<Endpoint, ApplyError> {
        let leader = self
            .observed
            .overview
            .as_ref()
            .and_then(|overview| overview.leader.clone());
        let formed = self
            .observed
            .nodes
            .iter()
            .filter(|(_, answer)| answer.as_ref().is_ok_and(|status| status.formed))
            .map(|(name, _)| name.clone());
        leader
            .into_iter()
            .chain(formed)
            .find_map(|name| self.node(&name, self.uuid).ok())
            .ok_or(ApplyError::NoNode)
    }
}

/// Carries out one step. `Step::WriteIdentity` is the caller's: it writes the declared object.
///
/// # Errors
/// See [`ApplyError`].
pub async fn carry_out<R: Runtime>(
    runtime: &R,
    nodes: &NodeClient,
    expectations: &Expectations,
    pass: &Pass<'_>,
    step: &Step,
) -> Result<Done, ApplyError> {
    let epoch = pass.epoch;
    match step {
        Step::WriteIdentity(_) => return Ok(Done::Nothing),
        Step::Ensure {
            apply_template,
            disruption_allowed,
        } => {
            let set = NodeSet {
                cluster: pass.cluster.clone(),
                image: pass.image.to_owned(),
                template_hash: pass.wanted_hash.to_owned(),
                apply_template: *apply_template,
                disruption_allowed: *disruption_allowed,
            };
            return Ok(if runtime.ensure(&set).await? {
                Done::Changed
            } else {
                Done::Nothing
            });
        }
        Step::Initialise { node, request } => {
            nodes.initialise(&pass.node(node, None)?, epoch, request).await?;
        }
        Step::Reset { node, cluster_uuid } => {
            nodes
                .reset(
                    &pass.node(node, None)?,
                    epoch,
                    &Reset {
                        cluster_uuid: cluster_uuid.clone(),
                    },
                )
                .await?;
        }
        Step::ReplaceMember(replacement) => {
            nodes
                .replace_member(&pass.any_node()?, epoch, replacement)
                .await?;
        }
        Step::ClusterSettings(settings) => nodes.cluster_settings(&pass.any_node()?, epoch, settings).await?,
        Step::ReleaseIndex { index, owner_uid } => missing_is_fine(
            nodes
                .release_index(&pass.any_node()?, epoch, index, owner_uid)
                .await,
        )?,
        Step::PrepareRestart(request) => {
            nodes.prepare_restart(&pass.any_node()?, epoch, request).await?;
        }
        Step::Stop(instances) => {
            if !expectations.are_met(&pass.cluster.key, &pass.observed.runtime.instances) {
                return Err(ApplyError::Unseen);
            }
            for instance in instances {
                tracing::info!(cluster = %pass.cluster.key, pod = %instance.name, hash = ?instance.template_hash, "is deleted to be made anew");
                expectations.stopped(&pass.cluster.key, &instance.instance_id);
                runtime.stop(&pass.cluster.key, instance).await?;
                fault::point(|| "Stop:between".to_owned());
            }
        }
        Step::FinishRestart { target } => {
            nodes
                .finish_restart(
                    &pass.any_node()?,
                    epoch,
                    &FinishRestart {
                        target: target.clone(),
                    },
                )
                .await?;
        }
        Step::CreateIndex(request) => {
            return Ok(Done::Index(Box::new(
                nodes.create_index(&pass.any_node()?, epoch, request).await?,
            )));
        }
        Step::AdoptIndex { index, owner } => {
            return Ok(Done::Index(Box::new(
                nodes.adopt_index(&pass.any_node()?, epoch, index, owner).await?,
            )));
        }
        Step::UpdateIndex { index, update } => {
            return Ok(Done::Index(Box::new(
                nodes
                    .update_index(&pass.any_node()?, epoch, index, update)
                    .await?,
            )));
        }
        Step::DeleteIndex { index } => {
            missing_is_fine(nodes.delete_index(&pass.any_node()?, epoch, index).await)?;
        }
    }
    Ok(Done::Changed)
}

fn missing_is_fine(outcome: Result<(), NodeError>) -> Result<(), NodeError> {
    match outcome {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}
