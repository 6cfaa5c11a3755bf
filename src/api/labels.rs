//! Labels, annotations, finalizers and the names of owned objects.

use std::collections::BTreeMap;

/// Value of `app.kubernetes.io/name` on every owned object.
pub const APP: &str = "segmentry";
/// Label key of the application.
pub const NAME: &str = "app.kubernetes.io/name";
/// Label key of the cluster's name.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// Label key of the part.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label key of who manages the object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "segmentry-operator";
/// Label of pods: the node set's name.
pub const NODE_SET: &str = "segmentry.io/node-set";

/// Annotation of pod templates: hash of what needs a restart to change. A restart is due while a pod's differs from the wanted one.
pub const TEMPLATE_HASH: &str = "segmentry.io/template-hash";
/// Annotation of owned objects: hash of what was applied last, so that a field which is no longer wanted is noticed.
pub const APPLIED_HASH: &str = "segmentry.io/applied-hash";
/// Annotation of declared objects: which operator looks after them (`namespace/release`).
pub const OPERATOR: &str = "segmentry.io/operator";
/// Annotation of an IndexCluster: the cluster uuid that a person decided to take over.
pub const ADOPT_CLUSTER_UUID: &str = "segmentry.io/adopt-cluster-uuid";
/// Annotation of an Index: `true` takes over an ownerless index whose shape differs.
pub const ADOPT_INDEX: &str = "segmentry.io/adopt-index";
/// Annotation of an Index: the uuid of the lost index that a person allows to be created anew.
pub const RECREATE: &str = "segmentry.io/recreate";
/// Finalizer of an Index with deletion policy Delete.
pub const INDEX_FINALIZER: &str = "segmentry.io/index-data";

/// Labels by which a cluster's pods are selected; none of them ever changes.
pub fn selector(cluster: &str) -> BTreeMap<String, String> {
    [(NAME, APP), (INSTANCE, cluster), (COMPONENT, "node")]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Labels of every owned object.
pub fn owned(cluster: &str) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

/// Name of the StatefulSet of a node set; pods are `<this>-<ordinal>`.
pub fn set_name(cluster: &str, set: &str) -> String {
    format!("{cluster}-{set}")
}

/// Name of the headless Service, which gives pods their DNS names.
pub fn headless_name(cluster: &str) -> String {
    format!("{cluster}-nodes")
}

/// Name of the Secret with the token of the internal port.
pub fn token_name(cluster: &str) -> String {
    format!("{cluster}-internal-token")
}
