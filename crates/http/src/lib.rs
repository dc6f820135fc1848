//! A Postrider server as a provider: the client of its HTTP API.
//!
//! **The idea.** A client with the URL and a token uses the server's store by the same contract as a store of its own.
//! [`HttpProvider`] turns calls into requests, and answers into the values and errors that the server's store returned, so
//! a program runs unchanged on either side. [`HttpTasks`] does the same for tasks, and [`HttpTokens`] administers tokens.
//! The requests and answers are the types of `postrider-wire`, which the server uses too.
//!
//! **The invariant.** A request that may have been carried out and whose answer was lost is never repeated: the call fails
//! with `OutcomeUnknown`. A request that was never sent fails as `Connection`, or is sent on another connection. Read-only
//! requests are repeated once.
//!
//! **Leases.** The server owns a lease until it has sent the receipt. A canceled receive drops its request, and the server
//! releases the messages that it leased for it, so they do not wait for their leases to expire.
//!
//! **What was rejected.** HTTP/2: on one connection for all requests a lost packet delays all of them, and what it saves,
//! the connection of each long poll, is cheap. Another protocol for long waits: not every proxy passes it, so it would be
//! a second way for the same thing. Repeating sends with an idempotency key: the server would keep the key of every
//! message for a day, and a dedup key does the same for those who need it.

mod admin;
mod batches;
mod call;
mod cause;
mod dead_letters;
mod doctor;
mod events;
mod failure;
mod options;
#[cfg(not(feature = "tls"))]
mod plain;
mod provider;
mod receive;
mod service;
mod store;
mod tasks;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod transport;
mod url;

pub use options::HttpOptions;
// The types of `HttpTokens`.
pub use postrider_wire::token::{NewToken, NewTokenRequest, Role, TokenInfo};
pub use provider::HttpProvider;
pub use store::HttpStore;
pub use tasks::HttpTasks;
pub use tokens::HttpTokens;

/// The provider's name, in receipts, errors and metrics.
pub const PROVIDER: &str = "http";
