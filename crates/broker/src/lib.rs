//! What the providers on message brokers share.
//!
//! **The idea.** A broker delivers messages, takes them back and counts deliveries; it cannot store what else the law
//! records of a message. That travels with the message, in one header ([`Stored::note`]). A change that the broker
//! cannot store is a copy of the message with another note: the old message is removed only after the copy is
//! confirmed. A broker implements [`Broker`], one method for each operation, and [`Connection`] makes a store of it for
//! `postrider-provider`.
//!
//! **The invariant.** An operation that has begun runs to its end, whether or not its caller still waits; a lease
//! without a caller is given back; nothing is removed before its copy is durable.
//!
//! **What was rejected.** Records of messages in a database beside the broker: after a crash the two would disagree.

mod broker;
mod contract;
mod dead_letters;
mod note;
mod stored;

pub use broker::{Broker, Held, Hold};
pub use contract::Connection;
pub use note::NOTE;
pub use stored::{Death, Stored};
