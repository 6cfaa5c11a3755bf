//! Where members were last heard from.
//!
//! A restarted node dials its peers, and they dial it back at the address that its hello came from: the resolver may go on to
//! say for half a minute that the name does not exist. The resolver is asked where nothing was learned, and where a learned
//! address did not answer to a connect (a network that hides the sender's address behind another).

use futures::FutureExt as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// For so long an address that did not answer is left to the resolver, whatever hellos say.
const DISTRUST: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Learned {
    ip: IpAddr,
    failed: Option<Instant>,
}

/// Addresses by host name; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addresses(Arc<Mutex<HashMap<String, Learned>>>);

impl Addresses {
    /// Takes note of where the hello of a member came from that calls itself `address` (`host:port`).
    pub(crate) fn learn(&self, address: &str, ip: IpAddr) {
        let Some(host) = name_of(address) else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who had this address before is not there any more: addresses of pods are used again.
        known.retain(|other, learned| learned.ip != ip || other == host);
        let distrusted = known
            .get(host)
            .is_some_and(|old| old.ip == ip && old.failed.is_some_and(|since| since.elapsed() < DISTRUST));
        if !distrusted {
            known.insert(host.to_owned(), Learned { ip, failed: None });
        }
    }

    /// Nobody answered to a connect to `address`: from now on the resolver is asked.
    pub(crate) fn distrust(&self, address: &str) {
        let Some(host) = name_of(address) else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(learned) = known.get_mut(host) {
            learned.failed = Some(Instant::now());
        }
    }

    fn find(&self, host: &str) -> Option<IpAddr> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(host)
            .filter(|learned| learned.failed.is_none())
            .map(|learned| learned.ip)
    }
}

/// The host of `host:port` where it is a name; an address needs no resolver.
fn name_of(address: &str) -> Option<&str> {
    let (host, _) = address.rsplit_once(':')?;
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    (!literal).then_some(host)
}

impl Resolve for Addresses {
    fn resolve(&self, name: Name) -> Resolving {
        let learned = self.find(name.as_str());
        async move {
            // The port of the URL takes the place of 0.
            if let Some(ip) = learned {
                return Ok(Box::new(std::iter::once(SocketAddr::new(ip, 0))) as Addrs);
            }
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const NAME: &str = "n-0.nodes.space.svc:9300";
    const HOST: &str = "n-0.nodes.space.svc";

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_last_hello_counts_and_an_address_belongs_to_one_member() {
        let addresses = Addresses::default();
        addresses.learn(NAME, ip(1));
        addresses.learn(NAME, ip(2));
        assert_eq!(addresses.find(HOST), Some(ip(2)));
        addresses.learn("n-1.nodes.space.svc:9300", ip(2));
        assert_eq!(addresses.find(HOST), None);
    }

    #[test]
    fn an_address_that_does_not_answer_is_left_to_the_resolver_until_a_hello_names_another() {
        let addresses = Addresses::default();
        addresses.learn(NAME, ip(1));
        addresses.distrust(NAME);
        assert_eq!(addresses.find(HOST), None);
        addresses.learn(NAME, ip(1));
        assert_eq!(addresses.find(HOST), None);
        addresses.learn(NAME, ip(2));
        assert_eq!(addresses.find(HOST), Some(ip(2)));
    }

    #[test]
    fn literal_addresses_are_not_learned() {
        let addresses = Addresses::default();
        for address in ["127.0.0.1:9300", "[::1]:9300"] {
            addresses.learn(address, ip(1));
        }
        assert!(addresses.0.lock().unwrap().is_empty());
    }
}
