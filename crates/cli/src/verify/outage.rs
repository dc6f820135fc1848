//! A short outage of the store, for L14.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::config::ProviderKind;
use postrider::{Config, MessagingError};
use postrider_sqlite::rusqlite::{self, Connection};

/// Length of the outage. Users of a file or folder wait longer than this for its lock.
const LENGTH: Duration = Duration::from_millis(300);
/// Upper bound of the wait for the lock of the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks the store for a moment, like another program. Other failures of shared files cannot be simulated, and a lock does
/// no harm to other users of the store.
#[derive(Debug, Clone)]
pub(super) enum Outage {
    /// Locks the file.
    Sqlite(PathBuf),
    /// Locks every queue in the folder.
    Spool(PathBuf),
}

impl Outage {
    /// `None` for a store that this program cannot lock.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let (_, path) = config.url().as_str().split_once(':')?;
        match config.provider()? {
            ProviderKind::Sqlite => Some(Self::Sqlite(path.into())),
            ProviderKind::Spool => Some(Self::Spool(path.into())),
            _ => None,
        }
    }

    pub(super) async fn run(self) -> Result<(), MessagingError> {
        let done = tokio::task::spawn_blocking(move || match self {
            Self::Sqlite(file) => lock_file(&file).map_err(|error| failed("sqlite", Arc::new(error))),
            Self::Spool(folder) => lock_queues(&folder).map_err(|error| failed("spool", Arc::new(error))),
        });
        done.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn failed(provider: &'static str, source: Arc<dyn std::error::Error + Send + Sync>) -> MessagingError {
    MessagingError::Provider { provider, operation: "lock the store", source, retryable: false }
}

fn lock_file(file: &Path) -> Result<(), rusqlite::Error> {
    let other = Connection::open(file)?;
    other.busy_timeout(LOCK_TIMEOUT)?;
    other.execute_batch("begin immediate")?;
    std::thread::sleep(LENGTH);
    other.execute_batch("rollback")
}

fn lock_queues(folder: &Path) -> std::io::Result<()> {
    let mut held = Vec::new();
    for queue in std::fs::read_dir(folder)? {
        match File::open(queue?.path().join(".lock")) {
            Ok(lock) => held.extend(try_lock(lock)?),
            // Not a queue, or a queue that was just deleted.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    std::thread::sleep(LENGTH);
    Ok(())
}

/// Takes the lock, held until dropped. Gives up after a moment: its holder may be waiting for another lock that is held
/// here.
fn try_lock(lock: File) -> std::io::Result<Option<File>> {
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(std::fs::TryLockError::WouldBlock) if began.elapsed() > LENGTH => return Ok(None),
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}
