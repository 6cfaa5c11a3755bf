//! One pass over one Index.

use super::{BUSY, Outcome, PassError, QUIET, Reconciler, formed_uuid, retrying, status};
use crate::{
    api::{
        Index, IndexCluster,
        conditions::{self, Verdict, reason},
        index::DeletionPolicy,
        labels,
        valid::{Key, ValidCluster, ValidIndex},
    },
    apply::{self, ApplyError, Done, Pass},
    objects::{Claim, Objects, Work},
    observe::Observed,
    plan::{
        Note, Plan, Step,
        index::{self, ClusterView, Finalize, Up},
    },
    runtime::Runtime,
};
use jiff::Timestamp;
use kube::ResourceExt;
use segmentry_settings::admin::IndexOverview;
use std::{sync::Arc, time::Duration};

/// Age up to which the passes of many indices share one observation.
const SHARED: Duration = Duration::from_secs(1);

/// A cluster that answers, as steps need it.
struct Live {
    cluster: ValidCluster,
    observed: Arc<Observed>,
    uuid: String,
}

impl<R: Runtime, O: Objects> Reconciler<R, O> {
    /// Fetch, validate, observe, plan, apply, status.
    pub(super) async fn reconcile_index(&self, key: &Key) -> Result<Outcome, PassError> {
        // fetch
        let Some(object) = self.objects.get_index(key).await? else {
            self.counters.forget("Index", key);
            // Whoever held it has to let go of the ownership.
            let clusters = self.objects.list_clusters(&key.namespace).await?;
            let wake = clusters
                .iter()
                .map(|cluster| {
                    Work::Cluster(Key {
                        namespace: key.namespace.clone(),
                        name: cluster.name_any(),
                    })
                })
                .collect();
            return Ok(Outcome {
                again: Duration::MAX,
                wake,
            });
        };
        let work = Work::Index(key.clone());
        let uid = object.uid().unwrap_or_default();
        if let Claim::Other(who) = self.objects.claim_index(&object).await? {
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
        let object = match self.objects.get_index(key).await? {
            Some(object) if object.uid().as_deref() == Some(uid.as_str()) => object,
            _ => {
                return Ok(Outcome {
                    again: BUSY,
                    wake: Vec::new(),
                });
            }
        };
        // observe
        let cluster_key = Key {
            namespace: key.namespace.clone(),
            name: object.spec.cluster_ref.name.clone(),
        };
        let (view, mut live) = self.cluster_view(&cluster_key, SHARED).await?;
        if object.metadata.deletion_timestamp.is_some() {
            return self.finalize(&object, key, &view, live.as_ref()).await;
        }
        // validate
        let valid = match ValidIndex::new(&object) {
            Ok(valid) => valid,
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
                self.write_index(&object, key, &plan, None, None).await?;
                return Ok(Outcome {
                    again: QUIET,
                    wake: Vec::new(),
                });
            }
        };
        // The finalizer stands before anything is created that it would have to remove.
        let wanted = object.spec.deletion_policy == DeletionPolicy::Delete;
        let present = object
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == labels::INDEX_FINALIZER);
        if wanted != present {
            self.objects.set_finalizer(&object, wanted).await?;
            return Ok(Outcome {
                again: Duration::from_millis(50),
                wake: Vec::new(),
            });
        }
        // plan
        let current = object.status.clone().unwrap_or_default();
        let (mut plan, mut found) = index::plan(&valid, &current, &view);
        if plan
            .verdicts
            .iter()
            .any(|verdict| verdict.reason == reason::INDEX_GONE)
        {
            // A shared view may be older than the creation itself: nothing is called gone but by a read that began now.
            let (fresh, fresh_live) = self.cluster_view(&cluster_key, Duration::ZERO).await?;
            (plan, found) = index::plan(&valid, &current, &fresh);
            live = fresh_live;
        }
        // apply
        let mut failed = None;
        let mut changed = false;
        if let Some(live) = &live {
            for step in &plan.steps {
                match self.apply_index(live, step).await {
                    Ok(Done::Index(now)) => {
                        changed = true;
                        tracing::info!(index = %key, uuid = %now.uuid, "done");
                        found = Some(*now);
                    }
                    Ok(Done::Changed | Done::Nothing) => changed = true,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
        }
        if let Some(error) = &failed {
            let why = match error {
                ApplyError::Node(error) if error.is_final() => (
                    reason::REFUSED,
                    format!("the cluster refuses what is declared: {error}"),
                ),
                error => retrying(error),
            };
            plan.verdicts.retain(|verdict| verdict.kind != conditions::READY);
            plan.verdicts
                .push(Verdict::new(conditions::READY, false, why.0, why.1));
        }
        // status
        self.write_index(
            &object,
            key,
            &plan,
            found.as_ref(),
            live.as_ref().map(|live| live.uuid.as_str()),
        )
        .await?;
        if failed.is_none() {
            for note in &plan.notes {
                self.objects.event(&work, &uid, note).await;
            }
        }
        let ready = plan
            .verdicts
            .iter()
            .all(|verdict| verdict.truth == conditions::Truth::True);
        Ok(Outcome {
            again: match (&failed, changed, ready) {
                (Some(ApplyError::Node(error)), ..) if error.is_final() => QUIET,
                (Some(_), ..) => BUSY * 3,
                (None, true, _) => BUSY,
                (None, false, true) => QUIET,
                // A missing cluster wakes its indices when it comes.
                (None, false, false) if live.is_none() => QUIET / 3,
                (None, false, false) => BUSY * 2,
            },
            wake: Vec::new(),
        })
    }

    async fn apply_index(&self, live: &Live, step: &Step) -> Result<Done, ApplyError> {
        let pass = Pass {
            cluster: &live.cluster,
            observed: &live.observed,
            uuid: Some(&live.uuid),
            epoch: self.epoch.current(),
            image: "",
            wanted_hash: "",
        };
        apply::carry_out(&self.runtime, &self.nodes, &self.expectations, &pass, step).await
    }

    async fn cluster_view(&self, key: &Key, age: Duration) -> Result<(ClusterView, Option<Live>), PassError> {
        let terminating = self.objects.namespace_terminating(&key.namespace).await?;
        let Some(object) = self.objects.get_cluster(key).await? else {
            return Ok((ClusterView::Missing, None));
        };
        if terminating || object.metadata.deletion_timestamp.is_some() {
            return Ok((ClusterView::Deleting, None));
        }
        self.view_of(&object, age).await
    }

    async fn view_of(
        &self,
        object: &IndexCluster,
        age: Duration,
    ) -> Result<(ClusterView, Option<Live>), PassError> {
        let cluster = match ValidCluster::new(object) {
            Ok(cluster) => cluster,
            Err(error) => return Ok((ClusterView::NotReady(error.to_string()), None)),
        };
        let Some(uuid) = formed_uuid(object) else {
            return Ok((ClusterView::Forming("it is not formed yet".to_owned()), None));
        };
        let observed = match self.shared_view(&cluster, &uuid, age).await {
            Ok(observed) => observed,
            Err(error) => return Ok((ClusterView::NotReady(error.to_string()), None)),
        };
        let Some(overview) = observed.overview.clone() else {
            let why = observed
                .overview_error
                .clone()
                .unwrap_or_else(|| "no node answers".to_owned());
            return Ok((ClusterView::NotReady(why), None));
        };
        if self.epoch.outrun(overview.epoch) {
            return Ok((
                ClusterView::NotReady("the lease epoch is being raised".to_owned()),
                None,
            ));
        }
        let up = Up {
            overview,
            default_replication: cluster.default_replication,
            default_durability: cluster.default_durability,
            paused: cluster.paused,
        };
        Ok((
            ClusterView::Up(Box::new(up)),
            Some(Live {
                cluster,
                observed,
                uuid,
            }),
        ))
    }

    async fn finalize(
        &self,
        object: &Index,
        key: &Key,
        view: &ClusterView,
        live: Option<&Live>,
    ) -> Result<Outcome, PassError> {
        let work = Work::Index(key.clone());
        let uid = object.uid().unwrap_or_default();
        let again = |again| {
            Ok(Outcome {
                again,
                wake: Vec::new(),
            })
        };
        if !object
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == labels::INDEX_FINALIZER)
        {
            return again(Duration::MAX);
        }
        let since = object
            .metadata
            .deletion_timestamp
            .as_ref()
            .map_or(0, |time| Timestamp::now().as_second() - time.0.as_second());
        let age = Duration::from_secs(u64::try_from(since).unwrap_or_default());
        match index::finalize(object, view, age) {
            Finalize::Drop(note) => {
                if let Some(note) = &note {
                    self.objects.event(&work, &uid, note).await;
                }
                self.objects.set_finalizer(object, false).await?;
                again(Duration::MAX)
            }
            Finalize::Delete { index } => {
                let outcome = match live {
                    Some(live) => self.apply_index(live, &Step::DeleteIndex { index }).await,
                    None => Err(ApplyError::NoNode),
                };
                match outcome {
                    Ok(_) => {
                        tracing::info!(index = %key, "deleted");
                        again(BUSY + Duration::from_millis(100))
                    }
                    // A cluster that answers reads and refuses the deletion is bounded like one that does not answer.
                    Err(error) if age >= index::FINALIZE_BOUND => {
                        let note = Note::warning(
                            reason::INDEX_DATA_LEFT,
                            "Delete",
                            format!(
                                "the index could not be deleted for 10 minutes ({error}); delete it over REST"
                            ),
                        );
                        self.objects.event(&work, &uid, &note).await;
                        self.objects.set_finalizer(object, false).await?;
                        again(Duration::MAX)
                    }
                    Err(error) => self.deletion_waits(object, key, &error.to_string()).await,
                }
            }
            Finalize::Wait(why) => self.deletion_waits(object, key, &why).await,
        }
    }

