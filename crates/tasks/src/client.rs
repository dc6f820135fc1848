//! The client: creates and manages tasks and schedules.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use postrider_core::task::{
    Created, NewSchedule, NewTask, PayloadRevision, Schedule, ScheduleStore, Task, TaskAttempt, TaskId, TaskMode,
    TaskPage, TaskQuery, TaskState, TaskStore, TaskType,
};
use postrider_core::{Deadline, MessagingError, MessagingService, RowResults};

use crate::kind::{self, TaskKind, TaskResultError};
use crate::timing::Times;

const CREATE: &str = "create a task";

/// Time until the queue of a type is checked again after the provider could not be reached.
const CHECK_AGAIN: Duration = Duration::from_secs(30);

/// Time limit for a broker to accept a queue's name. Without an answer the task is created all the same.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates, reads, cancels and replays tasks, and manages schedules. Clones are the same client.
#[derive(Debug, Clone)]
pub struct TaskClient<S, P> {
    pub(crate) store: S,
    provider: P,
    /// Types whose queue was checked, and when to check it again. A mutex, held for a look-up.
    checked: Arc<Mutex<HashMap<TaskType, Option<Instant>>>>,
}

fn only<T>(rows: RowResults<T>, operation: &'static str) -> Result<T, MessagingError> {
    let unknown = || MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None };
    rows.into_iter().next().unwrap_or_else(|| Err(unknown()))
}

