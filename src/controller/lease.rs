//! Leadership by a Lease. `leaseTransitions` is the epoch that node calls carry: it grows with each new holder, and the cluster
//! state refuses lower ones, so that a former leader that still believes in itself changes nothing.
//!
//! Before the Lease is held nothing is written. When it cannot be renewed within its duration the process ends: another
//! instance may act by then. It is given up at a clean end, so that the next one need not wait.

use super::Epoch;
use crate::objects::{ObjectsError, kubernetes::bounded};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What a holder is told apart by, and how long it may be silent.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease: the release.
    pub name: String,
    /// This process: pod name and a random part.
    pub holder: String,
    /// Silence after which others may take over.
    pub duration: Duration,
}

/// A Lease that this process may hold.
pub struct Leadership {
    api: Api<Lease>,
    config: LeaseConfig,
    epoch: Arc<Epoch>,
    held: Option<Lease>,
}

/// The Lease is lost: the process has to end.
#[derive(Debug, thiserror::Error)]
#[error("the Lease is lost: {0}")]
pub struct Lost(pub String);

impl Leadership {
    /// Nothing is held yet.
    pub fn new(client: Client, config: LeaseConfig, epoch: Arc<Epoch>) -> Self {
        Self {
            api: Api::namespaced(client, &config.namespace),
            config,
            epoch,
            held: None,
        }
    }

    /// Waits until the Lease is held. What others hold is judged by how long *we* have seen it unchanged: clocks of two
    /// machines are never compared.
    pub async fn acquire(&mut self) {
        let mut seen: Option<(String, Instant)> = None;
        let mut told = false;
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(true) => {
                    tracing::info!(holder = %self.config.holder, epoch = self.epoch.current(), "leads");
                    return;
                }
                Ok(false) if !told => {
                    told = true;
                    tracing::info!("another instance leads; waits");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the Lease could not be taken; tried again"),
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    fn pause(&self) -> Duration {
        (self.config.duration / 5).max(Duration::from_millis(200))
    }

    async fn try_acquire(&mut self, seen: &mut Option<(String, Instant)>) -> Result<bool, ObjectsError> {
        let found = bounded("reading the Lease", self.api.get_opt(&self.config.name)).await?;
        let Some(mut lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.config.name.clone()),
                    namespace: Some(self.config.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(1, true)),
            };
            return match bounded(
                "creating the Lease",
                self.api.create(&PostParams::default(), &lease),
            )
            .await
            {
                Ok(lease) => Ok(self.hold(lease)),
                Err(ObjectsError::Conflict(_)) => Ok(false),
                Err(error) => Err(error),
            };
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let free = spec.holder_identity.as_deref().is_none_or(str::is_empty);
        if !free {
            let version = lease.metadata.resource_version.clone().unwrap_or_default();
            let since = match seen {
                Some((known, since)) if *known == version => *since,
                _ => {
                    *seen = Some((version, Instant::now()));
                    Instant::now()
                }
            };
            let theirs =
                Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(15)).unwrap_or(15));
            if since.elapsed() < theirs {
                return Ok(false);
            }
        }
        lease.spec = Some(self.spec(spec.lease_transitions.unwrap_or_default().saturating_add(1), true));
        match bounded(
            "taking the Lease",
            self.api
                .replace(&self.config.name, &PostParams::default(), &lease),
        )
        .await
        {
            Ok(lease) => Ok(self.hold(lease)),
            Err(ObjectsError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn hold(&mut self, lease: Lease) -> bool {
        let transitions = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_transitions)
            .unwrap_or_default();
        self.epoch.hold(u64::try_from(transitions).unwrap_or_default());
        self.held = Some(lease);
        true
    }

    fn spec(&self, transitions: i32, acquired: bool) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.config.holder.clone()),
            lease_duration_seconds: Some(i32::try_from(self.config.duration.as_secs().max(1)).unwrap_or(15)),
            lease_transitions: Some(transitions),
            acquire_time: acquired.then(|| now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    /// Renews until the Lease is lost; never returns otherwise.
    pub async fn keep(&mut self) -> Lost {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.pause()).await;
            let started = Instant::now();
            // A renewal that hangs must not outlive the Lease.
            let left = (self.config.duration * 4 / 5).saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(())) => renewed = started,
                Ok(Err(ObjectsError::Conflict(_))) => match self.still_ours().await {
                    Ok(true) => {}
                    Ok(false) => return Lost("another instance has taken it".to_owned()),
                    Err(error) => tracing::warn!(%error, "the Lease could not be read; tried again"),
                },
                Ok(Err(error)) => tracing::warn!(%error, "the Lease was not renewed; tried again"),
                Err(_) => {}
            }
            if renewed.elapsed() >= self.config.duration * 4 / 5 {
                return Lost(format!("not renewed for {} s", renewed.elapsed().as_secs()));
            }
        }
    }

    async fn renew(&mut self) -> Result<(), ObjectsError> {
        let Some(mut lease) = self.held.clone() else {
            return Err(ObjectsError::Refused("no Lease is held".to_owned()));
        };
        let current = self.epoch.current().max(self.epoch.wanted());
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            spec.lease_transitions = Some(i32::try_from(current).unwrap_or(i32::MAX));
        }
        let stored = bounded(
            "renewing the Lease",
            self.api
                .replace(&self.config.name, &PostParams::default(), &lease),
        )
        .await?;
        self.hold(stored);
        Ok(())
    }

    /// Somebody changed the Lease (a label, say) and we still hold it: go on from what is stored.
    async fn still_ours(&mut self) -> Result<bool, ObjectsError> {
        let found = bounded("reading the Lease", self.api.get_opt(&self.config.name)).await?;
        let ours = found
            .as_ref()
            .and_then(|lease| lease.spec.as_ref())
            .and_then(|spec| spec.holder_identity.as_deref())
            == Some(self.config.holder.as_str());
        if ours {
            self.held = found;
        }
        Ok(ours)
    }

    /// Gives the Lease up at a clean end.
    pub async fn release(&mut self) {
        let Some(mut lease) = self.held.take() else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        if let Err(error) = bounded(
            "giving up the Lease",
            self.api
                .replace(&self.config.name, &PostParams::default(), &lease),
        )
        .await
        {
            tracing::warn!(%error, "the Lease was not given up; the next instance waits for its end");
        }
    }
}
