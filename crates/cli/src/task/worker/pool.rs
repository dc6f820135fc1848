//! Runs the task worker, and beside it a keeper, until a stop or until no task is due.

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

/// Upper bound of the tasks that one check enqueues or reads.
const BATCH: usize = 500;

/// Poll interval while a server has due tasks to enqueue.
const POLL: Duration = Duration::from_millis(50);

/// Lease of an outbox row that is read only to see whether there is one.
const OUTBOX_LEASE: Duration = Duration::from_millis(1);

pub(super) struct WorkerPool {
    pub(super) tasks: Tasks<TaskStorage, MessagingProvider>,
    pub(super) types: Vec<TaskType>,
    pub(super) options: TaskWorkerOptions,
    /// `None` if another process runs the chores.
    pub(super) keeper: Option<TaskKeeperOptions>,
    pub(super) job: Arc<Job>,
    pub(super) journal: Journal,
    pub(super) stop: Stop,
}

impl WorkerPool {
    /// Works until a stop is requested.
    pub(super) async fn work(&self) -> Result<(), Failure> {
        let keeper = self.start_keeper();
        let worked = self.run_worker(false).await;
        self.stop_keeper(keeper).await;
        worked.map(drop)
    }

    /// Works until nothing is due, neither for a worker nor for the keeper, if this process has one.
    pub(super) async fn drain(&self) -> Result<(), Failure> {
        loop {
            let keeper = self.start_keeper();
            let worked = self.run_worker(true).await;
            self.stop_keeper(keeper).await;
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
            // The keeper may have enqueued tasks after the worker's last claim.
            let report = self.run_worker(true).await?;
            if report.cause != TaskStopCause::NothingLeft || is_nothing(&report.counts) {
                return Ok(());
            }
        }
    }

    /// Whether the keeper still has work. The check enqueues due tasks.
    async fn has_more(&self) -> Result<bool, MessagingError> {
        let store = self.tasks.client().store();
        let routes = store.routes();
        if routes.mode == TaskMode::Queue && store.enqueue_due(BATCH, Deadline::default()).await?.count > 0 {
            return Ok(true);
        }
        // The lease ends at once, and the next keeper sends the row.
        if routes.post == Post::Outbox
            && !store.take_outbox(1, OUTBOX_LEASE, Deadline::default()).await?.rows.is_empty()
        {
            return Ok(true);
        }
        let are_lost = !store.lost_leases(1, Deadline::default()).await?.is_empty();
        Ok(are_lost || !store.due_schedules(1, Deadline::default()).await?.is_empty())
    }

    /// Whether a server still has due tasks to enqueue. Never true where workers claim tasks directly.
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

    /// Waits for a server's chores, or for a stop.
    async fn pause(&self) {
        let shutdown = self.stop.shutdown();
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
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
            self.stop.fail(Failure::failed(format!("the worker stopped: {}", report.cause)));
        }
        Ok(report)
    }

    /// Starts the keeper, if this process has one.
    fn start_keeper(&self) -> Option<RunningKeeper> {
        let keeper = self.tasks.keeper(self.keeper.clone()?);
        // A separate shutdown: the keeper still sends what the last commands put into the outbox.
        let (shutdown, stop) = (Shutdown::new(), self.stop.clone());
        let (requested, running) = (shutdown.clone(), tokio::spawn(keeper.run(shutdown.clone())));
        // A separate task, because the worker does not wait for the keeper.
        let watched = tokio::spawn(async move {
            let why = match running.await {
                Ok(Ok(())) if requested.is_requested() => return,
                Ok(Ok(())) => "the store was closed".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic.to_string(),
            };
            stop.fail(Failure::failed(format!("the keeper stopped: {why}")));
        });
        Some(RunningKeeper { shutdown, watched })
    }

    async fn stop_keeper(&self, keeper: Option<RunningKeeper>) {
        let Some(RunningKeeper { shutdown, watched }) = keeper else { return };
        shutdown.request();
        let stop = self.stop.shutdown();
        tokio::select! {
            _ = watched => {}
            () = stop.requested_at_once() => {}
        }
    }
}

struct RunningKeeper {
    shutdown: Shutdown,
    watched: JoinHandle<()>,
}

fn is_nothing(counts: &TaskCounts) -> bool {
    *counts == TaskCounts::default()
}
