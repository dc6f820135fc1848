//! The task store contract: each operation, and the function that does it.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{
    ClaimAnswer, ClaimTasks, Created, Enqueued, Finish, FinishedAndClaimed, Heartbeat, LostLease, NewSchedule, NewTask,
    OutboxBatch, PayloadRevision, Schedule, ScheduleStore, Stranded, Task, TaskAttempt, TaskCount, TaskId, TaskLease,
    TaskNotice, TaskPage, TaskQuery, TaskRoutes, TaskStanding, TaskState, TaskStore, TaskType, check_lease,
};
use postrider_core::{Bytes, Deadline, MessagingError, RowResults, Timestamp, WakeUps, async_trait};
use postrider_provider::Undone;

use super::change::Change;
use super::claim::CLAIM;
use super::create::CREATE;
use super::finish::EndedBy;
use super::schedules::Firing;
use super::{PostgresTasks, Tasks};
use crate::PROVIDER;

impl PostgresTasks {
    /// Runs work independently of its caller, which may stop waiting at any time.
    async fn call<T, F>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl FnOnce(Arc<Tasks>) -> F,
    ) -> Result<T, MessagingError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Undone>> + Send + 'static,
    {
        // Boxed: several frames would each reserve space for it.
        self.provider.call(operation, deadline, Box::pin(work(self.tasks.clone()))).await
    }

    async fn change(
        &self,
        change: Change,
        ids: &[TaskId],
        deadline: Deadline,
    ) -> Result<RowResults<Option<TaskState>>, MessagingError> {
        let ids = ids.to_vec();
        self.call(change.operation(), deadline, |tasks| async move { tasks.change(change, &ids, deadline).await }).await
    }
}

#[async_trait]
impl TaskStore for PostgresTasks {
    fn store_name(&self) -> &'static str {
        PROVIDER
    }

    fn routes(&self) -> &TaskRoutes {
        &self.tasks.routes
    }

    fn max_payload_bytes(&self) -> usize {
        self.tasks.max_payload_bytes()
    }

    async fn create(&self, new: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError> {
        self.call(CREATE, deadline, |tasks| async move { tasks.create(&new, deadline).await }).await
    }

    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError> {
        claim.as_ref().map_or(Ok(()), ClaimTasks::check)?;
        self.tasks.check_ends(&finished, EndedBy::Holder)?;
        let operation = if finished.is_empty() { CLAIM } else { "finish tasks" };
        let both = self.call(operation, deadline, |tasks| tasks.finish_and_claim(finished, claim, deadline)).await?;
        Ok(both.into_answer())
    }

    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError> {
        check_lease(lease)?;
        let (ids, worker) = (ids.to_vec(), worker.to_owned());
        let answers = self.call(CLAIM, deadline, |tasks| tasks.claim_by_id(ids, lease, worker, deadline)).await?;
        Ok(answers.into_answer())
    }

    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        check_lease(lease)?;
        let beat = |tasks: Arc<Tasks>| async move { tasks.heartbeat(&heartbeats, lease, deadline).await };
        self.call("renew leases", deadline, beat).await
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        let leases = leases.to_vec();
        self.call("look at leases", deadline, |tasks| async move { tasks.standings(&leases).await }).await
    }

    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        let look = |tasks: Arc<Tasks>| async move { tasks.lost_leases(limit, deadline).await };
        self.call("look for lost leases", deadline, look).await
    }

    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        self.tasks.check_ends(&lost, EndedBy::Reaper)?;
        self.call("reap tasks", deadline, |tasks| async move { tasks.reap(&lost, deadline).await }).await
    }

    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        let expire = |tasks: Arc<Tasks>| async move { tasks.expire_overdue(limit, deadline).await };
        self.call("end overdue tasks", deadline, expire).await
    }

    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError> {
        let left = self.change(Change::Cancel, ids, deadline).await?;
        Ok(left.into_iter().map(|row| row.map(|state| state.unwrap_or(TaskState::Pending))).collect())
    }

    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        Ok(self.change(Change::RunNow, ids, deadline).await?.into_iter().map(|row| row.map(drop)).collect())
    }

    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        Ok(self.change(Change::Replay, ids, deadline).await?.into_iter().map(|row| row.map(drop)).collect())
    }

    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        let edit = |tasks: Arc<Tasks>| async move { tasks.edit_payload(id, &payload, deadline).await };
        self.call("edit a task", deadline, edit).await
    }

    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        self.call("read revisions", deadline, |tasks| async move { tasks.revisions(id, deadline).await }).await
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        self.call("read a task", deadline, |tasks| async move { tasks.get(id, deadline).await }).await
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        self.call("read attempts", deadline, |tasks| async move { tasks.attempts(id, deadline).await }).await
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        query.check()?;
        let query = query.clone();
        self.call("list tasks", deadline, |tasks| async move { tasks.list(&query, deadline).await }).await
    }

    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError> {
        self.call("count tasks", deadline, |tasks| async move { tasks.counts(deadline).await }).await
    }

    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError> {
        let send = |tasks: Arc<Tasks>| async move { tasks.enqueue_due(limit, deadline).await };
        self.call("enqueue tasks", deadline, send).await
    }

    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        let look = |tasks: Arc<Tasks>| async move { tasks.stranded(grace, deadline).await };
        self.call("look for stranded tasks", deadline, look).await
    }

    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError> {
        let task_type = task_type.clone();
        let send = |tasks: Arc<Tasks>| async move { tasks.resend(&task_type, limit, grace, deadline).await };
        self.call("send tasks again", deadline, send).await
    }

    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError> {
        check_lease(lease)?;
        let take = |tasks: Arc<Tasks>| async move { tasks.take_outbox(limit, lease, deadline).await };
        self.call("take messages of the outbox", deadline, take).await
    }

    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError> {
        let rows = rows.to_vec();
        self.call("empty the outbox", deadline, |tasks| async move { tasks.outbox_sent(&rows, deadline).await }).await
    }

    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        let forget = |tasks: Arc<Tasks>| async move { tasks.forget_finished(older_than, deadline).await };
        self.call("forget tasks", deadline, forget).await
    }

    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        // Refused on a closed connection, as every call is.
        self.call("subscribe", deadline, |_| async { Ok(()) }).await?;
        self.hints(&notice)
    }
}

