//! The indexes that a queue needs here and PGMQ does not give it.
//!
//! Making one keeps writers away for as long as it takes. That is nothing for a small table; a large one that is in use
//! gets its indexes on a connection of its own, beside the writers, and is slow until they are there.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use postrider_core::{Deadline, QueueName};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::Undone;
use tokio::sync::Notify;

use crate::names::Names;
use crate::store::Shared;

/// How long it is from one try to make an index beside the writers to the next.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A table with no more bytes is read in a moment.
const SMALL: i64 = 8 << 20;

/// By the heads of keys, and by the times of what has no key.
const INDEXES: [(&str, &str); 2] = [
    ("{group_index}", "on {queue} ((headers->>'x-pgmq-group'), msg_id) where headers->>'x-pgmq-group' is not null"),
    ("{free_index}", "on {queue} (vt) where headers->>'x-pgmq-group' is null"),
];

/// Which of these indexes a queue lacks; whether there is one that nobody finished; whether somebody is at it; whether the
/// table is small.
const LACKING: &str = "\
select n.name, i.indexrelid is not null,
       exists (select 1 from pg_catalog.pg_stat_progress_create_index p where p.relid = t.oid),
       pg_catalog.pg_relation_size(t.oid) <= $3
from unnest($1::text[]) as n (name)
join pg_catalog.pg_class t on t.oid = to_regclass(format('pgmq.%I', $2::text))
left join pg_catalog.pg_index i on i.indexrelid = to_regclass(format('pgmq.%I', n.name))
where i.indisvalid is not true";

/// The large queues that wait for their indexes.
#[derive(Debug, Default)]
pub(crate) struct Unindexed {
    // A lock, held for a look.
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

/// An index that is missing.
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
            let (name, columns) = known.iter().find(|(name, _)| name == row.get::<_, &str>(0))?.clone();
            let (is_unfinished, is_in_work, is_small) = (row.get(1), row.get(2), row.get(3));
            Some(Lacking { name, columns, is_unfinished, is_in_work, is_small })
        };
        Ok(rows.iter().filter_map(lacking).collect())
    }

    /// Gives a queue its indexes, at once if it is small and nobody is writing, else later.
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
        // Another process may have come first.
        let turn = "select pg_advisory_xact_lock(hashtext('postrider.adopt.' || $1))";
        session.query(turn, &[&queue.as_str()]).await?;
        // Writers wait behind whoever waits for the table.
        session.batch("set local lock_timeout = '200ms'").await?;
        for Lacking { name, columns, .. } in lacking {
            session.batch(&format!("create index if not exists \"{name}\" {columns}")).await?;
        }
        session.commit().await
    }

    /// Makes the indexes of a large queue while others write to it. Answers whether it has them all.
    async fn index_beside(&self, queue: &QueueName) -> Result<bool, Undone> {
        for Lacking { name, columns, is_unfinished, is_in_work, .. } in self.lacking(queue, Deadline::default()).await?
        {
            if is_in_work {
                return Ok(false);
            }
            let session = self.indexing.session("index the queue", Deadline::default()).await?;
            // It waits for every transaction that is older. A pooler's sessions have no limit, and are not only ours.
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

/// Makes the indexes of large queues, one after the other, again and again until they are there.
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
                    // Whoever lacks a right is not given it in a minute. It is tried again with the next adoption.
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
