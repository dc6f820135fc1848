//! What has to be done now and then and belongs to nobody's call.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Deadline, MessagingError, spawn};
use postrider_provider::Undone;
use tokio::task::AbortHandle;

use crate::Database;
use crate::rows::micros;

/// How long it is from one sweep of the archive to the next.
const EVERY: Duration = Duration::from_secs(60);

/// So many archived messages are removed in one transaction.
const CHUNK: i64 = 1000;

/// Sweeps the archive until it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep(AbortHandle);

impl Upkeep {
    pub(crate) fn start(database: Arc<Database>, retention: Duration) -> Self {
        let task = spawn(async move {
            loop {
                // Chance spreads the processes that were started together.
                tokio::time::sleep(EVERY.mul_f64(rand::random_range(0.5..1.5))).await;
                if let Err(error) = sweep_archive(&database, retention, Deadline::default()).await {
                    tracing::debug!(?error, "the archive was not swept");
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

/// Removes archived messages that are older than the retention, chunk after chunk, and answers how many.
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
            // The index of the archive can be read in no other way.
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
