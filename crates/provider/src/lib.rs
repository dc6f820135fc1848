//! The shared implementation of the providers.
//!
//! **The idea.** Stores differ in how they send, claim, settle and dead-letter. The rest is the same for all: batches of
//! concurrent callers, callers that leave early, receivers that wait and are woken, long removals in chunks, and leases
//! of dropped messages that go back. A store implements [`Store`]; [`Provider`] implements the contract on top of it.
//!
//! **The invariant.** An operation that has begun runs to its end, whether or not its caller still waits. A lease whose
//! caller has left is released. A receiver registers for wake-ups before the look that finds nothing.
//!
//! **The path of a message.** `service.rs`: a send joins the batch of its lane, and the batch goes to the store. A receive
//! looks; when nothing is due it waits (`receive.rs`) for a wake-up, a due time or the end of its [`Patience`], and looks
//! again. A settle joins a batch, or shares the transaction of the next claim. The operations of tools and
//! administrators are in `queues.rs` and `dead_letters.rs`.
//!
//! **What was rejected.** `dyn Store`: this crate would be compiled once, but every claim would box its future twice.

mod batches;
mod clocked;
mod dead_letters;
pub mod file_system;
mod idempotency;
mod patience;
mod queues;
mod receive;
mod service;
mod store;
mod undone;

pub use batches::{Batches, batched};
pub use clocked::{hints, until_due};
pub use idempotency::{RecordChange, Records};
pub use patience::{Caller, Patience};
pub use service::Provider;
pub use store::{Claimed, DeadPart, Deliver, Look, Looked, Removal, Store};
pub use undone::{Blame, Others, Phase, Undone, past_others, persist};
