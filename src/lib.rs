//! Segmentry: operator for replicated index clusters, and the same without Kubernetes.
//!
//! ```text
//!  declared objects ──▶ Objects ──┐                       ┌──▶ Runtime ──▶ pods or processes
//!  (API server, file)             ├──▶ observe ─▶ plan ─▶ apply
//!  nodes' admin API ─▶ nodeclient ┘     facts     pure    └──▶ nodeclient ─▶ nodes
//! ```
//!
//! A pass over an object: fetch, validate, observe, plan, guard, apply, status ([`controller`]). Plans are pure
//! ([`plan`]); what they speak of comes and goes through two doors ([`runtime`], [`objects`]).

pub mod api;
pub mod apply;
pub mod build;
pub mod controller;
pub mod fault;
pub mod load;
pub mod logging;
pub mod node_command;
pub mod nodeclient;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod runtime;
pub mod up;
