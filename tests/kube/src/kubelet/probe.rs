//! Probes, really made.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A probe with its defaults filled in.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    action: Action,
    delay: Duration,
    period: Duration,
    timeout: Duration,
    failures: u32,
    successes: u32,
}

#[derive(Debug, Clone)]
enum Action {
    Http { url: String },
    Tcp { address: SocketAddr },
}

/// Threshold crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passes,
    Fails,
}

impl Plan {
    /// Reads a probe of a container that listens on `address`.
    pub(super) fn read(probe: &Probe, container: &Container, address: IpAddr) -> Result<Self> {
        let action = if let Some(HTTPGetAction {
            path,
            port,
            host,
            scheme,
            http_headers: _,
        }) = &probe.http_get
        {
            ensure!(host.is_none(), "the stand-in's probes do not support `host`");
            ensure!(
                scheme.as_deref().is_none_or(|scheme| scheme == "HTTP"),
                "the stand-in's probes do not support HTTPS"
            );
            let port = number(port, container)?;
            let path = path.as_deref().unwrap_or("/");
            Action::Http {
                url: format!("http://{}{path}", SocketAddr::new(address, port)),
            }
        } else if let Some(tcp) = &probe.tcp_socket {
            Action::Tcp {
                address: SocketAddr::new(address, number(&tcp.port, container)?),
            }
        } else {
            bail!("the stand-in supports httpGet and tcpSocket probes only");
        };
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(
                value
                    .and_then(|value| u64::try_from(value).ok())
                    .unwrap_or(default),
            )
        };
        let count = |value: Option<i32>, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(default)
        };
        Ok(Self {
            action,
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            failures: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
        })
    }

    async fn once(&self, client: &reqwest::Client) -> bool {
        match &self.action {
            Action::Http { url } => client
                .get(url)
                .timeout(self.timeout)
                .send()
                .await
                .is_ok_and(|answer| {
                    let status = answer.status();
                    status.is_success() || status.is_redirection()
                }),
            Action::Tcp { address } => {
                tokio::time::timeout(self.timeout, tokio::net::TcpStream::connect(address))
                    .await
                    .is_ok_and(|connected| connected.is_ok())
            }
        }
    }

    /// Probes until dropped, and calls `tell` each time a threshold is reached.
    ///
    /// A container that is starting is probed five times a second, so that tests do not wait for the period.
    pub(super) async fn run(self, mut tell: impl FnMut(Verdict)) {
        let client = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none())
            .build();
        let Ok(client) = client else { return };
        tokio::time::sleep(self.delay).await;
        let first = tokio::time::Instant::now();
        let (mut passed, mut failed) = (0_u32, 0_u32);
        let mut ever = false;
        loop {
            let started = tokio::time::Instant::now();
            if self.once(&client).await {
                (passed, failed) = (passed.saturating_add(1), 0);
                ever = true;
            } else {
                (passed, failed) = (0, failed.saturating_add(1));
            }
            // Before the first success the probes come faster than the period, so time is counted, not probes.
            let exhausted = if ever {
                failed >= self.failures
            } else {
                first.elapsed() >= self.period * self.failures
            };
            if passed >= self.successes {
                tell(Verdict::Passes);
            } else if exhausted {
                tell(Verdict::Fails);
            }
            let pause = if ever {
                self.period
            } else {
                self.period.min(Duration::from_millis(200))
            };
            tokio::time::sleep_until(started + pause).await;
        }
    }
}

fn number(port: &IntOrString, container: &Container) -> Result<u16> {
    let port = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let found = ports.into_iter().find(|port| port.name.as_ref() == Some(name));
            found
                .map(|port| port.container_port)
                .with_context(|| format!("probe of unknown port {name}"))?
        }
    };
    u16::try_from(port).with_context(|| format!("odd port {port}"))
}
