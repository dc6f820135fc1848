//! Background work of a store.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Deadline, MessagingError, spawn};
use postrider_provider::Undone;
use tokio::task::AbortHandle;

use crate::connection::Database;
use crate::literal::{self, fill, micros};
use crate::rows;

/// Mean interval of sweeps of the archive.
const EVERY: Duration = Duration::from_secs(60);

/// Archived messages removed in one transaction.
const CHUNK: usize = 1000;

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
    let (age, limit) = (micros(retention).to_string(), CHUNK.to_string());
    let values = [("age", age.as_str()), ("limit", limit.as_str())];
    let mut removed = 0;
    loop {
        let mut session = database.session("sweep the archive", deadline).await?;
        let sweep = async {
            let sql = session.sql();
            let old = session.begin(fill(&sql.old_archive, &values)).await?;
            let row =
                |row: &mysql_async::Row| (rows::text(row, "queue"), literal::bytes(rows::bytes(row, "message_id")));
            let old: Vec<(String, String)> = old.iter().flatten().map(row).collect();
            let messages = literal::attempts_of(old.iter().map(|(queue, id)| (queue.as_str(), id.clone())));
            let attempts = fill(&sql.forget_attempts, &[("messages", &messages)]);
            session.commit(format!("{attempts};\n{}", fill(&sql.sweep_archive, &values))).await?;
            Ok::<_, Undone>(old.len())
        };
        let chunk = sweep.await.map_err(|error| error.into_error("sweep the archive", Vec::new()))?;
        removed += chunk as u64;
        if chunk < CHUNK {
            return Ok(removed);
        }
    }
}
