//! Background work of a store.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Deadline, MessagingError, spawn};
use postrider_provider::Undone;
use tokio::task::AbortHandle;

use crate::Database;
use crate::rows::micros;

/// Mean interval of sweeps of the archive.
const EVERY: Duration = Duration::from_secs(60);

/// Archived messages removed in one transaction.
const CHUNK: i64 = 1000;

/// Sweeps the archive until it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep(AbortHandle);

impl Upkeep {
    pub(crate) fn start(database: Arc<Database>, retention: Duration) -> Self {
        let task = spawn(async move {
            loop {
                // Jitter spreads processes that were started together.
                tokio::time::sleep(EVERY.mul_f64(rand::random_range(0.5..1.5))).await;
                if let Err(error) = sweep_archive(&database, retention, Deadline::default()).await {
                    tracing::debug!(?error, "cannot sweep the archive");
                }
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Removes archived messages older than the retention, a chunk at a time. Returns how many.
pub(crate) async fn sweep_archive(
    database: &Database,
    retention: Duration,
    deadline: Deadline,
) -> Result<u64, MessagingError> {
    let retention = micros(retention);
    let mut removed = 0;
    loop {
        let mut session = database.session("sweep the archive", deadline).await?;
        let sweep = async {
            session.begin().await?;
            // A BRIN index is read by a bitmap scan only.
            session.batch("set local enable_bitmapscan = on").await?;
            let rows = session.query(&session.sql().sweep_archive, &[&retention, &CHUNK]).await?;
            session.commit().await?;
            Ok::<_, Undone>(rows.first().map_or(0, |row| row.get::<_, i64>(0)))
        };
        let chunk = sweep.await.map_err(|error| error.into_error("sweep the archive", Vec::new()))?;
        removed += chunk.max(0).cast_unsigned();
        if chunk < CHUNK {
            return Ok(removed);
        }
    }
}
