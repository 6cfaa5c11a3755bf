//! Operator flows: the chart's operator, with the chart's rights, against a real API server; nodes are real processes that the kubelet
//! stand-in runs (`tests/kube`).
//!
//! - [`flow`]: one operator, one namespace, what a test does to them. [`writers`]: who remembers what was acknowledged.
//! - one file a behaviour: [`ready`], [`faults`], [`restart`], [`quiet`], [`deletion`].
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod deletion;
mod faults;
mod flow;
mod quiet;
mod ready;
mod restart;
mod writers;
