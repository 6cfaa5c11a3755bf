//! Declared objects as `kubectl get` prints them: the printer columns of the CRDs, evaluated here.

use crate::api::{Index, IndexCluster};
use crate::objects::file::Declared;
use jiff::Timestamp;
use kube::CustomResourceExt as _;
use serde_json::Value;

/// One kind's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// `IndexCluster` or `Index`.
    pub kind: &'static str,
    /// Names of the columns, upper case.
    pub header: Vec<String>,
    /// One row an object.
    pub rows: Vec<Vec<String>>,
}

/// The tables of all objects, clusters first.
///
/// # Errors
/// Only if a type stops being serialisable.
pub fn tables(all: &Declared, now: Timestamp) -> serde_json::Result<Vec<Table>> {
    let clusters = all
        .clusters
        .iter()
        .map(serde_json::to_value)
        .collect::<Result<Vec<_>, _>>()?;
    let indices = all
        .indices
        .iter()
        .map(serde_json::to_value)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(vec![
        table(
            "IndexCluster",
            &serde_json::to_value(IndexCluster::crd())?,
            &clusters,
            now,
        ),
        table("Index", &serde_json::to_value(Index::crd())?, &indices, now),
    ])
}

fn table(kind: &'static str, crd: &Value, objects: &[Value], now: Timestamp) -> Table {
    let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
    let shown: Vec<&Value> = columns
        .into_iter()
        .flatten()
        .filter(|column| column["priority"].as_i64().unwrap_or_default() == 0)
        .collect();
    let mut header = vec!["NAME".to_owned()];
    header.extend(
        shown
            .iter()
            .map(|column| column["name"].as_str().unwrap_or_default().to_uppercase()),
    );
    let rows = objects.iter().map(|object| {
        let mut row = vec![text(&object["metadata"]["name"])];
        row.extend(shown.iter().map(|column| {
            let found = lookup(object, column["jsonPath"].as_str().unwrap_or_default());
            if column["type"] == "date" {
                age(&found, now)
            } else {
                text(&found)
            }
        }));
        row
    });
    Table {
        kind,
        header,
        rows: rows.collect(),
    }
}

/// The two forms of path that the CRDs use: `.a.b` and `.status.conditions[?(@.type=="X")].field`.
fn lookup(object: &Value, path: &str) -> Value {
    if let Some((list, rest)) = path.split_once("[?(@.type==\"")
        && let Some((kind, field)) = rest.split_once("\")]")
    {
        let list = lookup(object, list);
        let found = list
            .as_array()
            .into_iter()
            .flatten()
            .find(|entry| entry["type"] == kind);
        return found.map_or(Value::Null, |entry| lookup(entry, field));
    }
    let pointer = path.replace('.', "/");
    object.pointer(&pointer).cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// As kubectl rounds it.
fn age(value: &Value, now: Timestamp) -> String {
    let Some(since) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = (now.as_second() - since.as_second()).max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |whole: i64, unit: &str, rest: i64, small: &str| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{small}")
        }
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        _ => format!("{}d", hours / 24),
    }
}

impl Table {
    /// Lines of equal columns, three spaces apart.
    pub fn lines(&self) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let all: Vec<&Vec<String>> = std::iter::once(&self.header).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                all.iter()
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or_default()
            })
            .collect();
        all.iter()
            .map(|row| {
                let cells: Vec<String> = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, width)| format!("{cell:width$}"))
                    .collect();
                cells.join("   ").trim_end().to_owned()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rows_hold_what_the_printer_columns_point_at() {
        let cluster: IndexCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "segmentry.io/v1alpha1", "kind": "IndexCluster",
            "metadata": {"name": "quick", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeSets": []},
            "status": {"nodes": {"ready": 2, "desired": 3}, "health": "Yellow", "conditions": [
                {"type": "Available", "status": "True", "reason": "No", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "False", "reason": "Starting", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .unwrap();
        let all = Declared {
            clusters: vec![cluster],
            indices: vec![],
        };
        let now = "2026-01-01T00:03:05Z".parse().unwrap();
        let tables = tables(&all, now).unwrap();
        assert_eq!(
            tables[0].lines(),
            [
                "NAME    READY   REASON     HEALTH   NODES   DESIRED   VERSION   AGE",
                "quick   False   Starting   Yellow   2       3                   3m5s",
            ]
        );
        assert!(tables[1].lines().is_empty());
    }

    #[test]
    fn ages_are_rounded_as_kubectl_does() {
        let at = |seconds: i64| {
            age(
                &Value::String("1970-01-01T00:00:00Z".to_owned()),
                Timestamp::from_second(seconds).unwrap(),
            )
        };
        let found: Vec<String> = [5, 119, 120, 659, 10_800, 10_860, 30_000, 400_000].map(at).into();
        assert_eq!(found, ["5s", "119s", "2m", "10m", "3h", "3h1m", "8h", "4d"]);
    }
}
