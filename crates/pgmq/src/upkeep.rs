//! Background work of a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use postrider_core::{Deadline, QueueName, Timestamp, spawn};
use postrider_pg::columns::{Time, micros, time};
use postrider_provider::Undone;
use tokio::task::AbortHandle;

use crate::indexes::index_all;
use crate::store::Shared;

/// Mean interval of sweeps of the archives.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Archived messages removed in one transaction.
const CHUNK: i64 = 1000;

/// Sweeps the archives, moves due messages from `delayed`, and indexes large queues, until it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep([AbortHandle; 3]);

impl Upkeep {
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let sweeping = spawn(sweep(Arc::downgrade(shared))).abort_handle();
        let moving = spawn(move_all(Arc::downgrade(shared))).abort_handle();
        let indexing = spawn(index_all(Arc::downgrade(shared))).abort_handle();
        Self([sweeping, moving, indexing])
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Moves due messages for readers of other clients; waiting receivers of Postrider move them themselves.
async fn move_all(shared: Weak<Shared>) {
    loop {
        let Some(store) = shared.upgrade() else { return };
        // Messages sent meanwhile to `delayed` are due later than that.
        let longest = store.options.long_delay / 2;
        let next = store.move_what_is_due().await.unwrap_or_else(|error| {
            tracing::warn!(?error, "cannot move delayed messages");
            None
        });
        drop(store);
        // Jitter: one process is enough.
        let pause = next.map_or(longest, |next| next.min(longest)) + Duration::from_millis(rand::random_range(1..50));
        tokio::time::sleep(pause).await;
    }
}

impl Shared {
    /// Moves all due messages. Returns when the next is due.
    async fn move_what_is_due(&self) -> Result<Option<Duration>, Undone> {
        let statement = &self.database.sql.general.next_delayed;
        let found = self.ask("move delayed messages", Deadline::default(), statement, Vec::new()).await?;
        let Some(row) = found.first() else { return Ok(None) };
        for name in row.get::<_, Vec<String>>("queues") {
            if let Ok(queue) = QueueName::new(&name) {
                let work = || async {
                    while self.move_due(&queue).await? > 0 {}
                    Ok(())
                };
                // A queue that refuses messages must not block the others.
                if let Err(error) = self.if_exists(&queue, Deadline::default(), work).await {
                    tracing::warn!(%queue, ?error, "cannot move due messages into the queue");
                }
            }
        }
        let next = row.get::<_, Option<i64>>("due_in");
        Ok(next.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())))
    }
}

async fn sweep(shared: Weak<Shared>) {
    loop {
        // Jitter spreads processes that were started together.
        tokio::time::sleep(SWEEP_EVERY.mul_f64(rand::random_range(0.5..1.5))).await;
        let Some(store) = shared.upgrade() else { return };
        if let Err(error) = sweep_archive(&store, Deadline::default()).await {
            tracing::warn!(?error, "cannot sweep all archives");
        }
    }
}

/// How far each archive was swept: messages of other clients stay, and need not be read again.
#[derive(Debug, Default)]
pub(crate) struct Swept(Mutex<HashMap<QueueName, Timestamp>>);

impl Swept {
    fn of(&self, queue: &QueueName) -> Timestamp {
        let swept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        swept.get(queue).copied().unwrap_or(Timestamp::EPOCH)
    }

    fn set(&self, queue: QueueName, until: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(queue, until);
    }
}

/// Removes archived messages older than the retention, a chunk at a time. Returns how many. An error of one archive is
/// returned after the others are done.
pub(crate) async fn sweep_archive(shared: &Shared, deadline: Deadline) -> Result<u64, Undone> {
    let (mut removed, mut failed, retention) = (0, None, micros(shared.options.archive_retention));
    let origins = shared.list_queues(deadline).await?;
    for queue in origins.iter().flat_map(|queue| [queue.clone(), queue.dead_letters()]) {
        let (sql, from) = (shared.database.sql.of(&queue), shared.swept.of(&queue));
        let sweep = || async {
            let after = Time(from);
            let parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&after, &retention, &CHUNK];
            let rows = shared.ask("sweep the archive", deadline, &sql.sweep_archive, parameters).await?;
            Ok(rows.first().map_or((0, from), |row| (row.get::<_, i64>("removed"), time(row, "swept_until"))))
        };
        loop {
            match shared.if_exists(&queue, deadline, sweep).await {
                Ok(Some((chunk, until))) => {
                    removed += chunk.max(0).cast_unsigned();
                    if chunk < CHUNK {
                        shared.swept.set(queue, until);
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
    }
    failed.map_or(Ok(removed), Err)
}
