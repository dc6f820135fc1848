//! Postrider on Amazon SQS: the whole message lifecycle in standard and FIFO queues.
//!
//! **The idea.** SQS leases, counts and delays by itself; what it has no place for travels in one attribute of the
//! message. A queue is two queues of SQS: `Q` for messages without keys, and `Q.fifo`, which the first message with a key
//! makes, for those whose order or singleness matters. Whatever SQS cannot write down is a copy with another note,
//! confirmed first, and only then is the old message deleted.
//!
//! **The invariant.** Nothing is deleted before its copy is durable, nothing is sent again whose answer was lost, and
//! nothing is asked of SQS with a receipt whose lease is over by this host's own clock: SQS alone does not always notice.
//!
//! **What was rejected.** The SDK's own retries: they repeat calls whose answers were lost, and a repeated send is a
//! second message. `PurgeQueue`: it takes leased messages too. FIFO queues for everything: a tenth of the throughput for
//! an order that most messages do not need.

mod attributes;
mod broker;
mod calls;
mod capabilities;
mod claim;
mod clock;
mod codec;
mod connect;
mod dedup;
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
mod waiting;

pub use options::SqsOptions;
pub use store::SqsStore;
/// The driver, for programs that speak to SQS beside Postrider.
pub use {aws_sdk_sqs, connect::client};

postrider_core::own_provider! {
    /// A connection to SQS. Clones are the same connection and close together.
    SqsProvider(postrider_provider::Provider<postrider_broker::Connection<SqsStore>>)
}

/// The provider's name in receipts and errors.
const PROVIDER: &str = "sqs";
