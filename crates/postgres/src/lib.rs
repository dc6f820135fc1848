//! Postrider on PostgreSQL: the whole law in a schema of a PostgreSQL database.
//!
//! **Idea.** A message is a row, and what belongs together is one transaction: a claim, a settle with its archive, a
//! dead letter with its record. Any number of processes share the tables; the server's clock and locks arbitrate.
//!
//! **Invariant.** One column, `next_attempt_at`, says when a row can next be claimed: its due time, or the end of its
//! lease. So an expired lease is simply due again, and a settle must show the token before that time. Of an ordering
//! key's messages all but the head are blocked. A transaction that adds to a key or removes its head holds the lock of
//! the key's stripe (see `postrider_sql::stripes`), so a key never has two heads and never none.
//!
//! **Speed.** Concurrent calls go out together, as arrays; a settle and the next claim are one pipelined transaction:
//! one round trip and one fsync. The claim has a matching index, and planner settings are fixed, so statistics cannot
//! change a plan. Each statement states its plan, and a test checks it.
//!
//! **Tasks.** [`PostgresTasks`] keeps tasks and schedules in the same schema: a task's transition and its message are
//! one transaction. [`PostgresStateRecords`] keeps small records that are neither messages nor tasks.
//!
//! **Rejected.** A bare `NOT EXISTS` for the order of keys: two senders that do not see each other's rows make two
//! heads. Waiting for a key's lock inside a caller's transaction, which may stay open for minutes: the next claim
//! promotes such keys. A `NOTIFY` in every sender's transaction: commits would wait for each other.
//!
//! # Life of a message
//!
//! 1. Sent: `send.rs` (`send.sql`, `send_plain.sql`, `send_alike.sql`); inside a caller's transaction:
//!    `in_transaction.rs`.
//! 2. Announced to waiting receivers: `store.rs` (`touch`), by `postrider_pg`'s notifier.
//! 3. Due: `claim.rs` (`next_due.sql`); a wait looks at it.
//! 4. Claimed: `claim.rs` (`claim.sql`, every sixteenth time `claim_oldest.sql`), from the lower bounds of `floor.rs`.
//! 5. Promoted, if it waits behind the head of its key: `claim.rs` and `send.rs` (`promote.sql`), or with the settle of
//!    the head (`parts/promote_next.sql`).
//! 6. Extended, acked, retried, released, given up: `settle.rs`.
//! 7. Dead-lettered: by its receiver in `settle.rs`, on a claim in `claim.rs` (both `dead_letter.sql`), or while it
//!    holds a dedup key after its expiry in `send.rs` (`dead_letter_expired.sql`).
//! 8. Redriven, edited, purged: `dead_letters.rs`; purged from its queue: `purge.rs`.
//! 9. Archived with its end, searched in `archived.rs`, removed after the retention in `upkeep.rs`.

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

/// The database, with the statements of this crate.
type Database = postrider_pg::Database<sql::Sql>;

/// A pooled connection, for one unit of work.
type Session<'d> = postrider_pg::Session<'d, sql::Sql>;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "postgres";
