//! The frame of the providers.
//!
//! **The idea.** Stores differ in how they send, claim, settle and dead-letter. Everything around that is the same:
//! concurrent callers share batches, a caller may leave at any time, a receiver waits and is woken, a long removal goes
//! in chunks, a dropped message goes back. A store implements [`Store`]; [`Provider`] makes the contract of it.
//!
//! **The invariant.** An operation that was begun is brought to its end, whether or not its caller still waits. A lease
//! whose caller has left is released. A receiver is registered for wake-ups before the look that found nothing.
//!
//! **The life of a message.** `service.rs`: a send joins the batch of its lane, and the batch goes to the store. A receive
//! looks; when nothing is due it waits (`receive.rs`) for a wake-up, for a due time or for the end of its patience, and
//! looks again. A settle joins a batch, or shares the transaction of the next claim. `queues.rs` and `dead_letters.rs` are
//! what people and tools ask for.
//!
//! **What was rejected.** `dyn Store`: the frame would be compiled once, but every claim would box its future twice.

mod batches;
mod clocked;
mod dead_letters;
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
