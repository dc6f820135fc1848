//! Postrider on MariaDB and MySQL: the whole law in tables of a database.
//!
//! **Idea.** A message is a row, and what belongs together is one transaction: a claim, a settle with its archive, a
//! dead letter with its record. Any number of processes share the tables; the server's clock and locks arbitrate.
//!
//! **Invariant.** One column, `next_attempt_at`, says when a row can next be claimed: its due time, or the end of its
//! lease. So an expired lease is simply due again, and a settle must show the token before that time. Of an ordering
//! key's messages all but the head are blocked. A transaction that adds to a key or removes its head holds the row of
//! the key's stripe, so a key never has two heads and never none.
//!
//! **Speed.** Concurrent calls go out together, and every step of a transaction is one round trip, whatever the number
//! of its statements. The claim has a matching index, and a poll of an empty queue locks nothing.
//!
//! **Rejected.** `RETURNING`, which MySQL does not have: rows are locked and read, then changed by their ids. Prepared
//! statements, which cannot share a round trip. A bare `NOT EXISTS` for the order of keys: two senders that do not see
//! each other's rows make two heads. Waiting for a key's lock inside a caller's transaction, which may stay open for
//! minutes: the next claim promotes such keys.
//!
//! # Life of a message
//!
//! 1. Sent: `send.rs` (`send.sql`), without keys in `plain.rs` (`send_plain.sql`); inside a caller's transaction:
//!    `in_transaction.rs`.
//! 2. Announced to waiting receivers of this process: `store.rs` (`touch`).
//! 3. Due: `claim.rs` (`next_due.sql`); a wait looks at it.
//! 4. Claimed: `settle_and_claim.rs` runs the steps of `claim.rs`: look (`heads.sql`), lock (`claim.sql`), lease
//!    (`lease.sql`); from the floors of `claim_history.rs`.
//! 5. Promoted, if it waits behind the head of its key: `claim.rs` and `send.rs` (`first_of_key.sql`, `promote.sql`).
//! 6. Acked, retried, released: `settle.rs`; extended, given up: `extend.rs`; both check the lease by `lease.rs`.
//! 7. Dead-lettered: `dead_letters.rs` (`end_lives`), called by `settle.rs`, `claim.rs` and `send.rs`.
//! 8. Redriven, edited, purged: `dead_letters.rs`; purged from its queue: `purge.rs`.
//! 9. Archived with its end, searched in `archived.rs`, removed after the retention in `upkeep.rs`.

mod archived;
mod claim;
mod claim_history;
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
