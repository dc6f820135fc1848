//! The embedded default: the whole law on one SQLite file.
//!
//! **The idea.** A team that starts has a disk and nothing else. One file is a durable queue for all processes of a
//! host: leases, retries, order, dead letters and archive are rows, and everything that belongs together is one
//! transaction.
//!
//! **The invariant.** Whoever writes holds the file's one write lock, at one time by the host's clock, and leaves the
//! file as the law wants it. So nothing here needs a second lock: the head of a key is a flag, a dead letter moves by one
//! update, and a lease that has run out is simply due again. What was answered is on the disk.
//!
//! **How it is fast.** An fsync is what a commit costs, so one thread writes for everybody in the process and takes all
//! that waits into one transaction ([`writer`](self)). Statements touch rows by their number; the one search, for what
//! is due, has an index that matches it. The plan of each statement stands beside it and is tested.
//!
//! **Tasks.** [`SqliteTasks`] keeps tasks and schedules in the same file, by the same writer: a task and the message that
//! delivers it, or the event of its death, are one transaction. [`SqliteStateRecords`] keeps small records there that are
//! neither.
//!
//! **What was rejected.** SQLite's own waiting for the lock: it sleeps up to 100 ms at a time, and of four processes one
//! starved. A pool of writers: they would only queue at the same lock. A task on the runtime instead of a thread: an
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
mod idempotency;
mod in_transaction;
mod location;
mod look;
mod migrations;
mod options;
#[cfg(test)]
mod plans;
mod provider;
mod purge;
mod readers;
mod room;
mod rows;
mod send;
mod session;
mod settle;
mod sql;
mod state_records;
mod store;
mod tasks;
mod turns;
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

/// The example of the operators' page is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sqlite.md")]
struct OperatorsPage;

/// The provider's name in receipts and errors.
const PROVIDER: &str = "sqlite";
