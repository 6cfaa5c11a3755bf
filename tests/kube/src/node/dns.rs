//! Cluster DNS: A records of Services and of pods with a hostname, over UDP.
//!
//! As in users' clusters a record lives 5 s, and a name that was asked for too early stays unknown for 30 s: software that
//! survives that in a real cluster has to survive it here. Other names are not resolved: nothing leaves the bed.

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

const DOMAIN: &str = "cluster.local";
/// Life of a record, in seconds.
const TTL: u32 = 5;
/// Life of the knowledge that a name does not exist, in seconds.
const NEGATIVE_TTL: u32 = 30;

/// The running server; ends on drop.
#[derive(Debug)]
pub struct Dns(#[allow(dead_code, reason = "tasks end when this is dropped")] JoinSet<()>);

impl Dns {
    /// Binds and starts answering.
    pub async fn start(client: kube::Client, address: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(address)
            .await
            .with_context(|| format!("bind {address}"))?;
        let mut tasks = JoinSet::new();
        let services = store::<Service>(&client, &mut tasks);
        let slices = store::<EndpointSlice>(&client, &mut tasks);
        services.wait_until_ready().await.context("services")?;
        slices.wait_until_ready().await.context("endpoint slices")?;
        tasks.spawn(serve(socket, Zone { services, slices }));
        Ok(Self(tasks))
    }
}

fn store<K>(client: &kube::Client, tasks: &mut JoinSet<()>) -> Store<K>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let changes = reflector::reflector(
        writer,
        watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff(),
    );
    tasks.spawn(changes.for_each(|_| std::future::ready(())));
    store
}

struct Zone {
    services: Store<Service>,
    slices: Store<EndpointSlice>,
}

/// What is known of a name.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// It exists; without addresses nobody is behind it.
    Addresses(Vec<Ipv4Addr>),
    Nothing,
}

impl Zone {
    fn look_up(&self, name: &str) -> Known {
        let Some(inside) = name.strip_suffix(&format!(".svc.{DOMAIN}")) else {
            return Known::Nothing;
        };
        let (hostname, service, namespace) = match inside.split('.').collect::<Vec<_>>()[..] {
            [service, namespace] => (None, service, namespace),
            [hostname, service, namespace] => (Some(hostname), service, namespace),
            _ => return Known::Nothing,
        };
        let found = self
            .services
            .find(|object| object.name_any() == service && object.namespace().as_deref() == Some(namespace));
        let Some(object) = found else {
            return Known::Nothing;
        };
        let cluster_ip = object
            .spec
            .as_ref()
            .and_then(|spec| spec.cluster_ip.clone())
            .unwrap_or_default();
        if let (None, Ok(address)) = (hostname, cluster_ip.parse()) {
            return Known::Addresses(vec![address]);
        }
        let mut addresses = Vec::new();
        for slice in self.slices.state() {
            if slice.namespace().as_deref() != Some(namespace)
                || slice
                    .labels()
                    .get("kubernetes.io/service-name")
                    .map(String::as_str)
                    != Some(service)
            {
                continue;
            }
            for endpoint in &slice.endpoints {
                let ready = endpoint
                    .conditions
                    .as_ref()
                    .and_then(|conditions| conditions.ready)
                    != Some(false);
                let named = hostname.is_none() || endpoint.hostname.as_deref() == hostname;
                if ready && named {
                    addresses.extend(
                        endpoint
                            .addresses
                            .iter()
                            .filter_map(|address| address.parse::<Ipv4Addr>().ok()),
                    );
                }
            }
        }
        if addresses.is_empty() {
            Known::Nothing
        } else {
            Known::Addresses(addresses)
        }
    }
}

async fn serve(socket: UdpSocket, zone: Zone) {
    let mut cache: HashMap<String, (Instant, Known)> = HashMap::new();
    let mut packet = [0_u8; 1500];
    loop {
        let Ok((length, peer)) = socket.recv_from(&mut packet).await else {
            continue;
        };
        let Some(question) = Question::read(&packet[..length]) else {
            continue;
        };
        let known = match cache.get(&question.name) {
            Some((until, known)) if *until > Instant::now() => known.clone(),
            _ => {
                let known = zone.look_up(&question.name);
                let life = if known == Known::Nothing {
                    NEGATIVE_TTL
                } else {
                    TTL
                };
                cache.insert(
                    question.name.clone(),
                    (Instant::now() + Duration::from_secs(life.into()), known.clone()),
                );
                known
            }
        };
        // A lost answer is asked for again.
        let _ = socket.send_to(&question.answer(&known), peer).await;
    }
}

/// One question (RFC 1035, section 4). A packet with none or several is dropped.
#[derive(Debug)]
struct Question {
    id: [u8; 2],
    recursion_desired: bool,
    /// Lower case, without the last dot.
    name: String,
    kind: u16,
    /// The question as it was asked, repeated in the answer.
    bytes: Vec<u8>,
}

const A: u16 = 1;

