//! Tasks, in the database that the configuration names.

use std::time::Duration;

use postrider_core::task::*;
use postrider_core::*;
use postrider_tasks::Tasks;

use crate::config::Config;
use crate::context::{ContextError, SystemContext};
use crate::provider::MessagingProvider;

/// What keeps tasks: a database, or a server that has one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TaskStorage {
    /// In an SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteTasks),
    /// In a schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresTasks),
    /// Wherever a Postrider server keeps them.
    #[cfg(feature = "http")]
    Http(postrider_http::HttpTasks),
}

impl TaskStorage {
    /// The tasks in a provider's own store. Those of a server go its ways, whatever `routes` say.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(unused_variables, reason = "a server alone has its own routes")
    )]
    pub async fn new(provider: &MessagingProvider, routes: TaskRoutes) -> Result<Self, MessagingError> {
        match provider {
            #[cfg(feature = "sqlite")]
            MessagingProvider::Sqlite(provider) => {
                Ok(Self::Sqlite(postrider_sqlite::SqliteTasks::new(provider.clone(), routes)?))
            }
            #[cfg(feature = "postgres")]
            MessagingProvider::Postgres(provider) => {
                Ok(Self::Postgres(postrider_postgres::PostgresTasks::new(provider.clone(), routes)?))
            }
            #[cfg(feature = "http")]
            MessagingProvider::Http(provider) => {
                Ok(Self::Http(postrider_http::HttpTasks::open(provider.clone(), Deadline::default()).await?))
            }
            other => Err(MessagingError::invalid(
                "task store",
                format!("{} keeps no tasks; use SQLite or PostgreSQL, by [state] url", other.provider_name()),
            )),
        }
    }

    /// The tasks of a system whose messages go through `provider`.
    ///
    /// Where tasks and messages are in one database, a transition and its message commit together. Elsewhere the
    /// message is put into an outbox in the transition's transaction, and relayed from there.
    pub async fn open(config: &Config, provider: &MessagingProvider) -> Result<Self, ContextError> {
        if config.keeps_state_with_messages() && !matches!(provider, MessagingProvider::Custom(_)) {
            let routes = TaskRoutes { post: Post::Here, ..config.task_routes().clone() };
            return Ok(Self::new(provider, routes).await?);
        }
        let store = config.state_endpoint()?.connect().await?;
        Ok(Self::new(&store, TaskRoutes { post: Post::Outbox, ..config.task_routes().clone() }).await?)
    }

    /// The tasks of a system, without its queues where these are elsewhere: a broker that is away keeps nobody from
    /// making, reading and canceling tasks. Answers the connection that the tasks are reached by as well, for whoever
    /// closes it.
    pub async fn connect(config: &Config) -> Result<(Self, MessagingProvider), ContextError> {
        let (endpoint, post) = match config.keeps_state_with_messages() {
            true => (config.endpoint()?, Post::Here),
            false => (config.state_endpoint()?, Post::Outbox),
        };
        let provider = endpoint.connect().await?;
        let tasks = Self::new(&provider, TaskRoutes { post, ..config.task_routes().clone() }).await?;
        Ok((tasks, provider))
    }

    /// Whether somebody else does the chores of a keeper: a server does them for everybody.
    pub fn is_kept_elsewhere(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => false,
            #[cfg(feature = "http")]
            Self::Http(_) => true,
        }
    }
}

impl SystemContext {
    /// Opens the tasks that the configuration names.
    pub async fn tasks(&self) -> Result<Tasks<TaskStorage, crate::breaker::Guarded<MessagingProvider>>, ContextError> {
        let provider = (*self.messaging_provider).clone();
        Ok(Tasks::new(TaskStorage::open(&self.config, provider.inner()).await?, provider))
    }
}

/// Calls the same method on whichever store it is.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite($store) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($store) => $call,
            #[cfg(feature = "http")]
            Self::Http($store) => $call,
        }
    };
}

impl TaskStore for TaskStorage {
    fn store_name(&self) -> &'static str {
        each!(self, store => store.store_name())
    }

    fn routes(&self) -> &TaskRoutes {
        each!(self, store => store.routes())
    }

    fn max_payload_bytes(&self) -> usize {
        each!(self, store => store.max_payload_bytes())
    }

    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError> {
        each!(self, store => store.create(tasks, deadline).await)
    }

    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError> {
        each!(self, store => store.finish_and_claim(finished, claim, deadline).await)
    }

    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError> {
        each!(self, store => store.claim_by_id(ids, lease, worker, deadline).await)
    }

    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        each!(self, store => store.heartbeat(heartbeats, lease, deadline).await)
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        each!(self, store => store.standings(leases, deadline).await)
    }

    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        each!(self, store => store.lost_leases(limit, deadline).await)
    }

    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        each!(self, store => store.reap(lost, deadline).await)
    }

    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        each!(self, store => store.expire_overdue(limit, deadline).await)
    }

    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError> {
        each!(self, store => store.cancel(ids, deadline).await)
    }

    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        each!(self, store => store.run_now(ids, deadline).await)
    }

    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        each!(self, store => store.replay(ids, deadline).await)
    }

    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        each!(self, store => store.edit_payload(id, payload, deadline).await)
    }

    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        each!(self, store => store.revisions(id, deadline).await)
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        each!(self, store => store.get(id, deadline).await)
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        each!(self, store => store.attempts(id, deadline).await)
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        each!(self, store => store.list(query, deadline).await)
    }

    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError> {
        each!(self, store => store.enqueue_due(limit, deadline).await)
    }

    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        each!(self, store => store.stranded(grace, deadline).await)
    }

    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError> {
        each!(self, store => store.resend(task_type, limit, grace, deadline).await)
    }

    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError> {
        each!(self, store => store.take_outbox(limit, lease, deadline).await)
    }

    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, store => store.outbox_sent(rows, deadline).await)
    }

    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        each!(self, store => store.forget_finished(older_than, deadline).await)
    }

    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        each!(self, store => store.subscribe_tasks(notice, deadline).await)
    }
}

impl ScheduleStore for TaskStorage {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        each!(self, store => store.store_time(deadline).await)
    }

    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError> {
        each!(self, store => store.put_schedule(schedule, next_run_at, deadline).await)
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        each!(self, store => store.get_schedule(name, deadline).await)
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        each!(self, store => store.list_schedules(deadline).await)
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        each!(self, store => store.delete_schedule(name, deadline).await)
    }

    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError> {
        each!(self, store => store.set_schedule_paused(name, version, is_paused, next_run_at, deadline).await)
    }

    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        each!(self, store => store.due_schedules(limit, deadline).await)
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
        each!(self, store => store.fire_schedule(name, version, tasks, last_run_at, next_run_at, deadline).await)
    }

    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError> {
        each!(self, store => store.next_schedule_due(deadline).await)
    }
}
