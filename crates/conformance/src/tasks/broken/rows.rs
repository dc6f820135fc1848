//! What is done task by task, in the broken way.

use std::time::Duration;

use postrider_core::service::RowResults;
use postrider_core::task::{
    ClaimAnswer, Created, Finish, NewTask, ScheduleStore, TaskId, TaskOutcome, TaskState, TaskStore,
};
use postrider_core::{Deadline, MessagingError};

use super::spoil::DAY;
use super::{BrokenTasks, TaskFault};

impl<S: TaskStore + ScheduleStore> BrokenTasks<S> {
    pub(super) async fn create_one(&self, task: NewTask, deadline: Deadline) -> Result<Created, MessagingError> {
        let mut task = self.spoil_task(task);
        let taken = task.idempotency_key.as_ref().map(|key| (task.task_type.clone(), key.as_str().to_owned()));
        if self.has(TaskFault::LooksBeforeItMakes)
            && let Some(taken) = taken
        {
            let first = self.notes.state().idempotency_keys.get(&taken).copied();
            if let Some(id) = first {
                return Ok(Created { id, is_new: false, state: TaskState::Pending });
            }
            task.idempotency_key = None;
            let created = row(self.inner.create(vec![task], deadline).await?)?;
            self.notes.state().idempotency_keys.insert(taken, created.id);
            return Ok(created);
        }
        let created = row(self.inner.create(vec![task.clone()], deadline).await?)?;
        if self.has(TaskFault::FreesKeysOfTheEnded) && !created.is_new && created.state.is_terminal() {
            task.idempotency_key = None;
            return row(self.inner.create(vec![task], deadline).await?);
        }
        Ok(created)
    }

    pub(super) async fn cancel_one(&self, id: TaskId, deadline: Deadline) -> Result<TaskState, MessagingError> {
        let before = self.inner.get(id, deadline).await?.map(|task| task.info);
        match (self.fault, before) {
            (Some(TaskFault::CancelsOnlyPending), Some(task)) if task.state != TaskState::Pending => {
                Err(MessagingError::TaskConflict { id, state: task.state, operation: "canceled" })
            }
            (Some(TaskFault::KeepsKeysOfTheCanceled), Some(task)) if task.ordering_key.is_some() => {
                self.notes.state().reported_states.insert(id, TaskState::Canceled);
                Ok(task.state)
            }
            (Some(TaskFault::CancelsTheEnded), Some(task)) if task.state.is_terminal() => {
                self.notes.state().reported_states.insert(id, TaskState::Canceled);
                Ok(task.state)
            }
            (Some(TaskFault::AcceptsEveryCancel), Some(task)) if task.state.is_terminal() => Ok(task.state),
            _ => row(self.inner.cancel(&[id], deadline).await?),
        }
    }

    pub(super) async fn replay_one(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        let before = self.inner.get(id, deadline).await?.map_or(0, |task| task.info.attempt_count);
        let answer = row(self.inner.replay(&[id], deadline).await?);
        match (self.fault, answer) {
            (Some(TaskFault::AcceptsEveryReplay), Err(MessagingError::TaskConflict { .. })) => Ok(()),
            (Some(TaskFault::ReplaysWithCounts), Ok(())) => {
                self.notes.state().earlier_attempts.insert(id, before);
                Ok(())
            }
            (Some(TaskFault::ReplaysWithoutMessage), Ok(())) => {
                let claimed = self.without_events.claim_by_id(&[id], DAY, "another", deadline).await?;
                if let Some(ClaimAnswer::Claimed(task)) = claimed.into_iter().next() {
                    let outcome = TaskOutcome::Retry { after: Duration::ZERO, error: String::new() };
                    let _ = self.without_events.finish(vec![Finish { lease: task.lease, outcome }], deadline).await?;
                }
                Ok(())
            }
            (_, answer) => answer,
        }
    }

    pub(super) async fn run_now_one(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        let before = self.inner.get(id, deadline).await?.map(|task| task.info.scheduled_for);
        let is_due = before <= Some(self.inner.store_time(deadline).await?);
        match self.fault {
            Some(TaskFault::RunsNothingNow) => Ok(()),
            Some(TaskFault::MovesWhatIsDue) if is_due => {
                self.notes.state().moved.insert(id);
                Ok(())
            }
            _ => row(self.inner.run_now(&[id], deadline).await?),
        }
    }
}

fn row<T>(rows: RowResults<T>) -> Result<T, MessagingError> {
    let unknown = MessagingError::OutcomeUnknown { operation: "task", ids: Vec::new(), source: None };
    rows.into_iter().next().unwrap_or(Err(unknown))
}
