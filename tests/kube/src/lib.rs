//! The test bed: a real Kubernetes for Segmentry's tests, in two sizes.
//!
//! ```text
//!             make test                                   make e2e
//!   etcd, kube-apiserver, controller-manager    the same, and scheduler, kubelet, containerd,
//!   on loopback, without root                   kube-proxy, DNS in namespaces of their own
//!            |                                            |
//!   kubelet stand-in: pods are processes         pods are containers of the product's own image
//!   of this machine on 127.x.y.z
//! ```
//!
//! - [`bed`]: what a test uses: one control plane a test process, one namespace a test.
//! - [`control`]: the control plane. [`kubelet`]: the stand-in. [`provisioner`]: volumes. [`audit`]: who wrote what.
//! - [`node`]: the real node of `make e2e`, its namespaces and its DNS.
//! - [`tools`], [`cache`]: where the commands come from. [`daemon`]: children that never outlive the test.
//! - [`image`]: builds the product's image. [`wait`]: deadlines. [`sample`]: what pods of the bed's own tests run.
//! - [`sources`]: the checkout.

pub mod audit;
pub mod bed;
pub mod cache;
pub mod control;
pub mod daemon;
pub mod image;
pub mod kubelet;
pub mod node;
pub mod provisioner;
pub mod sample;
pub mod sources;
pub mod tools;
pub mod wait;

pub use bed::{Bed, Scope};
pub use sources::repository;
pub use wait::eventually;
