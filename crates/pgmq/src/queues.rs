//! Known queues. Other clients create and drop queues too, so a known queue may be gone; then a statement finds no
//! table, and the queue is looked up again.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, QueueName};
use postrider_pg::is_missing_table;
use postrider_provider::{Undone, persist};
use tokio::time::Instant;

use crate::names;
use crate::store::Shared;
use crate::upkeep::Upkeep;

/// Upper bound of remembered queues. A process may see any number of names.
const MAX_QUEUES: usize = 10_000;

/// Delay before a queue whose table was locked is adopted again.
const BUSY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Delay before a queue that this user may not change is adopted again.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// Attempts to use a queue that comes and goes.
const TRIES: usize = 3;

/// The queues that a process knows.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    // Held for a lookup.
    there: Mutex<HashSet<QueueName>>,
    /// Adopted queues, or when each is to be adopted again.
    adopted: Mutex<HashMap<QueueName, Option<Instant>>>,
    /// Stops with the store.
    upkeep: OnceLock<Upkeep>,
}

fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(set: &Mutex<HashSet<QueueName>>, queue: &QueueName) {
    let mut set = lock(set);
    // Forgotten queues are looked up again.
    if set.len() >= MAX_QUEUES {
        set.clear();
    }
    set.insert(queue.clone());
}

impl Queues {
    /// Keeps the background work running as long as the store.
    pub(crate) fn keep(&self, upkeep: Upkeep) {
        let _ = self.upkeep.set(upkeep);
    }

    fn is_adopted(&self, queue: &QueueName) -> bool {
        lock(&self.adopted).get(queue).is_some_and(|again| again.is_none_or(|again| Instant::now() < again))
    }

    fn set_adopted(&self, queue: &QueueName, again: Option<Instant>) {
        let mut adopted = lock(&self.adopted);
        if adopted.len() >= MAX_QUEUES {
            adopted.clear();
        }
        adopted.insert(queue.clone(), again);
    }

    fn forget(&self, queue: &QueueName) {
        for queue in [queue.clone(), queue.dead_letters()] {
            lock(&self.there).remove(&queue);
            lock(&self.adopted).remove(&queue);
        }
    }
}

impl Shared {
    /// Returns whether a queue has a table.
    pub(crate) async fn exists(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        if lock(&self.queues.there).contains(queue) {
            return Ok(true);
        }
        let names = vec![queue.as_str()];
        let statement = &self.database.sql.general.queues_exist;
        let is_there = !self.ask("look for queues", deadline, statement, vec![&names]).await?.is_empty();
        if is_there {
            add(&self.queues.there, queue);
        }
        Ok(is_there)
    }

    /// Runs work on a queue's table; `None` if it has none.
    pub(crate) async fn if_exists<T, F>(
        &self,
        queue: &QueueName,
        deadline: Deadline,
        work: impl Fn() -> F,
    ) -> Result<Option<T>, Undone>
    where
        F: Future<Output = Result<T, Undone>>,
    {
        let work = || async {
            match self.exists(queue, deadline).await? {
                true => work().await.map(Some),
                false => Ok(None),
            }
        };
        self.again_without_missing([queue], work).await
    }

