//! The provider on RabbitMQ.
//!
//! **The idea.** RabbitMQ holds a message for a connection until it is acknowledged, and redelivers it when the connection
//! ends. A lease is that, with a timer in this process. The broker cannot change a stored message, so a changed message is a
//! copy, confirmed before the original is acknowledged. A worker takes no more messages than were requested, so that a
//! delivery is a lease and the broker's count of deliveries is the one that the law needs.
//!
//! **The invariant.** No message is acknowledged before its copy is confirmed and known to be routed; a message is settled
//! on the channel that it arrived on, or not at all.
//!
//! **Life of a message:**
//!
//! 1. Sent: `send.rs` chooses its route and creates what is missing of it (`topology.rs`); `publish.rs` and
//!    `publisher_task.rs` send it and wait for the confirm.
//! 2. Delayed: it passes through delay queues (`topology.rs`); with an ordering key it is parked at a worker
//!    (`partitions.rs`).
//! 3. Claimed: `claim.rs` receives it through `consumer_channel.rs`, or with an ordering key through `partitions.rs`, and
//!    leases it, or dead-letters it on reading.
//! 4. Leased: `leases.rs` has the record and the timer; an expired lease requeues the message (`broker.rs`).
//! 5. Settled, extended, given up: `settle.rs`. A retry or a dead letter is a copy that `send.rs` stores.
//! 6. Dead: listed, edited, redriven and purged by `crates/broker/src/dead_letters.rs`, which holds messages through `hold.rs`.
//! 7. Looked at: peeked through `hold.rs`, counted by `stats.rs`.
//!
//! `broker.rs` says where each operation is, `connection.rs` reopens lost connections, `wire.rs` has the format.

mod broker;
mod capabilities;
mod claim;
mod connection;
mod consumer_channel;
mod differences;
mod doctor;
mod error;
mod flags;
mod hold;
mod leases;
mod management;
#[cfg(not(feature = "tls"))]
mod no_tls;
mod options;
mod partitions;
mod publish;
mod publisher_task;
mod send;
mod settle;
mod stats;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod wire;

pub use broker::RabbitmqBroker;
pub use hold::RabbitmqHold;
/// The AMQP client of this provider, for programs that also use the broker directly.
pub use lapin;
pub use options::{QueueType, RabbitmqOptions};
pub use store::RabbitmqStore;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "rabbitmq";

postrider_core::own_provider! {
    /// A connection to a broker that implements the contract.
    RabbitmqProvider(postrider_provider::Provider<postrider_broker::Connection<RabbitmqBroker>>)
}
