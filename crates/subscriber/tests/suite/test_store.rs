//! A file or a folder for one test.

use std::path::{Path, PathBuf};

use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};
use tempfile::TempDir;

/// A temporary folder for a file or a spool, removed afterwards.
pub(crate) struct TestStore {
    folder: TempDir,
}

impl TestStore {
    /// In main memory, if the system has a file system there: for tests of processes and not of disks.
    pub(crate) fn in_memory() -> Self {
        Self { folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap() }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path("queues.db")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.path("queues")
    }

    pub(crate) async fn connect_to_spool(&self) -> SpoolProvider {
        connect_to_spool(&self.spool()).await
    }

    pub(crate) async fn connect(&self) -> SqliteProvider {
        connect(&self.file()).await
    }
}

pub(crate) async fn connect(file: &Path) -> SqliteProvider {
    let store = SqliteStore::open(file, SqliteOptions::default()).await.unwrap();
    store.connect().await.unwrap()
}

/// Opens a folder of queues separately, as another process does.
pub(crate) async fn connect_to_spool(folder: &Path) -> SpoolProvider {
    SpoolStore::open(folder, SpoolOptions::default()).await.unwrap().connect().unwrap()
}
