//! Postrider on PGMQ: the whole law in queues that other clients of PGMQ use at the same time.
//!
//! **Idea.** The queues are PGMQ's: a row of `pgmq.send` is received here, and `pgmq.read` reads what is sent here.
//! PGMQ has rows, visibility times and an archive; the law is kept by own statements on PGMQ's tables, by one header
//! that holds what the law needs of a message, and by three small tables in a schema beside PGMQ's: paused queues,
//! dedup keys and long delays.
//!
//! **Invariant.** A lease is valid as long as no other client has touched its row: the same read, by its count and
//! time, and the same end, unless the lease itself was extended. A client that reads, deletes or hides the message by
//! PGMQ's functions ends the lease, and every later use of its receipt changes nothing. A message of a key waits while
//! an older one of its key is in the table, in any state; senders take turns by a lock of the key, so an older one is
//! never committed later. When another client removes a head, nothing has to be repaired.
//!
//! **Speed.** Statements use the tables directly, prepared once, with arrays; a settle and the next claim are one
//! pipelined transaction. The claim uses the index on visibility, where PGMQ's own read walks all delayed messages, and
//! goes from key to key where due messages wait behind the heads of deep keys.
//!
//! **Rejected.** `pgmq.delete`, `archive` and `set_vt`: they take no token, so a late worker ends the lease of another.
//! A mark on messages that wait behind the head of their key: when another client deletes the head, nothing would
//! remove it. PGMQ's trigger for notifications, which is called for every row: it halved the rate of batches.
//!
//! # Life of a message
//!
//! 1. Sent: `send.rs` (`send.sql`, `send_plain.sql`), encoded by `codec.rs`; its queue created or adopted by
//!    `queues.rs`.
//! 2. Delayed for long: waits in the table `delayed` (`send_delayed.sql`), and is moved by `claim.rs` or `upkeep.rs`
//!    (`move_due.sql`).
//! 3. Announced to waiting receivers: `store.rs` (`touch`), by `postrider_pg`'s notifier; for other clients by PGMQ's
//!    trigger.
//! 4. Due: `claim.rs` (`next_due.sql`); a wait looks at it.
//! 5. Claimed: `claim.rs` (`claim.sql`), decoded by `rows.rs` and `codec.rs`; behind the head of its key it waits,
//!    unmarked.
//! 6. Extended, acked, retried, released, given up: `settle.rs`; the receipt is that of `lease.rs`.
//! 7. Dead-lettered: by its receiver in `settle.rs` (`dead_letter.sql`), on a claim in `claim.rs`
//!    (`dead_letter_claimed.sql`), or while it holds a dedup key after its expiry in `send.rs`
//!    (`dead_letter_expired.sql`).
//! 8. Redriven, edited, purged: `dead_letters.rs`; listed, and purged from its queue: `look.rs`.
//! 9. Archived with its end, searched in `archived.rs`, removed after the retention in `upkeep.rs`.

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

/// The database, with the statements of this crate.
type Database = postrider_pg::Database<sql::Sql>;

/// A pooled connection, for one unit of work.
type Session<'d> = postrider_pg::Session<'d, sql::Sql>;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "pgmq";
