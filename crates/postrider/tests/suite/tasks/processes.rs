//! Several processes on one task store: this binary starts itself again as workers and keepers, and kills or stops them.

mod killed;
mod stopped;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider::config::MessagingConfig;
use postrider::task::{Post, TaskMode, TaskRoutes};
use postrider::tasks::Tasks;
use postrider::{Deadline, Endpoint, MessagingProvider, MessagingService, QueueName, RetryStrategy, TaskStorage};
use postrider_conformance::processes::WorkerProcess;
use tempfile::TempDir;

use crate::server::{postgres_client, server_url};

/// Environment variables for a process.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const STATE: &str = "POSTRIDER_TEST_STATE";
const QUEUE: &str = "POSTRIDER_TEST_QUEUE";
const NAME: &str = "POSTRIDER_TEST_NAME";
const JOURNAL: &str = "POSTRIDER_TEST_JOURNAL";

/// Time limit of an expected event.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Long enough that a busy machine loses no lease, short enough that tasks of killed workers come back soon.
const LEASE: Duration = Duration::from_secs(2);

pub(crate) type System = Tasks<TaskStorage, MessagingProvider>;

/// How tasks reach workers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Queue {
    /// Workers poll.
    None,
    /// By queues in the task store.
    Here,
    /// By queues on another server.
    At(String),
}

/// A store that several processes share.
#[derive(Debug)]
struct Common {
    /// The URL of the task store.
    state: String,
    queue: Queue,
    /// A unique name for schemas, queues and prefixes.
    name: String,
    /// For journals, and for the file of the task store.
    folder: TempDir,
}

impl Common {
    /// On a file.
    fn on_a_file(queue: Queue) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let state = format!("sqlite:{}", folder.path().join("tasks.db").display());
        Self { state, queue, name: a_name(), folder }
    }

    /// In a schema of the PostgreSQL server.
    fn on_postgres(queue: Queue) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { state: server_url("POSTRIDER_POSTGRES_URL"), queue, name: a_name(), folder }
    }

    fn journal(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.journal"))
    }

    fn start(&self, role: &str, number: usize) -> WorkerProcess {
        let queue = match &self.queue {
            Queue::None => "none",
            Queue::Here => "here",
            Queue::At(url) => url,
        };
        let journal = self.journal(number).display().to_string();
        let variables = [(ROLE, role), (STATE, &self.state), (QUEUE, queue), (NAME, &self.name), (JOURNAL, &journal)];
        WorkerProcess::start("tasks::processes::a_process", &variables).unwrap()
    }

    /// The test's own connection.
    async fn system(&self) -> System {
        system(&self.state, &self.queue, &self.name).await
    }

    fn dead_events(&self) -> QueueName {
        QueueName::new(format!("{}_dead", self.name)).unwrap()
    }

    /// Removes everything on servers.
    async fn remove(self) {
        if self.state.starts_with("postgres") {
            let client = postgres_client(&self.state).await;
            client.batch_execute(&format!("drop schema {} cascade", self.name)).await.unwrap();
        }
    }
}

fn a_name() -> String {
    format!("t{:012x}", rand::random::<u64>() >> 16)
}

async fn connect(url: &str, name: &str) -> MessagingProvider {
    let mut settings = MessagingConfig::default();
    settings.postgres.schema = name.to_owned();
    settings.postgres.pool_size = 4;
    let endpoint = Endpoint::new(url, &settings).unwrap();
    let end = Instant::now() + TIME_LIMIT;
    loop {
        match endpoint.connect().await {
            Ok(provider) => return provider,
            // A process may start while its broker is down.
            Err(error) if error.is_retryable() && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn system(state: &str, queue: &Queue, name: &str) -> System {
    let store = connect(state, name).await;
    let (mode, post, provider) = match queue {
        Queue::None => (TaskMode::Polling, Post::Here, store.clone()),
        Queue::Here => (TaskMode::Queue, Post::Here, store.clone()),
        Queue::At(url) => (TaskMode::Queue, Post::Outbox, connect(url, name).await),
    };
    let dead_events = Some(QueueName::new(format!("{name}_dead")).unwrap());
    let routes = TaskRoutes { mode, post, queue_prefix: format!("{name}_"), dead_events };
    Tasks::new(TaskStorage::new(&store, routes).await.unwrap(), provider)
}

/// The entry of the other processes. Does nothing in an ordinary run, without the variables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let told = |name: &str| std::env::var(name).unwrap();
    let queue = match told(QUEUE).as_str() {
        "none" => Queue::None,
        "here" => Queue::Here,
        url => Queue::At(url.to_owned()),
    };
    let system = system(&told(STATE), &queue, &told(NAME)).await;
    match role.as_str() {
        "keeper" => killed::keep(system).await,
        "worker" => killed::work(system, Path::new(&told(JOURNAL))).await,
        "stopped" => stopped::work(system, Path::new(&told(JOURNAL))).await,
        other => panic!("{other}"),
    }
}

fn quickly() -> RetryStrategy {
    RetryStrategy::constant(Duration::from_millis(5))
}

async fn close(system: &System) {
    // The store is closed with the process.
    let _ = system.provider().close(Deadline::default()).await;
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Waits until a condition holds, and fails after `limit`.
async fn until<F: Future<Output = bool>>(what: &str, limit: Duration, mut holds: impl FnMut() -> F) {
    let end = Instant::now() + limit;
    while !holds().await {
        assert!(Instant::now() < end, "within {limit:?} this did not become true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
