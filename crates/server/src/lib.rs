//! The HTTP API of Postrider, its dashboard and its metrics.
//!
//! **The idea.** One process puts a store on the network: workers in any language send, receive and settle by HTTP, people
//! look at queues and tasks in a browser, and the server runs the chores of tasks. It decides nothing about messages: a
//! lease is the store's, a receipt is the store's receipt with a MAC, and a server that dies loses only its running
//! jobs.
//!
//! **The invariant.** A request runs only if its caller is allowed to make it. A lease belongs to the client once the
//! answer that carries it is written; until then the server releases it if anything goes wrong.
//!
//! **What was rejected.** HTTP/2: a long poll occupies a connection, and separate connections avoid head-of-line
//! blocking. Sessions in memory: a second server on the same state would not find them. A framework for the dashboard:
//! a handful of modules that browsers load as they are need no build.

mod access;
mod api;
mod app;
mod audit;
mod claim_permits;
mod edge;
mod history;
mod idempotency;
mod in_flight;
mod jobs;
mod leases;
mod live;
mod metrics;
mod options;
mod percentiles;
mod readiness;
mod receipts;
mod routes;
mod row_sizes;
mod sampler;
mod server;
mod traces;
mod workers;

/// Compiles the example of the README.
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
