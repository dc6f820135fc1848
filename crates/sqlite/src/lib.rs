//! The embedded default: the whole law on one SQLite file.
//!
//! **The idea.** A new project has a disk and nothing else. One file is a durable queue for all processes of a host:
//! leases, retries, order, dead letters and archive are rows, and every change is one transaction.
//!
//! **The invariant.** A writer holds the file's one write lock, works at one time by the host's clock, and leaves the
//! file as the law requires. So nothing here needs a second lock: the head of a key is a flag, a dead letter moves by
//! one update, and an expired lease is simply due again. Every answer follows its commit to the disk.
//!
//! **Life of a message.**
//! 1. `provider.rs` batches the calls of a connection and sends them to the writer.
//! 2. `writer/mod.rs` collects the waiting calls; `writer/transaction.rs` runs them in one transaction, commits and
//!    answers.
//! 3. `send.rs` checks the message, its dedup key and its ordering key, and inserts the row.
//! 4. `claim.rs` finds the due rows, leases them, and dead-letters what was delivered too often or has expired.
//! 5. `settle.rs` checks the lease token, then acks, retries, releases or extends.
//! 6. `session.rs` unblocks the next message of a key, and notes the queues whose receivers wake after the commit.
//! 7. `dead_letters.rs` moves dead messages to `{queue}_dlq`, and edits, redrives and purges them there.
//! 8. `archive.rs` removes old rows of the archive, which an ack or a purge has filled; `archived.rs` searches it.
//! 9. `look.rs` reads queues for operators, on the connections of `readers.rs`.
//!
//! **How it is fast.** The cost of a commit is its fsync, so one thread writes for the whole process and takes all
//! waiting calls into one transaction. Statements find rows by their number; the only search, for due rows, has an
//! index that matches it. The plan of each statement is in its comment and is tested.
//!
//! **Tasks.** [`SqliteTasks`] keeps tasks and schedules in the same file, through the same writer: a task and the
//! message that delivers it, or the event of its death, are one transaction. [`SqliteStateRecords`] keeps small records
//! that are neither messages nor tasks.
//!
//! **What was rejected.** SQLite's own wait for the lock: it sleeps up to 100 ms at a time, and of four processes one
//! starved. A pool of writers: they would only queue for the same lock. A task on the runtime instead of a thread: an
//! await inside a write transaction stops every other process. Network file systems: their locks do not hold.
//!
//! ```
//! use postrider_core::{Deadline, Message, MessagingService, QueueName, ReceiveOptions};
//! use postrider_sqlite::{SqliteOptions, SqliteStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), postrider_core::MessagingError> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! let store = SqliteStore::open(folder.path().join("queues.db"), SqliteOptions::default()).await?;
//! let provider = store.connect().await?;
//! let orders = QueueName::new("orders")?;
//! provider.send_message(&orders, Message::new("hello"), Deadline::default()).await?;
//! for message in provider.receive_messages(&orders, &ReceiveOptions::default(), Deadline::default()).await? {
//!     provider.ack_message(&orders, message, Deadline::default()).await?;
//! }
//! provider.close(Deadline::default()).await?;
//! # Ok(())
//! # }
//! ```

pub use rusqlite;

mod archive;
mod archived;
mod claim;
mod connection;
mod contract;
#[cfg(test)]
mod costs;
mod dead_letters;
mod doctor;
mod error;
mod free_space;
mod idempotency;
mod in_transaction;
mod location;
mod lock_queue;
mod look;
mod migrations;
mod options;
#[cfg(test)]
mod plans;
mod provider;
mod purge;
mod readers;
mod rows;
mod send;
mod session;
mod settle;
mod sql;
mod state_records;
mod store;
mod tasks;
mod waiting;
mod writer;

pub use migrations::Migration;
pub use options::{Durability, SqliteOptions};
pub use postrider_core::ArchivePolicy;
pub use postrider_core::WallClock;
pub use state_records::SqliteStateRecords;
pub use store::SqliteStore;
pub use tasks::SqliteTasks;

postrider_core::own_provider! {
    /// A connection to a [`SqliteStore`]. Clones are the same connection and close together.
    SqliteProvider(postrider_provider::Provider<provider::Connection>)
}

/// Compiles the example of the operators' page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sqlite.md")]
struct OperatorsPage;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "sqlite";
