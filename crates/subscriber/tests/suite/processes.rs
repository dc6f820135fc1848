//! Several processes on one file or one folder: this binary starts itself again as subscribers, and kills and stops
//! them.

mod idle;
mod killed;
mod stopped;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider_conformance::checker::{CheckOptions, Verdict, check};
use postrider_conformance::history::{Event, History, merge};
use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::recorded::Recorded;
use postrider_core::{MessagingService, QueueAdmin, SharedProvider};

use crate::fixture::{queue, soon};
use crate::test_store::{TestStore, connect, connect_to_spool};

/// Parameters of a worker process, in environment variables.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const STORE: &str = "POSTRIDER_TEST_STORE";
const JOURNAL: &str = "POSTRIDER_TEST_JOURNAL";
const NUMBER: &str = "POSTRIDER_TEST_NUMBER";

/// The store that the processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    /// A SQLite file.
    File,
    /// A folder of queues.
    Folder,
}

impl Store {
    /// The kind of the store at a path: a file has an extension.
    fn at(path: &Path) -> Self {
        if path.extension().is_some() { Self::File } else { Self::Folder }
    }

    fn path(self, test_store: &TestStore) -> PathBuf {
        match self {
            Self::File => test_store.file(),
            Self::Folder => test_store.spool(),
        }
    }
}

/// Opens the store at a path.
async fn open(path: &Path) -> SharedProvider {
    match Store::at(path) {
        Store::File => SharedProvider::new(connect(path).await),
        Store::Folder => SharedProvider::new(connect_to_spool(path).await),
    }
}

/// The worker processes of a test on one store, and the history of all of them.
struct WorkerProcesses {
    test_store: TestStore,
    store: Store,
    role: &'static str,
    /// Number of started processes.
    started: u32,
    history: History,
    /// The provider of the test itself, recorded too.
    own: Recorded<SharedProvider>,
}

impl WorkerProcesses {
    /// On a file.
    async fn new(role: &'static str) -> Self {
        Self::on(Store::File, role).await
    }

    async fn on(store: Store, role: &'static str) -> Self {
        // In memory where possible: the test judges processes, not disks.
        let test_store = TestStore::in_memory();
        let history = History::new();
        let own = Recorded::new(open(&store.path(&test_store)).await, history.clone(), 0);
        own.ensure_queue(&queue(), soon()).await.unwrap();
        Self { test_store, store, role, started: 0, history, own }
    }

    fn start(&mut self) -> (u32, WorkerProcess) {
        self.started += 1;
        let number = self.started.to_string();
        let (store, journal) = (self.store.path(&self.test_store), self.journal(self.started));
        let variables = [
            (ROLE, self.role.as_ref()),
            (STORE, store.as_os_str()),
            (JOURNAL, journal.as_os_str()),
            (NUMBER, number.as_ref()),
        ];
        (self.started, WorkerProcess::start("processes::worker", &variables).unwrap())
    }

    fn journal(&self, number: u32) -> PathBuf {
        self.test_store.path(&format!("{number}.journal"))
    }

    fn events_of(&self, number: u32) -> Vec<Event> {
        History::read_journal(&self.journal(number)).unwrap()
    }

    /// Breaks the store by a trigger that removes a guard.
    fn sabotage(&self, trigger: &str) {
        let connection = postrider_sqlite::rusqlite::Connection::open(self.test_store.file()).unwrap();
        connection.execute_batch(trigger).unwrap();
    }

    async fn is_empty(&self) -> bool {
        self.own.queue_stats(&queue(), soon()).await.unwrap().message_count() == Some(0)
    }

    /// The checker's verdict on the history of the test and its processes.
    async fn verdict(&self) -> Verdict {
        self.own.record_final(&[queue()], soon()).await.unwrap();
        let journals = (1..=self.started).map(|number| self.events_of(number));
        let events = merge(journals.chain([self.history.events()]));
        let mut options = CheckOptions::for_limits(&self.own.capabilities().limits);
        options.tolerance += self.history.lead();
        check(&events, &options)
    }
}

/// Waits until other processes have caused the condition.
async fn until<F: Future<Output = bool>>(what: &str, limit: Duration, is_true: impl Fn() -> F) {
    let end = Instant::now() + limit;
    while !is_true().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a worker process. Does nothing when it runs as an ordinary test.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (store, journal) = (path(STORE), path(JOURNAL));
    let number = std::env::var(NUMBER).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "busy" => killed::be_busy(recorded(&store, &journal, number).await).await,
            "hanging" => killed::hang(recorded(&store, &journal, number).await).await,
            "stopped outside" => stopped::stop_outside(recorded(&store, &journal, number).await, &journal).await,
            "stopped inside" => stopped::stop_inside(recorded(&store, &journal, number).await).await,
            "idle" => idle::be_idle(open(&store).await, &journal).await,
            other => panic!("there is no role '{other}'"),
        }
    });
}

async fn recorded(store: &Path, journal: &Path, number: u32) -> Recorded<SharedProvider> {
    Recorded::new(open(store).await, History::journaled(journal).unwrap(), number)
}
