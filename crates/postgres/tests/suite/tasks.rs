//! Tasks and schedules, on a server.

mod crowds;
mod transactions;

use std::time::Duration;

use postrider_conformance::{TaskHarness, exercise_tasks};
use postrider_core::task::{
    ClaimTasks, ClaimedTask, Created, DeadReason, DeadTaskEvent, Finish, NewTask, TaskId, TaskLease, TaskOutcome,
    TaskRoutes, TaskStanding, TaskState, TaskStore, TaskType,
};
use postrider_core::{MessagingError, MessagingService, ReceiveOptions};
use postrider_postgres::{PostgresProvider, PostgresStore, PostgresTasks};

use crate::lawful::ManualClock;
use crate::{Fixture, options, queue, soon, url};

const LEASE: Duration = Duration::from_secs(60);

impl TaskHarness for ManualClock {
    type Store = PostgresTasks;
    type Queue = PostgresProvider;

    async fn open(&self, routes: TaskRoutes) -> Result<PostgresTasks, MessagingError> {
        PostgresTasks::new(self.queue().await?, routes)
    }

    async fn queue(&self) -> Result<PostgresProvider, MessagingError> {
        PostgresStore::open(&url(), options(&self.schema)).await?.connect()
    }

    async fn elapse(&self, time: Duration) {
        self.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_kept_as_they_should_be() {
    let fixture = Fixture::new();
    let findings = exercise_tasks(&ManualClock { schema: fixture.schema.clone() }).await;
    let faults: Vec<String> = findings.iter().filter(|it| it.fault.is_some()).map(ToString::to_string).collect();
    assert!(!findings.is_empty() && faults.is_empty(), "{}", faults.join("\n"));
}

async fn tasks_of(fixture: &Fixture) -> PostgresTasks {
    tasks_with(fixture, TaskRoutes::default()).await
}

async fn tasks_with(fixture: &Fixture, routes: TaskRoutes) -> PostgresTasks {
    PostgresTasks::new(fixture.connect().await, routes).unwrap()
}

fn mail() -> TaskType {
    TaskType::new("mail").unwrap()
}

fn task() -> NewTask {
    NewTask::of(mail(), "{}")
}

fn keyed(key: &str) -> NewTask {
    task().ordering_key(key).unwrap()
}

fn wanted(max: usize) -> ClaimTasks {
    ClaimTasks { types: vec![mail()], max, lease: LEASE, worker: "worker".into() }
}

async fn create(tasks: &PostgresTasks, new: Vec<NewTask>) -> Vec<TaskId> {
    tasks.create(new, soon()).await.unwrap().into_iter().map(|row| row.unwrap().id).collect()
}

async fn claim(tasks: &PostgresTasks, max: usize) -> Vec<ClaimedTask> {
    tasks.claim(wanted(max), soon()).await.unwrap().claimed
}

fn ids(claimed: &[ClaimedTask]) -> Vec<TaskId> {
    claimed.iter().map(|task| task.lease.id).collect()
}

fn done(lease: TaskLease) -> Finish {
    Finish { lease, outcome: TaskOutcome::Succeeded { result: None } }
}

async fn state(tasks: &PostgresTasks, id: TaskId) -> Option<TaskState> {
    tasks.get(id, soon()).await.unwrap().map(|task| task.info.state)
}

#[tokio::test]
async fn rows_with_taken_ids_or_keys_are_answered_separately() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let first = task().idempotency_key("first").unwrap();
    create(&tasks, vec![first.clone()]).await;
    let (plain, twice) = (task(), task());
    let batch = vec![plain.clone(), task().id(first.id), first.clone(), twice.clone(), twice.clone()];
    let rows = tasks.create(batch, soon()).await.unwrap();
    assert!(matches!(rows[0], Ok(Created { is_new: true, .. })), "{rows:?}");
    assert!(matches!(rows[1], Err(MessagingError::InvalidInput { what: "task id", .. })), "{rows:?}");
    assert!(matches!(rows[2], Ok(Created { id, is_new: false, .. }) if id == first.id), "{rows:?}");
    assert!(matches!(rows[3], Ok(Created { is_new: true, .. })), "{rows:?}");
    assert!(matches!(rows[4], Err(MessagingError::InvalidInput { what: "task id", .. })), "{rows:?}");
    // Uniform tasks use another statement.
    let rows = tasks.create(vec![task(), task().id(plain.id), task()], soon()).await.unwrap();
    let made: Vec<bool> = rows.iter().map(Result::is_ok).collect();
    assert_eq!(made, [true, false, true], "{rows:?}");
}

#[tokio::test]
async fn a_death_sends_a_readable_event() {
    let fixture = Fixture::new();
    let events = queue("deaths");
    let routes = TaskRoutes { dead_events: Some(events.clone()), ..TaskRoutes::default() };
    let tasks = tasks_with(&fixture, routes).await;
    let id = create(&tasks, vec![task()]).await[0];
    let lease = claim(&tasks, 1).await[0].lease;
    let error = "it said \"no\"\n\tand \u{1} \0 ended ä".to_owned();
    let outcome = TaskOutcome::Dead { reason: DeadReason::Permanent, error: error.clone() };
    let standings = tasks.finish(vec![Finish { lease, outcome }], soon()).await.unwrap();
    assert_eq!(standings, [TaskStanding::Held]);
    let received = tasks.provider().receive_messages(&events, &ReceiveOptions::default(), soon()).await.unwrap();
    let event: DeadTaskEvent = serde_json::from_slice(&received[0].message).unwrap();
    let task = tasks.get(id, soon()).await.unwrap().unwrap();
    assert_eq!(event.error, error.replace('\0', "\u{fffd}"));
    assert_eq!(Some(event.error), task.info.last_error);
    assert_eq!(Some(event.dead_at), task.info.finished_at, "to the microsecond");
    assert_eq!((event.task_id, event.worker_id.as_deref(), event.payload.bytes), (id, Some("worker"), 2));
}

#[tokio::test]
async fn a_released_attempt_leaves_the_one_before_it_as_the_last() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let id = create(&tasks, vec![task()]).await[0];
    let by = |worker: &str| ClaimTasks { worker: worker.into(), ..wanted(1) };
    let end = |lease, outcome| vec![Finish { lease, outcome }];
    let lease = tasks.claim(by("first"), soon()).await.unwrap().claimed[0].lease;
    let retry = TaskOutcome::Retry { after: Duration::ZERO, error: "no route".into() };
    tasks.finish(end(lease, retry), soon()).await.unwrap();
    let before = tasks.get(id, soon()).await.unwrap().unwrap().info;
    let lease = tasks.claim(by("second"), soon()).await.unwrap().claimed[0].lease;
    tasks.finish(end(lease, TaskOutcome::Released), soon()).await.unwrap();
    let after = tasks.get(id, soon()).await.unwrap().unwrap().info;
    assert_eq!((after.worker.as_deref(), after.started_at), (Some("first"), before.started_at));
    assert_eq!((after.attempt_count, after.last_error), (1, before.last_error));
}

#[tokio::test]
async fn invalid_routes_are_refused() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    for routes in [
        TaskRoutes { queue_prefix: "two words ".into(), ..TaskRoutes::default() },
        TaskRoutes { queue_prefix: "p".repeat(60), ..TaskRoutes::default() },
        TaskRoutes { dead_events: Some(queue("mail").dead_letters()), ..TaskRoutes::default() },
    ] {
        let refused = PostgresTasks::new(provider.clone(), routes.clone());
        assert!(matches!(refused, Err(MessagingError::InvalidInput { .. })), "{routes:?}");
    }
    let tasks = PostgresTasks::new(provider.clone(), TaskRoutes::default()).unwrap();
    provider.close(soon()).await.unwrap();
    let closed = tasks.create(vec![task()], soon()).await;
    assert!(matches!(closed, Err(MessagingError::Closed { .. })), "{closed:?}");
}
