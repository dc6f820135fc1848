//! The provider on a folder: leases, retries, order and dead letters, with `mv` as a producer's only tool.
//!
//! **The idea.** A message is a file, and the file's name has all of its state that changes. Claiming, settling, retrying
//! and dead-lettering are renames, which a file system carries out completely or not at all. So every program that can
//! rename a file into `incoming/` is a producer, `ls` shows the state, and a process can be killed between any two system
//! calls.
//!
//! **The invariant.** A message's file is in one folder at any time. A change renames it from the exact name with its lease
//! token: a token that is in no name changes nothing. The lock of the queue keeps the order; it is held for a few renames
//! and released before the disk is synced. Under the lock, a process's index matches the folders.
//!
//! **Life of a message:**
//!
//! 1. Sent: `send.rs` writes it to `tmp/` and renames it into `incoming/`. A foreign file is found by `scan.rs`, with
//!    inotify (`watch.rs`).
//! 2. Claimed: `claim.rs` takes the next due row of the index (`index.rs`) and leases it by a rename into `processing/`, or
//!    dead-letters it; `content.rs` reads the file.
//! 3. Settled, extended, given up: `settle.rs`, by a rename from the leased name.
//! 4. Dead: `dead_letters.rs` moves it to `failed/` with its record (`record.rs`), lists, edits and purges; `redrive.rs` sends
//!    it again.
//! 5. Looked at, counted: `look.rs`.
//!
//! `contract.rs` says where each operation is, `work.rs` runs it on a blocking thread, `session.rs` holds the lock
//! (`lock.rs`), `name.rs` has the format of names, `disk.rs` the system calls.
//!
//! **Why it is fast.** A folder is read once; afterwards inotify reports changes by other processes, and a claim uses the
//! index in memory. Concurrent senders write their files in parallel and share the sync of the folder, and so do
//! settlements.
//!
//! **What was rejected.** Claims without a lock: one rename is enough to own a message, but not to know that no earlier one
//! of its key is being moved between folders while they are read. Records beside every file: twice the files, and two
//! states that can differ. Leases in the content of files: not atomic, and not visible with `ls`. Time stamps alone for
//! order: two files of one tick, or a clock that was set back, would change places.
//!
//! ```
//! use postrider_core::{Deadline, Message, MessagingService, QueueName, ReceiveOptions};
//! use postrider_spool::{SpoolOptions, SpoolStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), postrider_core::MessagingError> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! let provider = SpoolStore::open(folder.path(), SpoolOptions::default()).await?.connect()?;
//! let orders = QueueName::new("orders")?;
//! provider.send_message(&orders, Message::new("hello"), Deadline::default()).await?;
//! for message in provider.receive_messages(&orders, &ReceiveOptions::default(), Deadline::default()).await? {
//!     provider.ack_message(&orders, message, Deadline::default()).await?;
//! }
//! provider.close(Deadline::default()).await?;
//! # Ok(())
//! # }
//! ```

mod claim;
mod connection;
mod content;
mod contract;
mod dead_letters;
mod dirs;
mod disk;
mod doctor;
mod error;
mod index;
mod lock;
mod look;
mod message_file;
mod name;
mod options;
mod ordering_field;
mod queue;
mod queues;
mod record;
mod redrive;
mod scan;
mod send;
mod session;
mod settle;
mod store;
mod time_text;
mod unsynced;
mod watch;
mod work;

pub use connection::Connection;
pub use options::{Files, SpoolOptions, Watch};
pub use ordering_field::OrderingField;
pub use store::SpoolStore;

postrider_core::own_provider! {
    /// A connection to a [`SpoolStore`]. Clones are the same connection and close together.
    SpoolProvider(postrider_provider::Provider<Connection>)
}

/// The provider's name in receipts and errors.
const PROVIDER: &str = "spool";
