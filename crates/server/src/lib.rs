//! The HTTP API of Postrider, its dashboard and its metrics.
//!
//! **The idea.** One process puts a store on the network: workers in any language send, receive and settle by HTTP, people
//! look at queues and tasks in a browser, and the chores of tasks are done meanwhile. Nothing about messages is decided
//! here: a lease is the store's, a receipt is the store's under a seal, and a server that dies loses nothing but the jobs
//! that it was in the middle of.
//!
//! **The invariant.** A request is carried out for somebody who may have it carried out, or not at all; a lease is a
//! client's once the answer that carries it is written, or goes back at once.
//!
//! **What was rejected.** HTTP/2: a worker's long poll holds a connection, and head-of-line questions are easier where
//! each has its own. Sessions in memory: a second server on the same state would not know them. A framework for the
//! dashboard: a handful of modules that a browser reads as they are need no build.

mod access;
mod api;
mod app;
mod audit;
mod edge;
mod history;
mod in_flight;
mod jobs;
mod leases;
mod line;
mod live;
mod looking;
mod meter;
mod options;
mod percentiles;
mod portions;
mod readiness;
mod receipts;
mod repeat;
mod routes;
mod server;
mod traces;
mod workers;

/// The example of the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use access::{NewToken, QueuePattern, Role, Tokens, role_name, role_named};
pub use options::{ServerOptions, TlsFiles};
pub use server::{ServeError, Server};

/// The OpenAPI description of the API.
pub fn openapi() -> serde_json::Value {
    api::document(&routes::all())
}
