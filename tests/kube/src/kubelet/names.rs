//! Addresses and names of pods.

use super::locked;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The names of all pods of a bed, and the hosts file that their processes read.
#[derive(Debug)]
pub(crate) struct Names {
    hosts: PathBuf,
    /// Second octet, ours while the lock file is locked: several test processes run side by side.
    network: u8,
    _claim: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u16,
    /// By (namespace, pod).
    pods: BTreeMap<(String, String), Entry>,
}

#[derive(Debug)]
struct Entry {
    uid: String,
    address: IpAddr,
    /// Subdomain of the pod's name, which for a StatefulSet is its headless Service.
    subdomain: Option<String>,
}

impl Names {
    /// Claims a network 127.x.0.0/16.
    pub(crate) fn claim(bed: &Path) -> Result<Self> {
        let hosts = bed.join("hosts");
        fs::write(&hosts, render(&BTreeMap::new()))?;
        for network in 64..=254 {
            let claim =
                File::create(std::env::temp_dir().join(format!("segmentry-bed-network-{network}.lock")))?;
            if claim.try_lock().is_ok() {
                return Ok(Self {
                    hosts,
                    network,
                    _claim: claim,
                    state: Mutex::default(),
                });
            }
        }
        bail!("190 test beds run on this machine: no network in 127.0.0.0/8 is left")
    }

    /// The file that is mounted over `/etc/hosts`.
    pub(crate) fn hosts(&self) -> &Path {
        &self.hosts
    }

    /// A new address for a new pod, and its name. Written in place: the file is mounted, so a new file would not be seen.
    pub(crate) fn add(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        subdomain: Option<String>,
    ) -> Result<IpAddr> {
        let mut state = locked(&self.state);
        // Addresses are used in turn, so that a peer which still dials an old one meets nobody. x.x.0.0 and x.x.255.255 are left out.
        state.last = if state.last >= 0xfffe { 1 } else { state.last + 1 };
        let [high, low] = state.last.to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(127, self.network, high, low));
        state.pods.insert(
            (namespace.to_owned(), pod.to_owned()),
            Entry {
                uid: uid.to_owned(),
                address,
                subdomain,
            },
        );
        fs::write(&self.hosts, render(&state.pods))?;
        Ok(address)
    }

    /// Forgets a pod, unless its name belongs to another incarnation by now.
    pub(crate) fn remove(&self, namespace: &str, pod: &str, uid: &str) -> Result<()> {
        let mut state = locked(&self.state);
        let key = (namespace.to_owned(), pod.to_owned());
        if state.pods.get(&key).is_some_and(|entry| entry.uid == uid) {
            state.pods.remove(&key);
            fs::write(&self.hosts, render(&state.pods))?;
        }
        Ok(())
    }

    /// Where a pod listens.
    pub(crate) fn address(&self, namespace: &str, pod: &str) -> Option<IpAddr> {
        locked(&self.state)
            .pods
            .get(&(namespace.to_owned(), pod.to_owned()))
            .map(|entry| entry.address)
    }
}

fn render(pods: &BTreeMap<(String, String), Entry>) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    // Writing to a String cannot fail.
    for (
        (namespace, pod),
        Entry {
            uid: _,
            address,
            subdomain,
        },
    ) in pods
    {
        let _ = write!(text, "{address} {pod}");
        if let Some(service) = subdomain {
            for suffix in ["svc", "svc.cluster.local"] {
                let _ = write!(
                    text,
                    " {pod}.{service}.{namespace}.{suffix} {service}.{namespace}.{suffix}"
                );
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_new_incarnation_has_a_new_address_and_keeps_its_name_when_the_old_one_goes() {
        let bed = tempfile::tempdir().unwrap();
        let names = Names::claim(bed.path()).unwrap();
        let first = names.add("a", "db-0", "1", Some("db".to_owned())).unwrap();
        let second = names.add("a", "db-0", "2", Some("db".to_owned())).unwrap();
        assert_ne!(first, second);
        names.remove("a", "db-0", "1").unwrap();
        assert_eq!(names.address("a", "db-0"), Some(second));
        let hosts = fs::read_to_string(names.hosts()).unwrap();
        assert!(
            hosts.contains(&format!("{second} db-0 db-0.db.a.svc db.a.svc ")),
            "{hosts}"
        );
        assert!(!hosts.contains(&first.to_string()));
    }

    #[test]
    fn two_beds_have_different_networks() {
        let bed = tempfile::tempdir().unwrap();
        let (one, other) = (
            Names::claim(bed.path()).unwrap(),
            Names::claim(bed.path()).unwrap(),
        );
        assert_ne!(one.network, other.network);
    }
}
