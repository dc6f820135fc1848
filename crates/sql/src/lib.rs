//! What the providers on database servers share.
//!
//! **The idea.** A database differs from the next in how it claims, settles and buries. Everything around that is the
//! same: many callers share batches, a caller may leave at any time, a receiver waits and is woken, a long removal goes
//! in chunks. So a database implements [`SqlStore`], one method an operation, and [`SqlProvider`] makes the contract of
//! it.
//!
//! **The invariant.** What a store was asked to do is brought to its end, whether or not the caller is still there; what
//! was leased for nobody is given back; and whoever waits was registered before the look that found nothing.

mod admin;
mod distrust;
mod lease;
mod provider;
mod records;
mod rounds;
mod store;
pub mod stripes;
mod undone;
mod wait;
mod wakes;

pub use distrust::is_distrust;
pub use lease::Lease;
pub use provider::SqlProvider;
pub use store::{Claimed, Due, Part, Present, RecordChange, Removal, SqlRecords, SqlStore, Taken};
pub use undone::{Blame, Others, Phase, Undone, past_others, persist};
pub use wakes::{Listener, Wakes};
