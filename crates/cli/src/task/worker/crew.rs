//! The worker and the keeper beside it, until somebody wants them to stop or nothing is left.

use std::sync::Arc;
use std::time::Duration;

use postrider::task::{Post, ScheduleStore, TaskFilter, TaskMode, TaskQuery};
use postrider::tasks::{
    Shutdown, TaskCounts, TaskKeeperOptions, TaskStopCause, TaskStopReport, TaskWorkerOptions, Tasks,
};
use postrider::{Deadline, MessagingError, MessagingProvider, TaskState, TaskStorage, TaskStore, TaskType, Timestamp};
use tokio::task::JoinHandle;

use super::job::Job;
use super::journal::Journal;
use crate::command::Stop;
use crate::failure::Failure;

/// So many tasks are sent on their way at a time when it is looked whether there are some.
const BATCH: usize = 500;

/// How soon it is looked again whether a server has sent due tasks on their way.
const CHORES: Duration = Duration::from_millis(50);

/// How long a message of the outbox is held that was only looked at.
const GLANCE: Duration = Duration::from_millis(1);

/// Who works, on what, and how.
pub(super) struct Crew {
    pub(super) tasks: Tasks<TaskStorage, MessagingProvider>,
    pub(super) types: Vec<TaskType>,
    pub(super) options: TaskWorkerOptions,
    /// `None` when somebody else keeps the tasks.
    pub(super) keeper: Option<TaskKeeperOptions>,
    pub(super) job: Arc<Job>,
    pub(super) journal: Journal,
    pub(super) stop: Stop,
}

impl Crew {
    /// Works until a stop is asked for.
    pub(super) async fn work(&self) -> Result<(), Failure> {
        let keeping = self.keep();
        let worked = self.run_worker(false).await;
        self.end(keeping).await;
        worked.map(drop)
    }

    /// Works until nothing is due: neither for a worker nor, where this process keeps the tasks, for the keeper.
    pub(super) async fn drain(&self) -> Result<(), Failure> {
        loop {
            let keeping = self.keep();
            let worked = self.run_worker(true).await;
            self.end(keeping).await;
            if worked?.cause != TaskStopCause::NothingLeft {
                return Ok(());
            }
            if self.keeper.is_none() {
                if self.server_has_more().await? {
                    self.pause().await;
                    continue;
                }
                return Ok(());
            }
            if self.has_more().await? {
                continue;
            }
            // What the keeper sent on its way after the worker had looked for the last time.
            let report = self.run_worker(true).await?;
            if report.cause != TaskStopCause::NothingLeft || is_nothing(&report.counts) {
                return Ok(());
            }
        }
    }

    /// Whether the keeper still has something to do. Tasks that are due are sent on their way by that.
    async fn has_more(&self) -> Result<bool, MessagingError> {
        let store = self.tasks.client().store();
        let routes = store.routes();
        if routes.mode == TaskMode::Queue && store.enqueue_due(BATCH, Deadline::default()).await?.count > 0 {
            return Ok(true);
        }
        // Taken and let go: the next keeper sends it.
        if routes.post == Post::Outbox && !store.take_outbox(1, GLANCE, Deadline::default()).await?.rows.is_empty() {
            return Ok(true);
        }
        let are_lost = !store.lost_leases(1, Deadline::default()).await?.is_empty();
        Ok(are_lost || !store.due_schedules(1, Deadline::default()).await?.is_empty())
    }

    /// Whether a server is yet to send due tasks on their way. Where workers claim them, there is nothing to be sent.
    async fn server_has_more(&self) -> Result<bool, MessagingError> {
        let store = self.tasks.client().store();
        if !store.is_kept_elsewhere() || store.routes().mode != TaskMode::Queue {
            return Ok(false);
        }
        let filter =
            TaskFilter { states: vec![TaskState::Pending], types: self.types.clone(), ..TaskFilter::default() };
        let query = TaskQuery { filter, limit: BATCH, after: None };
        let waiting = store.list(&query, Deadline::default()).await?.tasks;
        let now = Timestamp::now();
        Ok(waiting.iter().any(|task| task.scheduled_for <= now && !task.is_blocked))
    }

    /// Gives a server time for its chores, unless a stop is asked for.
    async fn pause(&self) {
        let shutdown = self.stop.shutdown();
        tokio::select! {
            () = tokio::time::sleep(CHORES) => {}
            () = shutdown.requested() => {}
        }
    }

    async fn run_worker(&self, stop_when_empty: bool) -> Result<TaskStopReport, Failure> {
        let mut builder = self.tasks.worker();
        for task_type in &self.types {
            let job = self.job.clone();
            builder = builder.handler(task_type.as_str(), move |task| {
                let job = job.clone();
                async move { job.handle(task).await }
            });
        }
        let options = TaskWorkerOptions { stop_when_empty, ..self.options.clone() };
        let worker = builder.options(options).observer(self.journal.clone()).build()?;
        let report = worker.run(self.stop.shutdown()).await?;
        if !matches!(report.cause, TaskStopCause::Requested | TaskStopCause::NothingLeft) {
            self.stop.fail(Failure::failed(format!("the worker cannot go on: {}", report.cause)));
        }
        Ok(report)
    }

    /// Starts a keeper, where this process is to have one.
    fn keep(&self) -> Option<Keeping> {
        let keeper = self.tasks.keeper(self.keeper.clone()?);
        // Its own: what the last commands leave to be sent is still sent.
        let (shutdown, stop) = (Shutdown::new(), self.stop.clone());
        let (asked, keeping) = (shutdown.clone(), tokio::spawn(keeper.run(shutdown.clone())));
        // A task of its own, because the worker does not wait for it.
        let watched = tokio::spawn(async move {
            let why = match keeping.await {
                Ok(Ok(())) if asked.is_requested() => return,
                Ok(Ok(())) => "the store was closed".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic.to_string(),
            };
            stop.fail(Failure::failed(format!("the keeper cannot go on: {why}")));
        });
        Some(Keeping { shutdown, watched })
    }

    async fn end(&self, keeping: Option<Keeping>) {
        let Some(Keeping { shutdown, watched }) = keeping else { return };
        shutdown.request();
        let asked = self.stop.shutdown();
        tokio::select! {
            _ = watched => {}
            () = asked.requested_at_once() => {}
        }
    }
}

/// A keeper that runs.
struct Keeping {
    shutdown: Shutdown,
    watched: JoinHandle<()>,
}

fn is_nothing(counts: &TaskCounts) -> bool {
    *counts == TaskCounts::default()
}
