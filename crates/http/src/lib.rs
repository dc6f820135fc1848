//! A Postrider server as a provider, and the words that both sides of its HTTP API use.
//!
//! **The idea.** A server has a store; whoever has its URL and a token has the store, by the same contract as if it were
//! their own. [`HttpProvider`] turns calls into requests and answers back into the very values and errors that the store
//! gave, so that a program does not notice which side it stands on. [`HttpTasks`] does the same for tasks, and [`HttpTokens`]
//! for whoever administers the server. What is said over the wire stands in [`wire`], which the server uses too.
//!
//! **The invariant.** A request that may have been carried out and whose answer was lost is never sent again by itself: the
//! caller is told that nobody knows. One that was surely not carried out, because it never left, is told as a failure of
//! the connection, or goes out once more on another one. Requests that only look are repeated once.
//!
//! **Leases.** The server owns a lease until its receipt is on the way to the client. A receive that is given up drops its
//! request, and the server takes back what it had leased for it; so nothing waits for the end of a lease that nobody has.
//!
//! **What was rejected.** HTTP/2: one connection for all would let a lost packet hold up everybody, and a long poll costs a
//! connection, of which there are enough. A connection of its own protocol for long waits: what cannot pass every proxy
//! would be a second way for the same thing. Repeating sends with an idempotency key: the key would be kept by the server
//! for a day for every message, to save what a dedup key saves those who want it.

mod admin;
mod batches;
mod call;
mod cause;
mod dead_letters;
mod doctor;
mod events;
mod failure;
mod options;
mod patience;
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
pub mod wire;

pub use options::HttpOptions;
pub use provider::HttpProvider;
pub use store::HttpStore;
pub use tasks::HttpTasks;
pub use tokens::HttpTokens;

/// The provider's name, in receipts, errors and metrics.
pub const PROVIDER: &str = "http";
