//! The provider on Amazon SQS: the message lifecycle in standard and FIFO queues.
//!
//! **The idea.** SQS leases, counts and delays messages; what it has no field for is a note in one attribute of the message.
//! A queue is two SQS queues: `Q` for messages without keys, and `Q.fifo`, created by the first message with an ordering or
//! dedup key. SQS cannot change a stored message, so a changed message is a copy, confirmed before the original is deleted.
//!
//! **The invariant.** No message is deleted before its copy is durable, no send is repeated whose answer was lost, and no
//! call is made with a receipt whose lease has ended by this host's clock: SQS does not always refuse one.
//!
//! **What was rejected.** The SDK's own retries: they repeat calls whose answers were lost, and a repeated send is a second
//! message. `PurgeQueue`: it removes leased messages too. FIFO queues for everything: a tenth of the throughput for an order
//! that most messages do not need.
//!
//! **Life of a message:**
//!
//! 1. Sent: `send.rs` chooses its side and reserves its dedup key (`dedup.rs`), `codec.rs` encodes it, `calls.rs` sends it.
//! 2. Delayed: by SQS, or beyond its longest delay in hops (`delay.rs`).
//! 3. Claimed: `claim.rs` receives it and leases it, or dead-letters or delays it.
//! 4. Leased: `lease.rs` has the record, `receipt.rs` the receipt that other processes can use.
//! 5. Settled, extended, given up: `settle.rs`. A retry or a dead letter is a copy that `send.rs` stores.
//! 6. Dead: listed, edited, redriven and purged by `crates/broker/src/dead_letters.rs`, which holds messages through `hold.rs`.
//! 7. Looked at: peeked through `hold.rs`, counted by `stats.rs`.
//!
//! `broker.rs` says where each operation is; `queues.rs` finds and creates queues.

mod attributes;
mod broker;
mod calls;
mod capabilities;
mod claim;
mod clock;
mod codec;
mod connect;
mod dedup;
mod delay;
mod doctor;
mod error;
mod hold;
mod lease;
mod names;
mod options;
mod pause;
mod queues;
mod receipt;
mod rights;
mod send;
mod settle;
mod stats;
mod store;
mod transport;
mod url;

pub use options::SqsOptions;
pub use store::SqsStore;
/// The SDK of this provider, for programs that also use SQS directly.
pub use {aws_sdk_sqs, connect::client};

postrider_core::own_provider! {
    /// A connection to SQS. Clones are the same connection and close together.
    SqsProvider(postrider_provider::Provider<postrider_broker::Connection<SqsStore>>)
}

/// The provider's name in receipts and errors.
const PROVIDER: &str = "sqs";
