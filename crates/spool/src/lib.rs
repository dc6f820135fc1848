//! A directory is a queue: leases, retries, order and dead letters, in which `mv` is a producer's whole client.
//!
//! **The idea.** A message is a file, and its file's name says everything about it that changes. Claiming, settling,
//! retrying and burying it are renames, which a file system carries out whole or not at all. So whoever can rename a file
//! into `incoming/` is a producer, `ls` shows what is going on, and a process can be killed between any two system calls.
//!
//! **The invariant.** A message's file is in one folder at any time. Whoever changes it renames it from the exact name
//! that holds its lease: a token that is in no name any more changes nothing. Order is kept by the lock of the queue, which
//! is held for a few renames and given up before the disk is waited for; under the lock, what a process knows of the
//! folders is what is in them.
//!
//! **How it is fast.** A folder is read once; afterwards inotify tells what others did, and a claim asks an index in
//! memory. Concurrent senders write their files at the same time and share the write of the folder, and so do settles.
//!
//! **What was rejected.** Claims without a lock: one rename is enough to own a message, but not to know that no earlier one
//! of its key is on its way from one folder to another while they are read. Records beside every file: twice the files, and
//! two things that can disagree. Leases in the content of files: not atomic, and not to be seen by `ls`. Time stamps alone
//! for order: two files of one tick, or a clock that was set back, would change places.
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
mod letter;
mod lock;
mod look;
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
