//! A store that is away for a moment, for L14.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::config::ProviderKind;
use postrider::{Config, MessagingError};
use postrider_sqlite::rusqlite::{self, Connection};

/// How long the store is away. Every program that uses a file or a folder waits longer than this for its lock.
const LENGTH: Duration = Duration::from_millis(300);
/// How long to wait for one's turn with others that write.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a store away and brings it back: another program holds it locked, which is all that can happen to files that
/// several processes use, and does no harm to those who use it at the same time.
#[derive(Debug, Clone)]
pub(super) enum Outage {
    /// The whole file.
    Sqlite(PathBuf),
    /// Every queue in the folder.
    Spool(PathBuf),
}

impl Outage {
    /// None for a store that this program cannot take away.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let (_, path) = config.url().as_str().split_once(':')?;
        match config.provider()? {
            ProviderKind::Sqlite => Some(Self::Sqlite(path.into())),
            ProviderKind::Spool => Some(Self::Spool(path.into())),
            _ => None,
        }
    }

    pub(super) async fn happen(self) -> Result<(), MessagingError> {
        let done = tokio::task::spawn_blocking(move || match self {
            Self::Sqlite(file) => lock_file(&file).map_err(|error| failed("sqlite", Arc::new(error))),
            Self::Spool(folder) => lock_queues(&folder).map_err(|error| failed("spool", Arc::new(error))),
        });
        done.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn failed(provider: &'static str, source: Arc<dyn std::error::Error + Send + Sync>) -> MessagingError {
    MessagingError::Provider { provider, operation: "lock it as another program would", source, retryable: false }
}

fn lock_file(file: &Path) -> Result<(), rusqlite::Error> {
    let other = Connection::open(file)?;
    other.busy_timeout(PATIENCE)?;
    other.execute_batch("begin immediate")?;
    std::thread::sleep(LENGTH);
    other.execute_batch("rollback")
}

fn lock_queues(folder: &Path) -> std::io::Result<()> {
    let mut held = Vec::new();
    for queue in std::fs::read_dir(folder)? {
        match File::open(queue?.path().join(".lock")) {
            Ok(lock) => held.extend(locked(lock)?),
            // No queue, or one that was deleted meanwhile.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    std::thread::sleep(LENGTH);
    Ok(())
}

/// The lock, held until it is dropped. Nobody is waited for endlessly: somebody who holds one may be waiting for another
/// that is held here.
fn locked(lock: File) -> std::io::Result<Option<File>> {
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
