//! Postrider on PGMQ: the whole law in queues that other clients of PGMQ use at the same time.
//!
//! **The idea.** The queues are PGMQ's: a row that `pgmq.send` wrote is received here, and what is sent here is read by
//! `pgmq.read`. PGMQ gives rows, visibility times and an archive; the law is kept by statements of our own on PGMQ's
//! tables, by one header in which a message carries what the law needs, and by three small tables in a schema beside
//! PGMQ's: paused queues, dedup keys and long delays.
//!
//! **The invariant.** A lease is valid as long as nobody else has touched its row: the same read, by its count and its
//! time, and the same end, unless the lease itself was extended to another. Whoever reads, deletes or hides the message
//! by PGMQ's functions ends the lease, and every later use of its receipt changes nothing. A message of a key waits
//! while an older one of its key is in the table, in whatever state; senders take turns by a lock of the key, so that an
//! older one is never committed later. Nothing has to be repaired when another client removes a head.
//!
//! **How it is fast.** Statements go straight to the tables, prepared once, and take arrays; a settle and the next claim
//! are one pipelined transaction; the claim goes by the index on visibility, where PGMQ's own read walks everything that
//! is delayed, and from key to key where what is due waits behind the heads of deep keys.
//!
//! **What was rejected.** `pgmq.delete`, `archive` and `set_vt`: they take no token, so a late worker ends the lease of
//! another. A mark for messages that wait behind the head of their key: when another client deletes the head, nobody
//! would take it away. PGMQ's trigger for notifications, which is called for every row: it halved the rate of batches.

mod archived;
mod claim;
mod codec;
mod contract;
mod dead_letters;
mod doctor;
mod indexes;
mod install;
mod json;
mod lease;
mod look;
mod names;
mod options;
#[cfg(test)]
mod plans;
mod queues;
mod rows;
mod send;
mod settle;
mod sql;
mod store;
mod upkeep;

pub use postrider_pg::{Migration, tokio_postgres};
pub use postrider_provider::Claimed;

pub use options::PgmqOptions;
pub use postrider_core::ArchivePolicy;
pub use store::PgmqStore;

postrider_core::own_provider! {
    /// A connection to a [`PgmqStore`]. Clones are the same connection and close together.
    PgmqProvider(postrider_provider::Provider<PgmqStore>)
}

/// The server, with the statements of this crate.
type Database = postrider_pg::Database<sql::Sql>;

/// A connection for one piece of work.
type Session<'d> = postrider_pg::Session<'d, sql::Sql>;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "pgmq";