    async fn deletion_waits(&self, object: &Index, key: &Key, why: &str) -> Result<Outcome, PassError> {
        let text = format!(
            "the index is to be deleted and its cluster does not do it: {why}; given up 10 minutes after the deletion"
        );
        let plan = Plan {
            verdicts: vec![Verdict::new(conditions::READY, false, reason::DELETING, text)],
            ..Plan::default()
        };
        self.write_index(object, key, &plan, None, None).await?;
        Ok(Outcome {
            again: BUSY * 3,
            wake: Vec::new(),
        })
    }

    async fn write_index(
        &self,
        object: &Index,
        key: &Key,
        plan: &Plan,
        found: Option<&IndexOverview>,
        cluster_uuid: Option<&str>,
    ) -> Result<bool, PassError> {
        let now = Timestamp::now();
        let generation = object.metadata.generation.unwrap_or_default();
        let old = object.status.clone().unwrap_or_default();
        let mut new = old.clone();
        new.observed_generation = Some(generation);
        new.conditions = conditions::merge(
            &old.conditions,
            &conditions::INDEX_TYPES,
            &plan.verdicts,
            generation,
            now,
        );
        if let (Some(found), Some(cluster_uuid)) = (found, cluster_uuid) {
            index::observed_status(&mut new, found, cluster_uuid);
            status::hold_counters(&old, &mut new, now);
        } else if plan
            .verdicts
            .iter()
            .any(|verdict| verdict.kind == conditions::READY && verdict.reason == reason::CLUSTER_NOT_READY)
        {
            new.health = Some(crate::api::status::Health::Unknown);
        }
        if new == old {
            return Ok(false);
        }
        if status::only_texts_differ_index(&old, &new) && !self.counters.texts_due("Index", key, now) {
            return Ok(false);
        }
        let mut object = object.clone();
        object.status = Some(new);
        self.objects.write_index_status(&object).await?;
        self.counters.wrote("Index", key, now);
        Ok(true)
    }
}
