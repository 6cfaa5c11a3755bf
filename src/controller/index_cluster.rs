//! One pass over one IndexCluster.

use super::{BUSY, Outcome, PassError, QUIET, Reconciler, retrying, status};
use crate::{
    api::{
        IndexCluster, IndexClusterStatus,
        conditions::{self, Verdict, reason},
        status::{Identity, InProgress},
        valid::{Key, ValidCluster},
    },
    apply::{self, ApplyError, Done, Pass},
    build::template::template_hash,
    fault,
    objects::{Claim, Objects, Work},
    observe::{self, Observed},
    plan::{
        Note, Plan, Step,
        cluster::{self, ClusterPlan, Input},
        restart,
    },
    runtime::Runtime,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::{collections::BTreeSet, time::Duration};

impl<R: Runtime, O: Objects> Reconciler<R, O> {
    /// Fetch, validate, observe, plan, guard, apply, status.
    pub(super) async fn reconcile_cluster(&self, key: &Key) -> Result<Outcome, PassError> {
        let gone = Outcome {
            again: Duration::MAX,
            wake: Vec::new(),
        };
        // fetch
        let Some(object) = self.objects.get_cluster(key).await? else {
            self.forget(key);
            self.counters.forget("IndexCluster", key);
            return Ok(Outcome {
                wake: self.indices_of(key).await,
                ..gone
            });
        };
        if object.metadata.deletion_timestamp.is_some() {
            // Owned objects go by garbage collection, volumes stay; nothing here holds the object back.
            self.forget(key);
            return Ok(Outcome {
                wake: self.indices_of(key).await,
                ..gone
            });
        }
        let work = Work::Cluster(key.clone());
        let uid = object.uid().unwrap_or_default();
        if let Claim::Other(who) = self.objects.claim_cluster(&object).await? {
            let note = Note::warning(
                reason::CLAIMED_BY_OTHER,
                "Claim",
                format!(
                    "operator {who} looks after this object; this one does nothing. Remove annotation segmentry.io/operator to hand it over"
                ),
            );
            self.objects.event(&work, &uid, &note).await;
            return Ok(Outcome {
                again: QUIET * 2,
                wake: Vec::new(),
            });
        }
        let object = match self.objects.get_cluster(key).await? {
            Some(object) if object.uid().as_deref() == Some(uid.as_str()) => object,
            _ => {
                return Ok(Outcome {
                    again: BUSY,
                    wake: Vec::new(),
                });
            }
        };
        // validate
        let cluster = match ValidCluster::new(&object) {
            Ok(cluster) => cluster,
            Err(error) => {
                let plan = Plan {
                    verdicts: vec![Verdict::new(
                        conditions::READY,
                        false,
                        reason::INVALID_SPEC,
                        error.to_string(),
                    )],
                    ..Plan::default()
                };
                self.write_cluster(&object, key, &plan, None, None, None).await?;
                return Ok(Outcome {
                    again: QUIET,
                    wake: Vec::new(),
                });
            }
        };
        // observe
        let old_status = object.status.clone().unwrap_or_default();
        let identity = old_status.identity.as_ref();
        let observed = observe::observe(
            &self.runtime,
            &self.nodes,
            &cluster,
            identity.map(|identity| identity.cluster_uuid.as_str()),
        )
        .await;
        let observed = match observed {
            Ok(observed) => observed,
            Err(error) => {
                let why = if matches!(error, crate::runtime::RuntimeError::NameTaken { .. }) {
                    (reason::NAME_TAKEN, error.to_string())
                } else {
                    retrying(&error)
                };
                let plan = Plan {
                    verdicts: vec![Verdict::new(conditions::READY, false, why.0, why.1)],
                    ..Plan::default()
                };
                self.write_cluster(&object, key, &plan, None, None, None).await?;
                return Err(error.into());
            }
        };
        let known_epoch = observed.overview.as_ref().map_or(0, |overview| overview.epoch);
        if self.epoch.outrun(known_epoch) {
            tracing::warn!(cluster = %key, known_epoch, "the cluster has seen a higher lease epoch; ours is raised first");
            return Ok(Outcome {
                again: BUSY,
                wake: Vec::new(),
            });
        }
        // plan
        let image = self.image_of(&cluster, &observed);
        let hash = template_hash(&cluster, &image);
        let index_uids = self.live_index_uids(key).await;
        let addresses = cluster
            .node_names()
            .into_iter()
            .map(|node| {
                let address = self.runtime.member_address(&cluster, &node);
                (node, address)
            })
            .collect();
        let fresh = uuid::Uuid::new_v4().to_string();
        let input = Input {
            cluster: &cluster,
            identity,
            observed: &observed,
            wanted_hash: &hash,
            image: &image,
            index_uids: index_uids.as_ref(),
            slot_free: self.slot.is_free_for(key),
            fresh_uuid: &fresh,
            addresses: &addresses,
        };
        let mut planned = cluster::plan(&input);
        // guard
        if !planned.restart.holds_slot() {
            self.slot.release(key);
        } else if !self.slot.take(key) && planned.restart == restart::Row::Prepare {
            planned
                .plan
                .steps
                .retain(|step| !matches!(step, Step::PrepareRestart(_)));
        }
        // apply
        let pass = Pass {
            cluster: &cluster,
            observed: &observed,
            uuid: identity.map(|identity| identity.cluster_uuid.as_str()),
            epoch: self.epoch.current(),
            image: &image,
            wanted_hash: &hash,
        };
        fault::point(|| format!("{:?}:before", planned.restart));
        let (changed, failed, new_identity) = self.apply_cluster(&pass, &planned.plan.steps).await;
        fault::point(|| format!("{:?}:after", planned.restart));
        if let Some(error) = &failed {
            let why = if matches!(
                error,
                ApplyError::Runtime(crate::runtime::RuntimeError::NameTaken { .. })
            ) {
                (reason::NAME_TAKEN, error.to_string())
            } else {
                retrying(error)
            };
            planned
                .plan
                .verdicts
                .retain(|verdict| verdict.kind != conditions::READY);
            planned
                .plan
                .verdicts
                .push(Verdict::new(conditions::READY, false, why.0, why.1));
        }
        // status
        let wrote = self
            .write_cluster(
                &object,
                key,
                &planned.plan,
                Some(&planned),
                new_identity,
                Some((&observed, &image)),
            )
            .await?;
        if failed.is_none() {
            for note in &planned.plan.notes {
                self.objects.event(&work, &uid, note).await;
            }
        }
        let wake = if changed || wrote {
            self.indices_of(key).await
        } else {
            Vec::new()
        };
        match failed {
            Some(ApplyError::Runtime(error)) => Err(error.into()),
            Some(error) => {
                tracing::warn!(cluster = %key, %error, "a step is tried again");
                Ok(Outcome {
                    again: BUSY * 3,
                    wake,
                })
            }
            None if changed => Ok(Outcome {
                again: Duration::from_millis(200),
                wake,
            }),
            None if !planned.plan.waiting.is_empty() || planned.restart != restart::Row::Idle => {
                Ok(Outcome { again: BUSY, wake })
            }
            None => Ok(Outcome { again: QUIET, wake }),
        }
    }

    /// Without `spec.image` a running cluster keeps its image.
    fn image_of(&self, cluster: &ValidCluster, observed: &Observed) -> String {
        cluster
            .image
            .clone()
            .or_else(|| observed.runtime.set.as_ref().and_then(|set| set.image.clone()))
            .unwrap_or_else(|| self.settings.default_image.clone())
    }

    async fn live_index_uids(&self, key: &Key) -> Option<BTreeSet<String>> {
        match self.objects.list_indices(&key.namespace).await {
            Ok(list) => Some(list.iter().filter_map(ResourceExt::uid).collect()),
            Err(error) => {
                // Nobody's ownership ends because a list failed.
                tracing::warn!(cluster = %key, %error, "Index objects could not be listed");
                None
            }
        }
    }

    /// Carries out steps until one fails or the identity changes. True if something was changed.
    async fn apply_cluster(
        &self,
        pass: &Pass<'_>,
        steps: &[Step],
    ) -> (bool, Option<ApplyError>, Option<Identity>) {
        let mut changed = false;
        for step in steps {
            if let Step::WriteIdentity(identity) = step {
                return (true, None, Some(identity.clone()));
            }
            match apply::carry_out(&self.runtime, &self.nodes, &self.expectations, pass, step).await {
                Ok(Done::Nothing) => {}
                Ok(Done::Changed | Done::Index(_)) => {
                    changed = true;
                    if !matches!(step, Step::Ensure { .. }) {
                        tracing::info!(cluster = %pass.cluster.key, step = name_of(step), "done");
                    }
                }
                Err(error) => {
                    if let (Step::Stop(_), ApplyError::Runtime(_)) = (step, &error) {
                        // Refused: what stands in its place is looked at anew.
                        self.expectations.forget(&pass.cluster.key);
                    }
                    return (changed, Some(error), None);
                }
            }
        }
        (changed, None, None)
    }

    /// Writes the status if it differs. True if it was written.
    async fn write_cluster(
        &self,
        object: &IndexCluster,
        key: &Key,
        plan: &Plan,
        planned: Option<&ClusterPlan>,
        identity: Option<Identity>,
        seen: Option<(&Observed, &str)>,
    ) -> Result<bool, PassError> {
        let now = Timestamp::now();
        let generation = object.metadata.generation.unwrap_or_default();
        let old = object.status.clone().unwrap_or_default();
        let mut new = old.clone();
        new.observed_generation = Some(generation);
        new.conditions = conditions::merge(
            &old.conditions,
            &conditions::CLUSTER_TYPES,
            &plan.verdicts,
            generation,
            now,
        );
        if let Some(planned) = planned {
            new.health = Some(planned.health);
            new.nodes = planned.nodes.clone();
            if planned.version.is_some() {
                new.version.clone_from(&planned.version);
            }
            if !planned.primaries.is_empty() || old.primaries_by_node.is_empty() {
                new.primaries_by_node.clone_from(&planned.primaries);
            }
            new.in_progress = in_progress(plan, &old, now);
            if let (Some(members), Some(identity)) = (&planned.members, &mut new.identity)
                && identity.formed
            {
                identity.members.clone_from(members);
            }
        }
        if let Some((observed, image)) = seen {
            new.endpoint.clone_from(&observed.runtime.endpoint);
            new.image = observed
                .runtime
                .set
                .as_ref()
                .and_then(|set| set.image.clone())
                .or_else(|| Some(image.to_owned()));
        }
        let urgent = identity.is_some();
        if identity.is_some() {
            new.identity = identity;
        }
        if new == old {
            return Ok(false);
        }
        if !urgent
            && status::only_texts_differ_cluster(&old, &new)
            && !self.counters.texts_due("IndexCluster", key, now)
        {
            return Ok(false);
        }
        let mut object = object.clone();
        object.status = Some(new);
        self.objects.write_cluster_status(&object).await?;
        self.counters.wrote("IndexCluster", key, now);
        Ok(true)
    }
}

fn in_progress(plan: &Plan, old: &IndexClusterStatus, now: Timestamp) -> Vec<InProgress> {
    let mut list: Vec<InProgress> = plan
        .waiting
        .iter()
        .map(|wait| InProgress {
            node: wait.node.clone(),
            step: wait.step.to_owned(),
            waiting_for: wait
                .waiting_for
                .clone()
                .map(|text| text.chars().take(512).collect()),
            blocked_by: wait.blocked_by.map(ToOwned::to_owned),
            since: Time(now),
        })
        .collect();
    let mut seen = BTreeSet::new();
    list.retain(|entry| seen.insert((entry.node.clone(), entry.step.clone())));
    status::keep_since(&old.in_progress, &mut list);
    list
}

fn name_of(step: &Step) -> &'static str {
    match step {
        Step::WriteIdentity(_) => "WriteIdentity",
        Step::Ensure { .. } => "Ensure",
        Step::Initialise { .. } => "Initialise",
        Step::Reset { .. } => "Reset",
        Step::ReplaceMember(_) => "ReplaceMember",
        Step::ClusterSettings(_) => "ClusterSettings",
        Step::ReleaseIndex { .. } => "ReleaseIndex",
        Step::PrepareRestart(_) => "PrepareRestart",
        Step::Stop(_) => "Stop",
        Step::FinishRestart { .. } => "FinishRestart",
        Step::CreateIndex(_) => "CreateIndex",
        Step::AdoptIndex { .. } => "AdoptIndex",
        Step::UpdateIndex { .. } => "UpdateIndex",
        Step::DeleteIndex { .. } => "DeleteIndex",
    }
}
