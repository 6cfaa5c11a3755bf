//! Whether a live object is what was declared.
//!
//! The API server adds defaults, so the two are never equal; what is declared must be contained in what is live. A field that
//! is not declared any more is noticed by the hash of the whole declaration, which is itself declared as an annotation.

use serde_json::Value;

/// Every declared field is live with the same value. Lists must agree in length; quantities may be written differently.
pub fn contains(live: &Value, declared: &Value) -> bool {
    match (live, declared) {
        (Value::Object(live), Value::Object(declared)) => {
            declared.iter().all(|(key, value)| match live.get(key) {
                Some(other) => contains(other, value),
                // The API server drops empty maps and lists.
                None => is_empty(value),
            })
        }
        (Value::Array(live), Value::Array(declared)) => {
            live.len() == declared.len()
                && live
                    .iter()
                    .zip(declared)
                    .all(|(live, declared)| contains(live, declared))
        }
        (Value::String(live), Value::String(declared)) => {
            live == declared || milli(live).is_some() && milli(live) == milli(declared)
        }
        (live, declared) => live == declared,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// A quantity in thousandths: the API server writes `1000m` as `1`.
fn milli(text: &str) -> Option<u128> {
    if let Some(number) = text.strip_suffix('m') {
        return number.parse().ok();
    }
    let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned());
    if let Some(bytes) = crate::api::valid::quantity_bytes(&quantity) {
        return u128::from(bytes).checked_mul(1000);
    }
    let (whole, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 3 {
        return None;
    }
    format!("{whole}{fraction:0<3}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_of_the_api_server_are_no_drift() {
        let declared = json!({"spec": {"replicas": 3, "ports": [{"port": 9200}], "selector": {}}});
        let live = json!({"spec": {"replicas": 3, "ports": [{"port": 9200, "nodePort": 31000}], "clusterIP": "10.0.0.1"}, "status": {}});
        assert!(contains(&live, &declared));
    }

    #[test]
    fn a_hand_edited_field_and_an_extra_item_are_drift() {
        let declared = json!({"spec": {"replicas": 3, "ports": [{"port": 9200}]}});
        assert!(!contains(
            &json!({"spec": {"replicas": 2, "ports": [{"port": 9200}]}}),
            &declared
        ));
        assert!(!contains(
            &json!({"spec": {"replicas": 3, "ports": [{"port": 9200}, {"port": 1}]}}),
            &declared
        ));
        assert!(!contains(&json!({"spec": {"replicas": 3}}), &declared));
    }

    #[test]
    fn quantities_are_compared_by_value() {
        for (a, b, same) in [
            ("1", "1000m", true),
            ("0.5", "500m", true),
            ("1Gi", "1024Mi", true),
            ("1Gi", "1G", false),
            ("team", "search", false),
            ("1m", "1", false),
        ] {
            assert_eq!(contains(&json!(a), &json!(b)), same, "{a} {b}");
        }
    }
}
