//! Ports on 127.0.0.1: REST from 9200, the internal port from 9300, the next free one each.

use super::Addresses;
use std::net::TcpListener;

const TRIES: u16 = 100;

/// True while nobody listens on either.
pub fn free(rest: &str, internal: &str) -> bool {
    TcpListener::bind(rest).is_ok() && TcpListener::bind(internal).is_ok()
}

/// The next free pair; both are added to `taken`.
pub fn allot(taken: &mut Vec<String>) -> Option<Addresses> {
    let rest = next(9200, taken)?;
    let internal = next(9300, taken)?;
    Some(Addresses { rest, internal })
}

fn next(first: u16, taken: &mut Vec<String>) -> Option<String> {
    let address = (first..first + TRIES)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| !taken.contains(address) && TcpListener::bind(address).is_ok())?;
    taken.push(address.clone());
    Some(address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_port_that_somebody_holds_is_passed_over() {
        let mut taken = Vec::new();
        let first = allot(&mut taken).unwrap();
        let held = TcpListener::bind(&first.rest);
        let mut taken = Vec::new();
        let second = allot(&mut taken).unwrap();
        // another test may have bound it in between: then it was passed over as well
        assert!(held.is_err() || second.rest != first.rest);
        assert_eq!(taken, [second.rest, second.internal]);
    }
}
