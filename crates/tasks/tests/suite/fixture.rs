//! A task store for one test, and the workers and keepers on it.

use std::path::PathBuf;
use std::sync::Arc;

use postrider_core::memory::MemoryStore;
use postrider_core::task::{Created, NewTask, Post, Task, TaskId, TaskMode, TaskRoutes, TaskState};
use postrider_core::{QueueName, SharedProvider};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore, SqliteTasks};
use postrider_tasks::{Shutdown, TaskKeeperOptions, TaskStopReport, TaskWorker, Tasks};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{TIME_LIMIT, soon, until};

/// How tasks reach workers in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Polling,
    /// Over queues of the same file.
    Here,
    /// Over queues in memory, by the outbox.
    Outbox,
}

impl Route {
    pub(crate) const ALL: [Self; 3] = [Self::Polling, Self::Here, Self::Outbox];
}

pub(crate) type System = Tasks<SqliteTasks, SharedProvider>;

/// A file, in main memory if the system has a file system there, and the queues of the tasks.
pub(crate) struct Fixture {
    folder: TempDir,
    pub(crate) route: Route,
    memory: MemoryStore,
}

impl Fixture {
    pub(crate) fn new(route: Route) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self { folder, route, memory: MemoryStore::new() }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("tasks.db")
    }

    pub(crate) async fn connect(&self) -> SqliteProvider {
        self.connect_with(SqliteOptions::default()).await
    }

    async fn connect_with(&self, options: SqliteOptions) -> SqliteProvider {
        let store = SqliteStore::open(self.file(), options).await.unwrap();
        store.connect().await.unwrap()
    }

    pub(crate) fn routes(&self) -> TaskRoutes {
        TaskRoutes {
            mode: if self.route == Route::Polling { TaskMode::Polling } else { TaskMode::Queue },
            post: if self.route == Route::Outbox { Post::Outbox } else { Post::Here },
            dead_events: Some(dead_events()),
            ..TaskRoutes::default()
        }
    }

    /// Another connection, as if from another process.
    pub(crate) async fn system(&self) -> System {
        self.system_with(SqliteOptions::default()).await
    }

    pub(crate) async fn system_with(&self, options: SqliteOptions) -> System {
        let file = self.connect_with(options).await;
        let queues = match self.route {
            Route::Polling | Route::Here => SharedProvider::new(file.clone()),
            Route::Outbox => SharedProvider::new(self.memory.open()),
        };
        Tasks::new(SqliteTasks::new(file, self.routes()).unwrap(), queues)
    }

    /// The provider of the queues of the tasks.
    pub(crate) async fn queues(&self) -> SharedProvider {
        match self.route {
            Route::Polling | Route::Here => SharedProvider::new(self.connect().await),
            Route::Outbox => SharedProvider::new(self.memory.open()),
        }
    }
}

pub(crate) fn dead_events() -> QueueName {
    QueueName::new("dead_tasks").unwrap()
}

/// A worker and a keeper that run until they are stopped.
pub(crate) struct Running {
    shutdown: Shutdown,
    worker: JoinHandle<TaskStopReport>,
    keeper: JoinHandle<()>,
}

impl Running {
    /// Starts a worker, and a keeper with short intervals.
    pub(crate) fn start(system: &System, worker: TaskWorker<SqliteTasks, SharedProvider>) -> Self {
        let shutdown = Shutdown::new();
        let (stop, keeper) = (shutdown.clone(), start_keeper(system, &shutdown));
        let worker = tokio::spawn(async move { worker.run(stop).await.unwrap() });
        Self { shutdown, worker, keeper }
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    pub(crate) async fn stop(self) -> TaskStopReport {
        // A second request would stop it at once.
        if !self.shutdown.is_requested() {
            self.shutdown.request();
        }
        self.keeper.await.unwrap();
        self.worker.await.unwrap()
    }
}

pub(crate) fn start_keeper(system: &System, shutdown: &Shutdown) -> JoinHandle<()> {
    let (keeper, stop) = (system.keeper(keeper_options()), shutdown.clone());
    tokio::spawn(async move { keeper.run(stop).await.unwrap() })
}

pub(crate) fn keeper_options() -> TaskKeeperOptions {
    TaskKeeperOptions {
        reap_interval: std::time::Duration::from_millis(50),
        grace: std::time::Duration::from_secs(1),
        ..TaskKeeperOptions::default()
    }
}

pub(crate) async fn create(system: &System, task: NewTask) -> Created {
    system.client().create(task, soon()).await.unwrap()
}

pub(crate) async fn get(system: &System, id: TaskId) -> Task {
    system.client().get(id, soon()).await.unwrap()
}

pub(crate) async fn state(system: &System, id: TaskId) -> TaskState {
    get(system, id).await.info.state
}

/// The task, once it has ended.
pub(crate) async fn ended(system: &System, id: TaskId) -> Task {
    until("the task has ended", TIME_LIMIT, || async { state(system, id).await.is_terminal() }).await;
    get(system, id).await
}

/// Values that handlers record.
pub(crate) type Notes<T> = Arc<std::sync::Mutex<Vec<T>>>;
