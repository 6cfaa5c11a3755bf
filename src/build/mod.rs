//! Infallible builders of the objects that a cluster consists of in Kubernetes. Data in, JSON out, always the same bytes for
//! the same input: what could fail was refused by validation.
//!
//! - [`template`]: the pod template and its hash.
//! - [`objects`]: StatefulSet, Services, PodDisruptionBudget, NetworkPolicy, Secret.

pub mod objects;
pub mod template;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// What every owned object needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// Namespace of the operator's own pods; the NetworkPolicy lets them in. None outside Kubernetes (tests, local runs).
    pub operator_namespace: Option<String>,
}

/// SHA-256 of the canonical form (keys sorted at every level) of `value`, as 16 hex digits.
pub fn digest(value: &Value) -> String {
    let mut bytes = Vec::new();
    canonical(value, &mut bytes);
    let hash = Sha256::digest(&bytes);
    hash.iter().take(8).fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push(b'{');
            for key in keys {
                out.extend_from_slice(Value::String(key.clone()).to_string().as_bytes());
                out.push(b':');
                canonical(&map[key], out);
                out.push(b',');
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for item in items {
                canonical(item, out);
                out.push(b',');
            }
            out.push(b']');
        }
        other => out.extend_from_slice(other.to_string().as_bytes()),
    }
}