impl<S, P> TaskClient<S, P>
where
    S: TaskStore + ScheduleStore + Clone,
    P: MessagingService,
{
    pub(crate) fn new(store: S, provider: P) -> Self {
        Self { store, provider, checked: Arc::default() }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Creates a task.
    pub async fn create(&self, task: NewTask, deadline: Deadline) -> Result<Created, MessagingError> {
        only(self.create_many(vec![task], deadline).await?, CREATE)
    }

    /// Creates tasks, in their order, in one transaction. Each task is accepted or refused by itself.
    pub async fn create_many(
        &self,
        tasks: Vec<NewTask>,
        deadline: Deadline,
    ) -> Result<RowResults<Created>, MessagingError> {
        let refused = self.refused_types(&tasks, deadline).await?;
        if refused.is_empty() {
            return self.store.create(tasks, deadline).await;
        }
        let answers = tasks.iter().map(|task| refused.get(&task.task_type).cloned()).collect::<Vec<_>>();
        let allowed = tasks.into_iter().filter(|task| !refused.contains_key(&task.task_type)).collect();
        let mut made = self.store.create(allowed, deadline).await?.into_iter();
        let unknown = || MessagingError::OutcomeUnknown { operation: CREATE, ids: Vec::new(), source: None };
        let row = |refused: Option<MessagingError>| match refused {
            Some(error) => Err(error),
            None => made.next().unwrap_or_else(|| Err(unknown())),
        };
        Ok(answers.into_iter().map(row).collect())
    }

    /// The types of these tasks whose queue the provider cannot hold, and why.
    async fn refused_types(
        &self,
        tasks: &[NewTask],
        deadline: Deadline,
    ) -> Result<HashMap<TaskType, MessagingError>, MessagingError> {
        let mut refused = HashMap::new();
        if self.store.routes().mode == TaskMode::Queue {
            let types: BTreeSet<&TaskType> = tasks.iter().map(|task| &task.task_type).collect();
            for task_type in types {
                deadline.check(CREATE)?;
                if let Err(error) = self.check_queue(task_type, deadline).await {
                    refused.insert(task_type.clone(), error);
                }
            }
        }
        Ok(refused)
    }

    /// Refuses a type whose queue the provider cannot hold, because its tasks could never be delivered. An unreachable
    /// provider refuses nothing: the task waits in the store.
    async fn check_queue(&self, task_type: &TaskType, deadline: Deadline) -> Result<(), MessagingError> {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner).get(task_type).copied();
        if checked.is_some_and(|again| again.is_none_or(|again| again > Instant::now())) {
            return Ok(());
        }
        let queue = self.store.routes().queue(task_type)?;
        let again = match self.provider.ensure_queue(&queue, deadline.at_most(CHECK_TIMEOUT)).await {
            Ok(()) => None,
            Err(error @ (MessagingError::InvalidInput { .. } | MessagingError::NotSupported { .. })) => {
                return Err(error);
            }
            Err(_) => Some(Instant::now() + CHECK_AGAIN),
        };
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(task_type.clone(), again);
        Ok(())
    }

    /// Reads a task.
    pub async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Task, MessagingError> {
        self.store.get(id, deadline).await?.ok_or(MessagingError::TaskNotFound { id })
    }

    /// Every attempt of a task, oldest first.
    pub async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        self.store.attempts(id, deadline).await
    }

    /// The payloads of a task before its edits, oldest first.
    pub async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        self.store.revisions(id, deadline).await
    }

    /// Lists tasks, newest first, in pages.
    pub async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        self.store.list(query, deadline).await
    }

    /// Cancels a task that has not ended. Returns the state that it left.
    pub async fn cancel(&self, id: TaskId, deadline: Deadline) -> Result<TaskState, MessagingError> {
        only(self.store.cancel(&[id], deadline).await?, "cancel a task")
    }

    /// Makes a task due now: a waiting task need not wait for its time, a dead one is replayed.
    pub async fn retry(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        match only(self.store.run_now(&[id], deadline).await?, "retry a task") {
            Err(MessagingError::TaskConflict { state: TaskState::Dead, .. }) => self.replay(id, deadline).await,
            Err(MessagingError::TaskConflict { id, state, .. }) => {
                Err(MessagingError::TaskConflict { id, state, operation: "retried" })
            }
            answer => answer,
        }
    }

    /// Replays a dead task, with fresh attempts.
    pub async fn replay(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        only(self.store.replay(&[id], deadline).await?, "replay a task")
    }

    /// Changes the payload of a dead task and keeps the old one. Returns the number of the new revision.
    pub async fn edit(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        self.store.edit_payload(id, payload, deadline).await
    }

    /// Waits until a task has ended, and returns it.
    pub async fn ended(&self, id: TaskId, deadline: Deadline) -> Result<Task, MessagingError> {
        let interval = Duration::from_millis(100);
        loop {
            let task = self.get(id, deadline).await?;
            if task.info.state.is_terminal() {
                return Ok(task);
            }
            deadline.check("wait for a task")?;
            tokio::time::sleep(deadline.remaining().map_or(interval, |left| left.min(interval))).await;
        }
    }

    /// Waits until a task has ended, and returns its result.
    ///
    /// A task that is dead or canceled has none: the error names its state and its last error.
    pub async fn result<K: TaskKind>(&self, id: TaskId, deadline: Deadline) -> Result<K::Result, TaskResultError> {
        kind::result_of::<K>(self.ended(id, deadline).await?)
    }

    /// Creates a schedule, or changes the one of its name. If its times stay the same it keeps its next run, so that a
    /// program can put its schedules whenever it starts.
    pub async fn put_schedule(&self, schedule: &NewSchedule, deadline: Deadline) -> Result<Schedule, MessagingError> {
        schedule.check(self.store.max_payload_bytes())?;
        let times = Times::read(&schedule.timing)?;
        let now = self.store.store_time(deadline).await?;
        let first = times
            .after(now)
            .ok_or_else(|| MessagingError::invalid("schedule", "its times never occur; check its day and its month"))?;
        let known = self.store.get_schedule(&schedule.name, deadline).await?;
        let kept = known.filter(|known| known.definition.timing == schedule.timing && known.paused_at.is_none());
        let next = kept.and_then(|known| known.next_run_at).unwrap_or(first);
        self.store.put_schedule(schedule, Some(next), deadline).await
    }

    /// Reads a schedule.
    pub async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Schedule, MessagingError> {
        self.store.get_schedule(name, deadline).await?.ok_or_else(|| no_schedule(name))
    }

    /// Every schedule, by name.
    pub async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        self.store.list_schedules(deadline).await
    }

    /// Removes a schedule. Its tasks stay.
    pub async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<(), MessagingError> {
        match self.store.delete_schedule(name, deadline).await? {
            true => Ok(()),
            false => Err(no_schedule(name)),
        }
    }

    /// Pauses a schedule. Times during the pause are not made up for.
    pub async fn pause_schedule(&self, name: &str, deadline: Deadline) -> Result<Schedule, MessagingError> {
        self.set_paused(name, true, deadline).await
    }

    /// Resumes a schedule, with its next time from now.
    pub async fn resume_schedule(&self, name: &str, deadline: Deadline) -> Result<Schedule, MessagingError> {
        self.set_paused(name, false, deadline).await
    }

    async fn set_paused(&self, name: &str, is_paused: bool, deadline: Deadline) -> Result<Schedule, MessagingError> {
        loop {
            let schedule = self.get_schedule(name, deadline).await?;
            if schedule.paused_at.is_some() == is_paused {
                return Ok(schedule);
            }
            let now = self.store.store_time(deadline).await?;
            let next = Times::read(&schedule.definition.timing)?.after(now);
            // Another process may have fired or changed it since it was read.
            if self.store.set_schedule_paused(name, schedule.version, is_paused, next, deadline).await? {
                return self.get_schedule(name, deadline).await;
            }
            deadline.check("pause a schedule")?;
        }
    }

    /// Creates a task of a schedule now. Its times do not change.
    pub async fn trigger_schedule(&self, name: &str, deadline: Deadline) -> Result<Created, MessagingError> {
        let schedule = self.get_schedule(name, deadline).await?;
        self.create(schedule.definition.task.task(name)?, deadline).await
    }
}

fn no_schedule(name: &str) -> MessagingError {
    let why = format!("there is no schedule '{}'; list them with `postrider schedule list`", name.escape_debug());
    MessagingError::invalid("schedule", why)
}
