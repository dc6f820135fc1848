//! What the providers on message brokers share.
//!
//! **The idea.** A broker hands messages out, takes them back and counts; it has no place for what the law wants to know
//! of a message besides. So that travels with the message, in one header ([`Stored::note`]), and every step of its life
//! that the broker cannot write down is a copy of the message with another note: confirmed first, and only then is the
//! old one removed. A broker implements [`Broker`], one method an operation, and [`Connection`] makes a store of it
//! for the frame of the providers.
//!
//! **The invariant.** What a broker was asked to do is brought to its end, whether or not the caller is still there; what
//! was leased for nobody is given back; and nothing is removed before its copy is durable.
//!
//! **What was rejected.** Records of messages in a database beside the broker: two truths that a crash tears apart.

mod broker;
mod contract;
mod dead_letters;
mod note;
mod stored;

pub use broker::{Broker, Held, Hold};
pub use contract::Connection;
pub use note::NOTE;
pub use stored::{Death, Stored};
