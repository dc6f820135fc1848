//! A store that is away for a moment, for L14.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postrider::config::ProviderKind;
use postrider::{Config, MessagingError};
use postrider_sqlite::rusqlite::{Connection, Error};

/// How long the store is away. Every program that uses a file waits longer than this for its lock.
const LENGTH: Duration = Duration::from_millis(300);
/// How long to wait for one's turn with others that write.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a file away and brings it back: another program holds it locked, which is all that can happen to a file that
/// several processes use.
#[derive(Debug, Clone)]
pub(super) struct Outage(PathBuf);

impl Outage {
    /// None for a store that this program cannot take away.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let path = config.url().as_str().strip_prefix("sqlite:")?;
        (config.provider() == Some(ProviderKind::Sqlite)).then(|| Self(path.into()))
    }

    pub(super) async fn happen(self) -> Result<(), MessagingError> {
        let failed = |source| MessagingError::Provider {
            provider: "sqlite",
            operation: "lock the file as another program would",
            source: Arc::new(source),
            retryable: false,
        };
        let locked = tokio::task::spawn_blocking(move || self.lock()).await;
        locked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())).map_err(failed)
    }

    fn lock(&self) -> Result<(), Error> {
        let other = Connection::open(&self.0)?;
        other.busy_timeout(PATIENCE)?;
        other.execute_batch("begin immediate")?;
        std::thread::sleep(LENGTH);
        other.execute_batch("rollback")
    }
}