    /// Runs work, and again after a missing table, with the queues forgotten.
    pub(crate) async fn again_without_missing<'q, T, F>(
        &self,
        queues: impl IntoIterator<Item = &'q QueueName>,
        work: impl Fn() -> F,
    ) -> Result<T, Undone>
    where
        F: Future<Output = Result<T, Undone>>,
    {
        let queues: Vec<&QueueName> = queues.into_iter().collect();
        let mut tries = 1;
        loop {
            match work().await {
                Err(undone) if is_missing_table(&undone) && tries < TRIES => {
                    queues.iter().for_each(|queue| self.queues.forget(queue));
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    /// Creates a queue and its dead-letter queue, where missing.
    pub(crate) async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        names::check(queue)?;
        // Look them up anew: another client may have dropped them.
        self.queues.forget(queue);
        if self.exists(queue, deadline).await? && self.exists(&queue.dead_letters(), deadline).await? {
            self.adopt(queue, deadline).await?;
            return Ok(());
        }
        let (name, dead) = (queue.as_str(), queue.dead_letters());
        let general = &self.database.sql.general;
        persist(|| async {
            let mut session = self.database.session("ensure queue", deadline).await?;
            session.begin().await?;
            session.query(&general.ensure_queue, &[&name, &dead.as_str()]).await?;
            session.commit().await
        })
        .await?;
        add(&self.queues.there, queue);
        add(&self.queues.there, &dead);
        // In another transaction: the queue may have existed, and be in use.
        self.adopt(queue, deadline).await.map(drop)
    }

    /// Creates the dead-letter queue of a queue that another client has created.
    pub(crate) async fn ensure_dead_letters(&self, queue: &QueueName) -> Result<(), Undone> {
        if self.exists(&queue.dead_letters(), Deadline::default()).await? {
            return Ok(());
        }
        self.ensure_queue(queue, Deadline::default()).await
    }

    /// Gives a queue that another client may have created what Postrider needs: indexes, frequent vacuum and
    /// notifications. Returns whether the queue exists. A failure only makes the queue slower, and is retried later.
    pub(crate) async fn adopt(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        if queue.holds_dead_letters() || self.queues.is_adopted(queue) {
            return Ok(true);
        }
        if !self.exists(queue, deadline).await? {
            return Ok(false);
        }
        let (name, throttle) = (queue.as_str(), self.throttle());
        let statement = &self.database.sql.general.adopt;
        self.index(queue, deadline).await?;
        let again = match self.ask("adopt the queue", deadline, statement, vec![&name, &throttle]).await {
            Ok(_) => None,
            Err(undone @ (Undone::Rejected(_) | Undone::NotDone(_) | Undone::InTheWay(_))) => {
                let error = undone.into_harmless();
                tracing::warn!(%queue, %error, "cannot adopt the queue: it has no notifications, or too little vacuum");
                // A missing right is not granted within a minute.
                let is_busy = error.is_retryable();
                Some(Instant::now() + if is_busy { BUSY_AGAIN_AFTER } else { REFUSED_AGAIN_AFTER })
            }
            Err(undone) => return Err(undone),
        };
        self.queues.set_adopted(queue, again);
        Ok(true)
    }

    /// Returns the throttle of notifications in milliseconds; `None` if they are off.
    fn throttle(&self) -> Option<i32> {
        let millis = i32::try_from(self.options.notify_throttle.as_millis().max(1)).unwrap_or(i32::MAX);
        self.options.enable_pg_notify.then_some(millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::{drop_all, opened};

    #[tokio::test]
    async fn a_queue_that_was_busy_is_adopted_later() {
        let (schema, queue, store) = opened().await;
        let shared = &store.shared;
        let notifies = async || {
            let look =
                "select tgname::text from pg_catalog.pg_trigger where tgrelid = to_regclass($1) and not tgisinternal";
            let table = format!("pgmq.q_{queue}");
            !shared.ask("test", Deadline::default(), look, vec![&table]).await.unwrap().is_empty()
        };
        shared
            .ask("test", Deadline::default(), "select pgmq.disable_notify_insert($1)", vec![&queue.as_str()])
            .await
            .unwrap();
        shared.queues.forget(&queue);
        let mut writer = shared.database.session("test", Deadline::default()).await.unwrap();
        writer.begin().await.unwrap();
        writer.batch(&format!("insert into pgmq.q_{queue} (vt, message) values (now(), '{{}}')")).await.unwrap();
        assert!(shared.adopt(&queue, Deadline::default()).await.unwrap(), "the queue exists and is usable");
        assert!(shared.queues.is_adopted(&queue), "it is left alone for a while");
        writer.rollback().await.unwrap();
        assert!(!notifies().await);
        let again = *lock(&shared.queues.adopted).get(&queue).unwrap();
        assert!(again.is_some_and(|again| again <= Instant::now() + BUSY_AGAIN_AFTER), "but not for ever");
        shared.queues.set_adopted(&queue, Some(Instant::now()));
        assert!(shared.adopt(&queue, Deadline::default()).await.unwrap());
        assert!(notifies().await);
        drop_all(&mut writer, &schema, &queue).await;
    }
}
