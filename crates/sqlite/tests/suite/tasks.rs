//! Tasks and schedules on a file.

mod files;
mod in_transaction;
mod large;

use std::sync::Arc;
use std::time::Duration;

use postrider_conformance::{TaskHarness, exercise_tasks};
use postrider_core::task::{
    ClaimTasks, ClaimedTask, Finish, NewTask, TaskId, TaskOutcome, TaskRoutes, TaskStore, TaskType,
};
use postrider_core::{ManualClock, MessagingError, MessagingService};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore, SqliteTasks};

use crate::{TestStore, connect, soon};

/// Every worker opens the file separately, as other processes do; all of them share one clock.
pub(crate) struct ManualClockHarness {
    test_store: TestStore,
    clock: ManualClock,
}

impl ManualClockHarness {
    pub(crate) fn new() -> Self {
        Self { test_store: TestStore::in_memory(), clock: ManualClock::default() }
    }
}

impl TaskHarness for ManualClockHarness {
    type Store = SqliteTasks;
    type Queue = SqliteProvider;

    async fn open(&self, routes: TaskRoutes) -> Result<SqliteTasks, MessagingError> {
        SqliteTasks::new(self.queue().await?, routes)
    }

    async fn queue(&self) -> Result<SqliteProvider, MessagingError> {
        let options = SqliteOptions { clock: Arc::new(self.clock.clone()), ..SqliteOptions::default() };
        SqliteStore::open(self.test_store.file(), options).await?.connect().await
    }

    async fn elapse(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_suite_passes() {
    let findings = exercise_tasks(&ManualClockHarness::new()).await;
    assert!(!findings.is_empty());
    let faults: Vec<String> = findings.iter().filter(|it| it.fault.is_some()).map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

impl TestStore {
    /// The tasks in the file, on a connection of their own.
    async fn tasks(&self) -> SqliteTasks {
        SqliteTasks::new(connect(&self.file()).await, TaskRoutes::default()).unwrap()
    }
}

fn mail() -> TaskType {
    TaskType::new("mail").unwrap()
}

fn task(payload: &str) -> NewTask {
    NewTask::of(mail(), payload.to_owned())
}

async fn create(tasks: &SqliteTasks, task: NewTask) -> TaskId {
    let created = tasks.create(vec![task], soon()).await.unwrap().remove(0).unwrap();
    assert!(created.is_new);
    created.id
}

async fn claim(tasks: &SqliteTasks, max: usize) -> Vec<ClaimedTask> {
    let lease = Duration::from_secs(60);
    let claim = ClaimTasks { types: vec![mail()], max, lease, worker: "test".to_owned() };
    tasks.claim(claim, soon()).await.unwrap().claimed
}

fn succeeded(task: &ClaimedTask) -> Finish {
    Finish { lease: task.lease, outcome: TaskOutcome::Succeeded { result: None } }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_of_one_file_claim_no_task_twice() {
    let test_store = TestStore::new();
    let stores = [test_store.tasks().await, test_store.tasks().await];
    let ids: Vec<TaskId> = {
        let rows = stores[0].create((0..1000).map(|_| task("x")).collect(), soon()).await.unwrap();
        rows.into_iter().map(|row| row.unwrap().id).collect()
    };
    let workers = stores.clone().map(|store| {
        tokio::spawn(async move {
            let mut done = Vec::new();
            loop {
                let claimed = claim(&store, 7).await;
                if claimed.is_empty() {
                    return done;
                }
                let standings = store.finish(claimed.iter().map(succeeded).collect(), soon()).await.unwrap();
                assert!(standings.iter().all(|it| *it == postrider_core::task::TaskStanding::Held), "{standings:?}");
                done.extend(claimed.into_iter().map(|task| task.lease.id));
            }
        })
    });
    let mut done = Vec::new();
    for worker in workers {
        done.extend(worker.await.unwrap());
    }
    done.sort();
    let mut ids = ids;
    ids.sort();
    assert_eq!(done, ids, "every task was done once");
}

#[tokio::test]
async fn a_duplicate_id_is_refused_alone() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let first = task("first");
    let again = NewTask { payload: "again".into(), ..first.clone() };
    let rows = tasks.create(vec![first.clone(), again, task("other")], soon()).await.unwrap();
    assert!(rows[0].is_ok() && rows[2].is_ok(), "{rows:?}");
    assert!(matches!(rows[1], Err(MessagingError::InvalidInput { what: "task id", .. })), "{rows:?}");
    assert_eq!(tasks.get(first.id, soon()).await.unwrap().unwrap().payload, "first");
}

#[tokio::test]
async fn calls_on_a_closed_connection_are_refused() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let id = create(&tasks, task("x")).await;
    tasks.provider().close(soon()).await.unwrap();
    let refused = [
        tasks.create(vec![task("y")], soon()).await.map(drop),
        tasks.get(id, soon()).await.map(drop),
        tasks.cancel(&[id], soon()).await.map(drop),
    ];
    for answer in refused {
        assert!(matches!(answer, Err(MessagingError::Closed { .. })), "{answer:?}");
    }
}
