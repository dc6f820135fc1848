//! Postrider on MariaDB and MySQL: the whole law in a database that you already run.
//!
//! **The idea.** A message is a row, and everything that belongs together is one transaction: a claim, a settle with its
//! archive, a dead letter with its record. Any number of processes share the tables; the server's clock and the server's
//! locks judge between them.
//!
//! **The invariant.** One column says when a row can next be received: its due time, or the end of its lease. A lease that
//! has run out is therefore simply due again, and whoever settles must show the token and the time. Of the messages of an
//! ordering key all but the first are marked as blocked; whoever adds to a key or takes its head away holds the row of
//! the key's stripe, so that a key never has two heads and never none.
//!
//! **How it is fast.** What waits at the same moment goes out together, and every step of a transaction is one round trip,
//! whatever the number of its statements. The claim has one index that matches it, and a look at an empty queue locks
//! nothing.
//!
//! **What was rejected.** `RETURNING`, which MySQL does not have: rows are locked and read, then changed by their numbers.
//! Prepared statements, which cannot travel together. A bare `NOT EXISTS` for the order of keys: two senders that do not
//! see each other's rows make two heads. Waiting for a key's lock inside a caller's own transaction, which may stay open
//! for minutes: what is sent there is put in order by the next claim.

mod archived;
mod claim;
#[cfg(test)]
mod clocks;
mod connection;
mod contract;
mod dead_letters;
mod doctor;
mod error;
mod extend;
mod idempotency;
mod in_transaction;
mod lease;
mod literal;
mod look;
mod migrations;
mod options;
mod plain;
#[cfg(test)]
mod plans;
mod purge;
mod rows;
mod send;
mod settle;
mod settle_and_claim;
mod sql;
mod store;
mod tls;
mod turns;
mod upkeep;
mod waiting;

pub use mysql_async;

pub use migrations::Migration;
pub use options::MysqlOptions;
pub use postrider_core::ArchivePolicy;
pub use store::MysqlStore;

postrider_core::own_provider! {
    /// A connection to a [`MysqlStore`]. Clones are the same connection and close together.
    MysqlProvider(postrider_provider::Provider<MysqlStore>)
}

impl postrider_core::IdempotencyStore for MysqlProvider {
    postrider_core::hand_on!(IdempotencyStore, shared);
}

/// The provider's name in receipts and errors.
const PROVIDER: &str = "mysql";