#[async_trait]
impl ScheduleStore for PostgresTasks {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        self.call("read the clock", deadline, |tasks| async move { tasks.store_time(deadline).await }).await
    }

    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError> {
        let schedule = schedule.clone();
        let put = |tasks: Arc<Tasks>| async move { tasks.put_schedule(&schedule, next_run_at, deadline).await };
        self.call("put a schedule", deadline, put).await
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        let name = name.to_owned();
        self.call("read a schedule", deadline, |tasks| async move { tasks.get_schedule(&name, deadline).await }).await
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        self.call("list schedules", deadline, |tasks| async move { tasks.list_schedules(deadline).await }).await
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        let name = name.to_owned();
        let delete = |tasks: Arc<Tasks>| async move { tasks.delete_schedule(&name, deadline).await };
        self.call("delete a schedule", deadline, delete).await
    }

    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError> {
        let name = name.to_owned();
        let set = |tasks: Arc<Tasks>| async move {
            tasks.set_schedule_paused(&name, version, is_paused, next_run_at, deadline).await
        };
        self.call(if is_paused { "pause a schedule" } else { "resume a schedule" }, deadline, set).await
    }

    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        let look = |tasks: Arc<Tasks>| async move { tasks.due_schedules(limit, deadline).await };
        self.call("look for due schedules", deadline, look).await
    }

    async fn fire_schedule(
        &self,
        name: &str,
        version: i64,
        new: Vec<NewTask>,
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError> {
        let firing = Firing { name: name.to_owned(), version, last_run_at, next_run_at };
        let fire = |tasks: Arc<Tasks>| async move { tasks.fire_schedule(&firing, &new, deadline).await };
        self.call("fire a schedule", deadline, fire).await
    }

    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError> {
        let look = |tasks: Arc<Tasks>| async move { tasks.next_schedule_due(deadline).await };
        self.call("look for due schedules", deadline, look).await
    }
}
