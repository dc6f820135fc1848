//! Tests of the store through its public API.

// The lint allows unwraps in tests; these functions are shared by tests.
#![allow(clippy::unwrap_used)]

mod archive;
mod broken_state_records;
mod broken_tasks;
mod connections;
mod damaged_rows;
mod files;
mod full_disk;
mod idempotency;
mod lawful;
mod operators_page;
mod processes;

mod state_records;
mod tasks;
mod transactions;

use std::path::{Path, PathBuf};

use postrider_core::{Deadline, QueueName};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};
use tempfile::TempDir;

/// A folder with a database file for one test, removed afterwards.
struct TestStore {
    folder: TempDir,
}

impl TestStore {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("queues.db")
    }

    /// In main memory, if the system has a file system there.
    fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for the test");
        Self { folder }
    }

    async fn connect(&self) -> SqliteProvider {
        connect(&self.file()).await
    }

    async fn connect_with(&self, options: SqliteOptions) -> SqliteProvider {
        let store = SqliteStore::open(self.file(), options).await.expect("the file can be opened");
        store.connect().await.expect("a connection")
    }
}

async fn connect(file: &Path) -> SqliteProvider {
    let store = SqliteStore::open(file, SqliteOptions::default()).await.expect("the file can be opened");
    store.connect().await.expect("a connection")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Whether long runs are requested.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
