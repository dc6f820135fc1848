//! The calls of a store whose schedules are broken.

use std::time::Duration;

use postrider_core::task::{NewSchedule, NewTask, Schedule, ScheduleStore, TaskId, TaskStore};
use postrider_core::{Deadline, MessagingError, Timestamp, async_trait};

use super::{BrokenTasks, TaskFault};

#[async_trait]
impl<S: TaskStore + ScheduleStore> ScheduleStore for BrokenTasks<S> {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        self.inner.store_time(deadline).await
    }

    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError> {
        let mut schedule = schedule.clone();
        if self.has(TaskFault::ForgetsTemplates) {
            schedule.task.tags.clear();
        }
        self.inner.put_schedule(&schedule, next_run_at, deadline).await
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        self.inner.get_schedule(name, deadline).await
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        self.inner.list_schedules(deadline).await
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        if self.has(TaskFault::DeletesNothing) {
            return Ok(self.inner.get_schedule(name, deadline).await?.is_some());
        }
        self.inner.delete_schedule(name, deadline).await
    }

    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError> {
        self.inner.set_schedule_paused(name, version, is_paused, next_run_at, deadline).await
    }

    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        if self.has(TaskFault::TellsThePaused) {
            let now = self.inner.store_time(deadline).await?;
            let mut schedules = self.inner.list_schedules(deadline).await?;
            schedules.retain(|schedule| schedule.next_run_at.is_some_and(|next| next <= now));
            return Ok(schedules);
        }
        self.inner.due_schedules(limit, deadline).await
    }

    async fn fire_schedule(
        &self,
        name: &str,
        version: i64,
        tasks: Vec<NewTask>,
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError> {
        let (mut version, mut next_run_at) = (version, next_run_at);
        if let Some(known) = self.inner.get_schedule(name, deadline).await? {
            match self.fault {
                Some(TaskFault::FiresEveryVersion) => version = known.version,
                Some(TaskFault::FiresInPlace) => next_run_at = known.next_run_at,
                Some(TaskFault::FiresThePaused) if known.paused_at.is_some() => {
                    self.inner.set_schedule_paused(name, version, false, known.next_run_at, deadline).await?;
                    version = self.inner.get_schedule(name, deadline).await?.map_or(version, |it| it.version);
                }
                _ => {}
            }
        }
        self.inner.fire_schedule(name, version, tasks, last_run_at, next_run_at, deadline).await
    }

    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError> {
        self.inner.next_schedule_due(deadline).await
    }
}
