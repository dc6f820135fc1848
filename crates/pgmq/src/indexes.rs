//! The indexes that a queue needs here and that PGMQ does not create.
//!
//! Creating an index blocks writers meanwhile. That is brief for a small table; a large one in use gets its indexes
//! concurrently, on a separate connection, and is slow until it has them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use postrider_core::{Deadline, QueueName};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::Undone;
use tokio::sync::Notify;

use crate::names::Names;
use crate::store::Shared;

/// Interval of attempts to create indexes concurrently.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Size in bytes up to which a table is indexed at once.
const SMALL: i64 = 8 << 20;

/// The indexes: by the heads of keys, and by the due times of messages without a key.
const INDEXES: [(&str, &str); 2] = [
    ("{group_index}", "on {queue} ((headers->>'x-pgmq-group'), msg_id) where headers->>'x-pgmq-group' is not null"),
    ("{free_index}", "on {queue} (vt) where headers->>'x-pgmq-group' is null"),
];

/// The indexes that a queue lacks; whether each is invalid; whether one is being created; whether the table is small.
const LACKING: &str = "\
select n.name, i.indexrelid is not null as is_unfinished,
       exists (select 1 from pg_catalog.pg_stat_progress_create_index p where p.relid = t.oid) as is_in_work,
       pg_catalog.pg_relation_size(t.oid) <= $3 as is_small
from unnest($1::text[]) as n (name)
join pg_catalog.pg_class t on t.oid = to_regclass(format('pgmq.%I', $2::text))
left join pg_catalog.pg_index i on i.indexrelid = to_regclass(format('pgmq.%I', n.name))
where i.indisvalid is not true";

/// The large queues that lack indexes.
#[derive(Debug, Default)]
pub(crate) struct Unindexed {
    // Held for an insertion.
    queues: Mutex<HashSet<QueueName>>,
    more: Notify,
}

impl Unindexed {
    fn add(&self, queue: &QueueName) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).insert(queue.clone());
        self.more.notify_one();
    }

    fn take(&self) -> HashSet<QueueName> {
        std::mem::take(&mut *self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A missing index.
#[derive(Debug)]
struct Lacking {
    name: String,
    columns: String,
    is_unfinished: bool,
    is_in_work: bool,
    is_small: bool,
}

impl Shared {
    async fn lacking(&self, queue: &QueueName, deadline: Deadline) -> Result<Vec<Lacking>, Undone> {
        let of_queue = Names::of(queue);
        let known = INDEXES.map(|(name, columns)| (of_queue.insert(name), of_queue.insert(columns)));
        let (names, table) = (known.each_ref().map(|(name, _)| name.as_str()).to_vec(), of_queue.insert("{table}"));
        let rows = self.ask("look at the indexes", deadline, LACKING, vec![&names, &table, &SMALL]).await?;
        let lacking = |row: &Row| {
            let (name, columns) = known.iter().find(|(name, _)| name == row.get::<_, &str>("name"))?.clone();
            let (is_unfinished, is_in_work, is_small) =
                (row.get("is_unfinished"), row.get("is_in_work"), row.get("is_small"));
            Some(Lacking { name, columns, is_unfinished, is_in_work, is_small })
        };
        Ok(rows.iter().filter_map(lacking).collect())
    }

    /// Indexes a queue, at once if it is small and has no writer, else later.
    pub(crate) async fn index(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        let lacking = self.lacking(queue, deadline).await?;
        let is_easy = lacking.iter().all(|index| index.is_small && !index.is_unfinished && !index.is_in_work);
        if lacking.is_empty() || is_easy && self.index_at_once(queue, &lacking, deadline).await.is_ok() {
            return Ok(());
        }
        self.unindexed.add(queue);
        Ok(())
    }

    async fn index_at_once(&self, queue: &QueueName, lacking: &[Lacking], deadline: Deadline) -> Result<(), Undone> {
        let mut session = self.database.session("index the queue", deadline).await?;
        session.begin().await?;
        // Another process may do the same.
        let lock = "select pg_advisory_xact_lock(hashtext('postrider.adopt.' || $1))";
        session.query(lock, &[&queue.as_str()]).await?;
        // Writers queue up behind this lock request.
        session.batch("set local lock_timeout = '200ms'").await?;
        for Lacking { name, columns, .. } in lacking {
            session.batch(&format!("create index if not exists \"{name}\" {columns}")).await?;
        }
        session.commit().await
    }

    /// Creates the indexes of a large queue concurrently. Returns whether it has them all.
    async fn index_beside(&self, queue: &QueueName) -> Result<bool, Undone> {
        for Lacking { name, columns, is_unfinished, is_in_work, .. } in self.lacking(queue, Deadline::default()).await?
        {
            if is_in_work {
                return Ok(false);
            }
            let session = self.indexing.session("index the queue", Deadline::default()).await?;
            // It waits for all older transactions. Behind a pooler the setting would stay in a shared session.
            if self.options.enable_pg_notify {
                session.batch("set lock_timeout = '10min'").await?;
            }
            if is_unfinished {
                session.batch(&format!("drop index concurrently if exists pgmq.\"{name}\"")).await?;
            }
            session.batch(&format!("create index concurrently if not exists \"{name}\" {columns}")).await?;
        }
        Ok(self.lacking(queue, Deadline::default()).await?.is_empty())
    }
}

/// Creates the indexes of large queues, one queue after the other, until they exist.
pub(crate) async fn index_all(shared: Weak<Shared>) {
    loop {
        let Some(store) = shared.upgrade() else { return };
        let mut has_failed = false;
        for queue in store.unindexed.take() {
            match store.index_beside(&queue).await {
                Ok(true) => tracing::info!(%queue, "the queue has its indexes"),
                Ok(false) => {
                    has_failed = true;
                    store.unindexed.add(&queue);
                }
                Err(undone) => {
                    let error = undone.into_harmless();
                    tracing::warn!(%queue, %error, "the queue lacks its indexes, which makes it slow");
                    // A missing right is not granted within a minute; the next adoption tries again.
                    if error.is_retryable() {
                        has_failed = true;
                        store.unindexed.add(&queue);
                    }
                }
            }
        }
        let unindexed = store.unindexed.clone();
        drop(store);
        if has_failed {
            tokio::time::sleep(AGAIN_AFTER).await;
        } else {
            unindexed.more.notified().await;
        }
    }
}
