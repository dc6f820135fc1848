//! Postrider on PostgreSQL: the whole law in a schema of the database that you already run.
//!
//! **The idea.** A message is a row, and everything that belongs together is one transaction: a claim, a settle with its
//! archive, a dead letter with its record. Any number of processes share the tables; the server's clock and the server's
//! locks judge between them.
//!
//! **The invariant.** One column says when a row can next be received: its due time, or the end of its lease. A lease that
//! has run out is therefore simply due again, and whoever settles must show the token and the time. Of the messages of an
//! ordering key all but the first are marked as blocked; whoever adds to a key or takes its head away holds the lock of
//! the key's stripe ([`stripes`](self)), so that a key never has two heads and never none.
//!
//! **How it is fast.** What waits at the same moment goes out together, by arrays; a settle and the next claim are one
//! pipelined transaction, so one round trip and one fsync. The claim has one index that matches it, and the planner is
//! pinned, so that no statistics can lead it astray. The plan of each statement stands beside it and is tested.
//!
//! **Tasks.** [`PostgresTasks`] keeps tasks and schedules in the same schema: what belongs to a task's transition, its
//! message included, is part of the same transaction. [`PostgresStateRecords`] keeps small records there that are neither
//! messages nor tasks.
//!
//! **What was rejected.** A bare `NOT EXISTS` for the order of keys: two senders that do not see each other's rows make
//! two heads. Waiting for a key's lock inside a caller's own transaction, which may stay open for minutes: what is sent
//! there is put in order by the next claim. A `NOTIFY` in every sender's transaction: commits would wait for each other.

mod archived;
mod claim;
mod contract;
mod dead_letters;
mod doctor;
mod floor;
mod idempotency;
mod in_transaction;
mod look;
mod migrations;
mod options;
#[cfg(test)]
mod plans;
mod purge;
mod rows;
mod send;
mod settle;
mod sql;
mod state_records;
mod store;
mod tasks;
mod upkeep;
mod waiting;

pub use postrider_pg::tokio_postgres;

pub use options::{PostgresOptions, WakeUpMode};
pub use postrider_core::ArchivePolicy;
pub use postrider_pg::Migration;
pub use state_records::PostgresStateRecords;
pub use store::PostgresStore;
pub use tasks::PostgresTasks;

postrider_core::own_provider! {
    /// A connection to a [`PostgresStore`]. Clones are the same connection and close together.
    PostgresProvider(postrider_provider::Provider<PostgresStore>)
}

impl postrider_core::IdempotencyStore for PostgresProvider {
    postrider_core::hand_on!(IdempotencyStore, shared);
}

/// The server, with the statements of this crate.
type Database = postrider_pg::Database<sql::Sql>;

/// A connection for one piece of work.
type Session<'d> = postrider_pg::Session<'d, sql::Sql>;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "postgres";
