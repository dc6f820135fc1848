//! Which queues there are. Others make and drop them too, so what is known may be over; then a statement finds no table,
//! and it is looked for again.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use postrider_core::{Deadline, QueueName};
use postrider_pg::is_missing_table;
use postrider_sql::{Undone, persist};

use crate::names;
use crate::store::Shared;
use crate::upkeep::Upkeep;

/// So many queues are remembered. One process may meet any number of names.
const MOST_QUEUES: usize = 10_000;

/// How often a queue that comes and goes is looked for.
const TRIES: usize = 3;

/// What a process knows of queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    // Locks, held for a look.
    there: Mutex<HashSet<QueueName>>,
    adopted: Mutex<HashSet<QueueName>>,
    /// Ends with the store.
    upkeep: OnceLock<Upkeep>,
}

fn lock(set: &Mutex<HashSet<QueueName>>) -> MutexGuard<'_, HashSet<QueueName>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(set: &Mutex<HashSet<QueueName>>, queue: &QueueName) {
    let mut set = lock(set);
    // Only what is looked for once more would be forgotten.
    if set.len() >= MOST_QUEUES {
        set.clear();
    }
    set.insert(queue.clone());
}

impl Queues {
    /// Keeps the upkeep going as long as the store is there.
    pub(crate) fn keep(&self, upkeep: Upkeep) {
        let _ = self.upkeep.set(upkeep);
    }

    fn forget(&self, queue: &QueueName) {
        for queue in [queue.clone(), queue.dead_letters()] {
            lock(&self.there).remove(&queue);
            lock(&self.adopted).remove(&queue);
        }
    }
}

impl Shared {
    /// Whether a queue has a table.
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

    /// Does something with a queue's table; `None` when it has none.
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

    /// Does something again when a table was gone, now that nobody thinks that it is there.
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

    /// Makes a queue and the one for its dead letters, where they are missing.
    pub(crate) async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        names::check(queue)?;
        // Asked anew: somebody may have dropped it.
        self.queues.forget(queue);
        if self.exists(queue, deadline).await? && self.exists(&queue.dead_letters(), deadline).await? {
            self.adopt(queue, deadline).await?;
            return Ok(());
        }
        let (name, dead, throttle) = (queue.as_str(), queue.dead_letters(), self.throttle());
        let general = &self.database.sql.general;
        persist(|| async {
            let mut session = self.database.session("ensure_queue", deadline).await?;
            session.begin().await?;
            session.query(&general.ensure_queue, &[&name, &dead.as_str()]).await?;
            session.query(&general.adopt, &[&name, &throttle]).await?;
            session.commit().await
        })
        .await?;
        add(&self.queues.there, queue);
        add(&self.queues.there, &dead);
        add(&self.queues.adopted, queue);
        Ok(())
    }

    /// Makes the queue for the dead letters of one that somebody else has made.
    pub(crate) async fn ensure_dead_letters(&self, queue: &QueueName) -> Result<(), Undone> {
        if self.exists(&queue.dead_letters(), Deadline::default()).await? {
            return Ok(());
        }
        self.ensure_queue(queue, Deadline::default()).await
    }

    /// Gives a queue that somebody else may have made what Postrider needs of it: the index by which keys are ordered,
    /// and notifications. Answers whether the queue is there. What cannot be given only makes things slower.
    pub(crate) async fn adopt(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        if queue.holds_dead_letters() || lock(&self.queues.adopted).contains(queue) {
            return Ok(true);
        }
        if !self.exists(queue, deadline).await? {
            return Ok(false);
        }
        let (name, throttle) = (queue.as_str(), self.throttle());
        let statement = &self.database.sql.general.adopt;
        match self.ask("adopt the queue", deadline, statement, vec![&name, &throttle]).await {
            Ok(_) => {}
            Err(undone @ (Undone::Rejected(_) | Undone::NotDone(_) | Undone::InTheWay(_))) => {
                tracing::debug!(%queue, ?undone, "the queue has no index for keys, or does not notify");
            }
            Err(undone) => return Err(undone),
        }
        add(&self.queues.adopted, queue);
        Ok(true)
    }

    /// How long a queue is quiet after a notification, in milliseconds; `None` when it is not asked to notify.
    fn throttle(&self) -> Option<i32> {
        let millis = i32::try_from(self.options.notify_throttle.as_millis().max(1)).unwrap_or(i32::MAX);
        self.options.enable_pg_notify.then_some(millis)
    }
}
