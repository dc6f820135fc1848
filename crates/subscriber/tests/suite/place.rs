//! A file or a folder of a test's own.

use std::path::{Path, PathBuf};

use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};
use tempfile::TempDir;

/// A folder with a file in it, removed afterwards.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    /// In main memory, where that is a place for files: for tests of what processes do and not of what disks do.
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

/// Opens a folder of queues for itself, as another process does.
pub(crate) async fn connect_to_spool(folder: &Path) -> SpoolProvider {
    SpoolStore::open(folder, SpoolOptions::default()).await.unwrap().connect().unwrap()
}