impl Question {
    fn read(packet: &[u8]) -> Option<Self> {
        let header: &[u8; 12] = packet.first_chunk()?;
        let is_query = header[2] & 0x80 == 0;
        if !is_query || header[4..6] != [0, 1] {
            return None;
        }
        let mut labels = Vec::new();
        let mut at = 12;
        loop {
            let length = usize::from(*packet.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            // Compression has no place in a question.
            let label = (length < 64).then(|| packet.get(at..at + length))??;
            labels.push(std::str::from_utf8(label).ok()?.to_ascii_lowercase());
            at += length;
        }
        let tail: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Self {
            id: [header[0], header[1]],
            recursion_desired: header[2] & 1 == 1,
            name: labels.join("."),
            kind: u16::from_be_bytes([tail[0], tail[1]]),
            bytes: packet[12..at + 4].to_vec(),
        })
    }

    fn answer(&self, known: &Known) -> Vec<u8> {
        let inside = self.name == DOMAIN || self.name.ends_with(&format!(".{DOMAIN}"));
        let none = Vec::new();
        let (code, addresses) = match known {
            // SERVFAIL: not ours, and there is nobody to ask.
            Known::Nothing if !inside => (2, &none),
            Known::Nothing => (3, &none),
            // Other kinds (AAAA) exist with no record.
            Known::Addresses(addresses) => (0, if self.kind == A { addresses } else { &none }),
        };
        // Beyond 512 bytes a client would have to ask over TCP, which no bed is large enough for.
        let addresses = &addresses[..addresses.len().min(24)];
        let count = u8::try_from(addresses.len()).unwrap_or(0);
        let authority = u8::from(addresses.is_empty() && code != 2);
        let mut packet = self.id.to_vec();
        packet.extend([
            0x84 | u8::from(self.recursion_desired),
            0x80 | code,
            0,
            1,
            0,
            count,
            0,
            authority,
            0,
            0,
        ]);
        packet.extend(&self.bytes);
        for address in addresses {
            // A pointer to the question's name, type A, class IN.
            packet.extend([0xc0, 12, 0, 1, 0, 1]);
            packet.extend(TTL.to_be_bytes());
            packet.extend([0, 4]);
            packet.extend(address.octets());
        }
        if authority == 1 {
            packet.extend(start_of_authority());
        }
        packet
    }
}

/// The SOA record of the zone: its last field is how long a negative answer may be kept.
fn start_of_authority() -> Vec<u8> {
    let domain: Vec<u8> = DOMAIN
        .split('.')
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap_or(0)], label.as_bytes()].concat())
        .chain([0])
        .collect();
    let mut data = [domain.clone(), domain.clone()].concat();
    for number in [1, 7200, 1800, 86_400, NEGATIVE_TTL] {
        data.extend(number.to_be_bytes());
    }
    let mut record = domain;
    record.extend([0, 6, 0, 1]);
    record.extend(NEGATIVE_TTL.to_be_bytes());
    record.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    record.extend(data);
    record
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut packet = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            packet.push(u8::try_from(label.len()).unwrap());
            packet.extend(label.as_bytes());
        }
        packet.push(0);
        packet.extend(kind.to_be_bytes());
        packet.extend([0, 1]);
        packet
    }

    #[test]
    fn an_address_is_answered_to_the_question_that_was_asked() {
        let question = Question::read(&query("Db.default.svc.cluster.local", A)).unwrap();
        assert_eq!(question.name, "db.default.svc.cluster.local");
        let answer = question.answer(&Known::Addresses(vec![Ipv4Addr::new(10, 1, 2, 3)]));
        assert_eq!(answer[..4], [7, 9, 0x85, 0x80]);
        assert_eq!(answer[7], 1);
        assert!(answer.ends_with(&[0, 4, 10, 1, 2, 3]));
    }

    #[test]
    fn an_unknown_name_of_the_zone_does_not_exist_and_one_outside_fails() {
        let inside = Question::read(&query("x.cluster.local", A))
            .unwrap()
            .answer(&Known::Nothing);
        assert_eq!(inside[3] & 15, 3);
        assert!(inside.ends_with(&NEGATIVE_TTL.to_be_bytes()));
        let outside = Question::read(&query("example.com", A))
            .unwrap()
            .answer(&Known::Nothing);
        assert_eq!(outside[3] & 15, 2);
    }

    #[test]
    fn another_kind_of_a_known_name_is_empty_and_not_missing() {
        let answer = Question::read(&query("db.default.svc.cluster.local", 28))
            .unwrap()
            .answer(&Known::Addresses(vec![Ipv4Addr::LOCALHOST]));
        assert_eq!((answer[3] & 15, answer[7]), (0, 0));
    }

    #[test]
    fn garbage_is_dropped() {
        assert!(Question::read(&[]).is_none());
        assert!(Question::read(&query("x.y", A)[..15]).is_none());
        let mut answer = query("x.y", A);
        answer[2] |= 0x80;
        assert!(Question::read(&answer).is_none());
    }
}
