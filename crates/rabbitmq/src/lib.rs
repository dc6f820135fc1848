//! The provider on RabbitMQ.
//!
//! **The idea.** RabbitMQ holds a message for a connection until it is acknowledged, and gives it to somebody else when
//! the connection ends. A lease is that, with a timer beside it here; everything that the broker cannot write on a message
//! is a copy of it, confirmed, before the old one is acknowledged. A worker takes no more than it was asked for, so that a
//! delivery is a lease and the broker's count is the law's.
//!
//! **The invariant.** Nothing is acknowledged before its copy is confirmed and known to have been routed; a settlement
//! goes to the channel that its message came on, or nowhere.
//!
//! Where a message is claimed: `claim.rs`; settled, retried and dead-lettered: `settle.rs`; sent: `send.rs`; what there is
//! on the broker: `topology.rs`.

mod broker;
mod capabilities;
mod claim;
mod differences;
mod doctor;
mod error;
mod feed;
mod flags;
mod hold;
mod keyed;
mod leases;
mod line;
mod link;
mod management;
mod options;
#[cfg(not(feature = "tls"))]
mod plain;
mod publish;
mod send;
mod settle;
mod stats;
mod store;
mod topology;
#[cfg(feature = "tls")]
mod trust;
mod wire;

pub use broker::RabbitmqBroker;
pub use hold::RabbitmqHold;
/// The client that this is built on, for programs that use the broker beside it.
pub use lapin;
pub use options::{QueueType, RabbitmqOptions};
pub use store::RabbitmqStore;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "rabbitmq";

postrider_core::own_provider! {
    /// A connection to a broker, in the sense of the contract.
    RabbitmqProvider(postrider_provider::Provider<postrider_broker::Connection<RabbitmqBroker>>)
}
