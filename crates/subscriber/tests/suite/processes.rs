//! Several processes on one file: this binary starts itself again as subscribers, and kills and stops them.

mod idle;
mod killed;
mod stopped;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider_conformance::checker::{CheckOptions, Verdict, check};
use postrider_conformance::history::{Event, History, merge};
use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::recorded::Recorded;
use postrider_core::{MessagingService, QueueAdmin};
use postrider_sqlite::SqliteProvider;

use crate::fixture::{queue, soon};
use crate::place::{Place, connect};

/// What a worker process is told, by environment variables.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const FILE: &str = "POSTRIDER_TEST_FILE";
const JOURNAL: &str = "POSTRIDER_TEST_JOURNAL";
const NUMBER: &str = "POSTRIDER_TEST_NUMBER";

/// The processes of a test, on one file, and what all of them did.
struct Crew {
    place: Place,
    role: &'static str,
    /// How many were started.
    started: u32,
    history: History,
    /// The test's own part in it.
    own: Recorded<SqliteProvider>,
}

impl Crew {
    async fn new(role: &'static str) -> Self {
        // What is tried is what becomes of processes, so the disk's own moods are left out where they can be.
        let place = Place::in_memory();
        let history = History::new();
        let own = Recorded::new(place.connect().await, history.clone(), 0);
        own.ensure_queue(&queue(), soon()).await.unwrap();
        Self { place, role, started: 0, history, own }
    }

    fn start(&mut self) -> (u32, WorkerProcess) {
        self.started += 1;
        let number = self.started.to_string();
        let (file, journal) = (self.place.file(), self.journal(self.started));
        let variables = [
            (ROLE, self.role.as_ref()),
            (FILE, file.as_os_str()),
            (JOURNAL, journal.as_os_str()),
            (NUMBER, number.as_ref()),
        ];
        (self.started, WorkerProcess::start("processes::worker", &variables).unwrap())
    }

    fn journal(&self, number: u32) -> PathBuf {
        self.place.path(&format!("{number}.journal"))
    }

    fn events_of(&self, number: u32) -> Vec<Event> {
        History::read_journal(&self.journal(number)).unwrap()
    }

    /// Breaks the store by SQL: a trigger that takes a guard away.
    fn sabotage(&self, trigger: &str) {
        let connection = postrider_sqlite::rusqlite::Connection::open(self.place.file()).unwrap();
        connection.execute_batch(trigger).unwrap();
    }

    async fn is_empty(&self) -> bool {
        self.own.queue_stats(&queue(), soon()).await.unwrap().message_count() == Some(0)
    }

    /// What the checker has to say of everything that the test and its processes did.
    async fn verdict(&self) -> Verdict {
        self.own.record_final(&[queue()], soon()).await.unwrap();
        let journals = (1..=self.started).map(|number| self.events_of(number));
        let events = merge(journals.chain([self.history.events()]));
        let mut options = CheckOptions::for_limits(&self.own.capabilities().limits);
        options.tolerance += self.history.lead();
        check(&events, &options)
    }
}

/// Waits for something that other processes do.
async fn until<F: Future<Output = bool>>(what: &str, patience: Duration, is_so: impl Fn() -> F) {
    let end = Instant::now() + patience;
    while !is_so().await {
        assert!(Instant::now() < end, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The worker's side. Started as a test by hand it does nothing.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (file, journal) = (path(FILE), path(JOURNAL));
    let number = std::env::var(NUMBER).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "busy" => killed::be_busy(recorded(&file, &journal, number).await).await,
            "hanging" => killed::hang(recorded(&file, &journal, number).await).await,
            "stopped outside" => stopped::stop_outside(recorded(&file, &journal, number).await, &journal).await,
            "stopped inside" => stopped::stop_inside(recorded(&file, &journal, number).await).await,
            "idle" => idle::be_idle(connect(&file).await, &journal).await,
            other => panic!("there is no role '{other}'"),
        }
    });
}

async fn recorded(file: &Path, journal: &Path, number: u32) -> Recorded<SqliteProvider> {
    Recorded::new(connect(file).await, History::journaled(journal).unwrap(), number)
}
