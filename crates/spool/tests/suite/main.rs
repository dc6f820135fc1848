//! Tests of the provider on a folder.

// A failure in a shared function is the failure of a test.
#![allow(clippy::unwrap_used)]

mod bad_files;
mod by_hand;
mod faults;
mod foreign;
mod inside;
mod lawful;
mod ordering;
mod permissions;
mod processes;
mod scale;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider_core::{Deadline, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore};
use tempfile::TempDir;

/// A temporary folder of one test.
struct Scratch {
    folder: TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    /// In main memory, if the system has a file system there.
    fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for the test");
        Self { folder }
    }

    fn spool(&self) -> PathBuf {
        self.folder.path().join("spool")
    }

    async fn connect(&self) -> SpoolProvider {
        connect(&self.spool(), SpoolOptions::default()).await
    }

    async fn connect_with(&self, options: SpoolOptions) -> SpoolProvider {
        connect(&self.spool(), options).await
    }
}

async fn connect(spool: &Path, options: SpoolOptions) -> SpoolProvider {
    let store = SpoolStore::open(spool, options).await.expect("the spool can be opened");
    store.connect().expect("a connection")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Receives until the queue is empty, and expects no message.
async fn read_until_empty(provider: &SpoolProvider, queue: &QueueName) {
    let end = Instant::now() + Duration::from_secs(30);
    let options = ReceiveOptions::batch(10).wait(Duration::from_millis(50));
    loop {
        let received = provider.receive_messages(queue, &options, soon()).await.expect("an answer");
        assert!(received.is_empty(), "{received:?}");
        let left = provider.queue_stats(queue, soon()).await.expect("an answer").message_count();
        if left == Some(0) {
            return;
        }
        assert!(Instant::now() < end, "{left:?} are left");
    }
}

/// Whether POSTRIDER_LONG selects the long runs.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
