//! The fixture of a test: connections and its own names.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider_core::task::{
    Post, ScheduleStore, TaskFilter, TaskId, TaskMode, TaskRoutes, TaskState, TaskStore, TaskType,
};
use postrider_core::{MessagingError, MessagingService, QueueAdmin, QueueName};

use super::TaskHarness;
use super::messages::take_all;
use super::steps::list_all;
use crate::probe::{Stop, soon};

/// A lease that lasts until a test lets it expire.
pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const INSTANT: Duration = Duration::from_millis(1);

/// More than any test has.
pub(super) const MANY: usize = 1000;

/// The fixture of one test.
pub(super) struct Fixture<'h, H> {
    pub(super) harness: &'h H,
    /// The prefix of this test's names.
    run: String,
    types: Mutex<BTreeSet<TaskType>>,
    queues: Mutex<BTreeSet<QueueName>>,
    schedules: Mutex<BTreeSet<String>>,
}

fn note<T: Ord>(names: &Mutex<BTreeSet<T>>, name: T) {
    names.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
}

fn noted<T: Ord>(names: &Mutex<BTreeSet<T>>) -> BTreeSet<T> {
    std::mem::take(&mut *names.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<'h, H: TaskHarness> Fixture<'h, H> {
    pub(super) fn new(harness: &'h H) -> Self {
        Self {
            harness,
            run: format!("t{:07x}", rand::random::<u32>() >> 4),
            types: Mutex::default(),
            queues: Mutex::default(),
            schedules: Mutex::default(),
        }
    }

    /// A task type of this test.
    pub(super) fn task_type(&self, tag: &str) -> Result<TaskType, Stop> {
        let task_type = TaskType::new(format!("{}_{tag}", self.run))?;
        note(&self.types, task_type.clone());
        note(&self.queues, self.here().queue(&task_type)?);
        Ok(task_type)
    }

    /// The name of a schedule of this test.
    pub(super) fn schedule_name(&self, tag: &str) -> String {
        let name = format!("{}_{tag}", self.run);
        note(&self.schedules, name.clone());
        name
    }

    /// Routes for polling workers, without dead-task events.
    pub(super) fn polling(&self) -> TaskRoutes {
        TaskRoutes { queue_prefix: "p_".to_owned(), ..TaskRoutes::default() }
    }

    /// Routes that send ids to queues in the store itself.
    pub(super) fn here(&self) -> TaskRoutes {
        TaskRoutes { mode: TaskMode::Queue, post: Post::Here, queue_prefix: "q_".to_owned(), dead_events: None }
    }

    /// Routes that send ids to queues of another store.
    pub(super) fn elsewhere(&self) -> TaskRoutes {
        TaskRoutes { post: Post::Outbox, ..self.here() }
    }

    /// The same routes with a queue for dead-task events.
    pub(super) fn with_dead_events(&self, routes: TaskRoutes) -> Result<(TaskRoutes, QueueName), Stop> {
        let queue = QueueName::new(format!("{}_dead", self.run))?;
        note(&self.queues, queue.clone());
        Ok((TaskRoutes { dead_events: Some(queue.clone()), ..routes }, queue))
    }

    /// Opens a polling worker.
    pub(super) async fn open(&self) -> Result<H::Store, Stop> {
        self.open_with(self.polling()).await
    }

    pub(super) async fn open_with(&self, routes: TaskRoutes) -> Result<H::Store, Stop> {
        Ok(self.harness.open(routes).await?)
    }

    /// Opens several polling workers.
    pub(super) async fn open_several(&self, count: usize) -> Result<Vec<H::Store>, Stop> {
        let mut stores = Vec::with_capacity(count);
        for _ in 0..count {
            stores.push(self.open().await?);
        }
        Ok(stores)
    }

    pub(super) async fn queue(&self) -> Result<H::Queue, Stop> {
        Ok(self.harness.queue().await?)
    }

    pub(super) async fn elapse(&self, time: Duration) {
        self.harness.elapse(time).await;
    }

    /// Leaves nothing behind for other tests: cancels live tasks, removes queues and schedules, empties the outbox.
    pub(super) async fn clean_up(&self) -> Result<(), MessagingError> {
        let store = self.harness.open(self.polling()).await?;
        for name in noted(&self.schedules) {
            store.delete_schedule(&name, soon()).await?;
        }
        let types = noted(&self.types);
        if !types.is_empty() {
            let states = TaskState::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
            let filter = TaskFilter { states, types: types.into_iter().collect(), ..TaskFilter::default() };
            let live: Vec<TaskId> = list_all(&store, &filter).await?.iter().map(|task| task.id).collect();
            for ids in live.chunks(500) {
                store.cancel(ids, soon()).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
            }
        }
        take_all(&store, LEASE, |_| false).await?;
        let queue = self.harness.queue().await?;
        for name in noted(&self.queues) {
            queue.delete_queue(&name, soon()).await?;
        }
        queue.close(soon()).await
    }
}
