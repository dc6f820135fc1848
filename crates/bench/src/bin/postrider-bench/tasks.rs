//! Tasks with an empty handler, from creation to SUCCEEDED, compared with claims and deletions of the bare driver.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider_bench::{Load, Measured, Rate, Workload};
use postrider_core::task::{NewTask, ScheduleStore, TaskMode, TaskRoutes, TaskStore};
use postrider_core::{Deadline, MessagingService, Provider};
use postrider_postgres::PostgresTasks;
use postrider_sqlite::{SqliteOptions, SqliteStore, SqliteTasks};
use postrider_tasks::{HandlerError, Shutdown, TaskContext, TaskKeeperOptions, Tasks};
use tokio::task::JoinSet;

use crate::Failure;
use crate::case::Case;
use crate::compare::Row;
use crate::raw::{self, RawServer};
use crate::server::{self, Server, Target};

const TYPE: &str = "nothing";

/// Number of callers that create tasks in batches.
const CREATORS: usize = 4;

/// The store of the tasks and how they are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskCase {
    SqlitePolling,
    SqliteQueue,
    PostgresPolling,
    PostgresQueue,
}

impl TaskCase {
    pub(crate) const ALL: [Self; 4] =
        [Self::SqlitePolling, Self::SqliteQueue, Self::PostgresPolling, Self::PostgresQueue];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SqlitePolling => "tasks-sqlite-polling",
            Self::SqliteQueue => "tasks-sqlite-queue",
            Self::PostgresPolling => "tasks-postgres-polling",
            Self::PostgresQueue => "tasks-postgres-queue",
        }
    }

    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::SqlitePolling => Some(Target::Rate(0.2)),
            Self::SqliteQueue => None,
            Self::PostgresPolling => Some(Target::RateOrSpeed { ratio: 0.25, per_second: 8000.0 }),
            Self::PostgresQueue => Some(Target::Rate(0.5)),
        }
    }

    /// Description of its baseline.
    pub(crate) fn baseline(self) -> &'static str {
        match self {
            Self::SqlitePolling | Self::PostgresPolling => {
                "claims and deletions of the driver, without concurrent inserts"
            }
            Self::SqliteQueue | Self::PostgresQueue => "the same in polling mode",
        }
    }

    /// The server that it needs.
    pub(crate) fn server(self) -> Option<Server> {
        match self {
            Self::SqlitePolling | Self::SqliteQueue => None,
            Self::PostgresPolling | Self::PostgresQueue => Some(Server::Postgres),
        }
    }

    /// Runs the baseline, then the tasks.
    pub(crate) async fn compare(self, load: &Load, folder: &Path) -> Result<Row, Failure> {
        let (elapsed, baseline) = match self {
            Self::SqlitePolling => {
                let raw = tokio::task::block_in_place(|| sqlite_drain(load, &folder.join("raw.db")))?;
                (on_sqlite(TaskMode::Polling, load, folder).await?, raw)
            }
            Self::SqliteQueue => {
                let polling = on_sqlite(TaskMode::Polling, load, folder).await?;
                (on_sqlite(TaskMode::Queue, load, folder).await?, polling)
            }
            Self::PostgresPolling => {
                let raw = raw::postgres::Raw::open(&Server::Postgres.url()?).await?;
                raw.send_batches(load.messages, load.batch, load.size).await?;
                let drained = raw.drain(load.messages, load.batch).await?;
                raw.remove().await?;
                (on_postgres(TaskMode::Polling, load).await?, drained)
            }
            Self::PostgresQueue => {
                let polling = on_postgres(TaskMode::Polling, load).await?;
                (on_postgres(TaskMode::Queue, load).await?, polling)
            }
        };
        let rate = Rate::new(Workload::Handle, load.messages, elapsed);
        let raw = load.messages as f64 / baseline.as_secs_f64();
        let ratio = rate.per_second / raw;
        let mut row = Row::new(Case::Tasks(self), Measured::Rate(rate));
        (row.ratio, row.raw_per_second, row.baseline) = (Some(ratio), Some(raw), Some(self.baseline()));
        Ok(row)
    }
}

fn sqlite_drain(load: &Load, path: &Path) -> Result<Duration, Failure> {
    let raw = raw::sqlite::Raw::open(path)?;
    raw.send(load.messages, load.batch, load.size)?;
    raw.drain(load.messages, load.batch)
}

fn routes(mode: TaskMode) -> TaskRoutes {
    TaskRoutes { mode, ..TaskRoutes::default() }
}

async fn on_sqlite(mode: TaskMode, load: &Load, folder: &Path) -> Result<Duration, Failure> {
    let path = folder.join(format!("{mode}.db"));
    let provider = SqliteStore::open(path, SqliteOptions::default()).await?.connect().await?;
    let tasks = Tasks::new(SqliteTasks::new(provider.clone(), routes(mode))?, provider.clone());
    let elapsed = run(tasks, mode, load).await?;
    provider.close(Deadline::default()).await?;
    Ok(elapsed)
}

async fn on_postgres(mode: TaskMode, load: &Load) -> Result<Duration, Failure> {
    let scratch = server::postgres::ScratchSchema::new(&Server::Postgres.url()?, server::Task::DrainAll);
    let provider = scratch.open().await?;
    let tasks = Tasks::new(PostgresTasks::new(provider.clone(), routes(mode))?, provider.clone());
    let elapsed = run(tasks, mode, load).await;
    provider.close(Deadline::default()).await?;
    scratch.remove().await?;
    elapsed
}

async fn nothing(_: TaskContext) -> Result<(), HandlerError> {
    Ok(())
}

/// Creates tasks while a worker runs them; returns the time until the last one succeeded.
async fn run<S, P>(tasks: Tasks<S, P>, mode: TaskMode, load: &Load) -> Result<Duration, Failure>
where
    S: TaskStore + ScheduleStore + Clone,
    P: Provider + Clone,
{
    let shutdown = Shutdown::new();
    let worker = tasks.worker().handler(TYPE, nothing).max_workers(load.batch * 2).build()?;
    let monitor = worker.monitor();
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    let keeper = (mode == TaskMode::Queue).then(|| {
        let keeper = tasks.keeper(TaskKeeperOptions::default());
        tokio::spawn(keeper.run(shutdown.clone()))
    });
    let start = Instant::now();
    let mut creators = JoinSet::new();
    for number in 0..CREATORS {
        let (client, load) = (tasks.client().clone(), load.clone());
        let count = load.messages / CREATORS + usize::from(number < load.messages % CREATORS);
        creators.spawn(async move {
            let payload = bytes::Bytes::from(vec![b'x'; load.size]);
            let mut left = count;
            while left > 0 {
                let count = left.min(load.batch);
                let new = (0..count).map(|_| NewTask::new(TYPE, payload.clone())).collect::<Result<_, _>>()?;
                for created in client.create_many(new, Deadline::default()).await? {
                    created?;
                }
                left -= count;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(created) = creators.join_next().await {
        created??;
    }
    while monitor.counts().succeeded < load.messages as u64 {
        if start.elapsed() > Duration::from_secs(600) {
            return Err(format!("only {} of {} tasks succeeded", monitor.counts().succeeded, load.messages).into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let elapsed = start.elapsed();
    shutdown.request();
    worker.await??;
    if let Some(keeper) = keeper {
        keeper.await??;
    }
    Ok(elapsed)
}
