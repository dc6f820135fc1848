//! Tests that need private parts: callers that go away, and messages that cannot be sent.

use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::task::{
    ClaimTasks, Created, DeadReason, Finish, NewTask, Post, TaskLease, TaskMode, TaskOutcome, TaskRoutes, TaskState,
    TaskStore, TaskType,
};
use postrider_core::{Deadline, Limits, MessagingError, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use tempfile::TempDir;

use super::SqliteTasks;
use crate::session::Session;
use crate::{SqliteOptions, SqliteStore};

fn soon() -> Deadline {
    Deadline::default()
}

fn mail() -> TaskType {
    TaskType::new("mail").unwrap()
}

async fn open(folder: &TempDir, options: SqliteOptions, routes: TaskRoutes) -> SqliteTasks {
    let store = SqliteStore::open(folder.path().join("tasks.db"), options).await.unwrap();
    SqliteTasks::new(store.connect().await.unwrap(), routes).unwrap()
}

async fn create(tasks: &SqliteTasks, task: NewTask) -> Created {
    tasks.create(vec![task], soon()).await.unwrap().remove(0).unwrap()
}

fn asking(max: usize) -> ClaimTasks {
    ClaimTasks { types: vec![mail()], max, lease: Duration::from_secs(60), worker: "test".to_owned() }
}

async fn claim_one(tasks: &SqliteTasks) -> TaskLease {
    tasks.claim(asking(1), soon()).await.unwrap().claimed[0].lease
}

/// Keeps the writer busy until a value is sent.
async fn hold_writer(tasks: &SqliteTasks) -> std::sync::mpsc::Sender<()> {
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let mut begun = Some(begun);
    let hold = move |_: &mut Session<'_>| {
        begun.take().unwrap().send(()).unwrap();
        may_go_on.recv().unwrap();
        Ok(())
    };
    let provider = tasks.provider.clone();
    tokio::spawn(async move { provider.write("test", soon(), hold).await });
    has_begun.await.unwrap();
    go_on
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_caller_that_has_gone_are_returned() {
    for mode in TaskMode::ALL {
        let folder = tempfile::tempdir().unwrap();
        let tasks = open(&folder, SqliteOptions::default(), TaskRoutes { mode, ..TaskRoutes::default() }).await;
        let first = create(&tasks, NewTask::of(mail(), "first")).await.id;
        let lease = claim_one(&tasks).await;
        let second = create(&tasks, NewTask::of(mail(), "second")).await.id;
        let go_on = hold_writer(&tasks).await;
        // The first attempt must end although its caller has gone; what is claimed with it must be returned.
        let done = Finish { lease, outcome: TaskOutcome::Succeeded { result: None } };
        let both = tasks.finish_and_claim(vec![done], Some(asking(5)), soon()).now_or_never();
        let by_id = tasks.claim_by_id(&[second], Duration::from_secs(60), "gone", soon()).now_or_never();
        assert!(both.is_none() && by_id.is_none(), "the writer did not wait");
        go_on.send(()).unwrap();
        // The writer works in order: after two more calls the leases are returned.
        for _ in 0..2 {
            tasks.provider.health_check(soon()).await.unwrap();
        }
        assert_eq!(tasks.get(first, soon()).await.unwrap().unwrap().info.state, TaskState::Succeeded);
        let seen = tasks.get(second, soon()).await.unwrap().unwrap().info;
        let back = if mode == TaskMode::Queue { TaskState::Enqueued } else { TaskState::Pending };
        assert_eq!((seen.state, seen.attempt_count, seen.worker), (back, 0, None), "{mode}");
        assert_eq!(claim_one(&tasks).await.id, second);
    }
}

#[tokio::test]
async fn a_transition_whose_message_cannot_be_written_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let routes = TaskRoutes {
        mode: TaskMode::Queue,
        dead_events: Some(QueueName::new("deaths").unwrap()),
        ..TaskRoutes::default()
    };
    let tasks = open(&folder, SqliteOptions::default(), routes).await;
    let id = create(&tasks, NewTask::of(mail(), "x")).await.id;
    let lease = claim_one(&tasks).await;
    let run = |sql: &'static str| {
        tasks.provider.write("test", soon(), move |session| Ok(session.connection.execute_batch(sql)?))
    };
    run("create trigger refuse before insert on message begin select raise(abort, 'no'); end").await.unwrap();
    let outcomes = [
        TaskOutcome::Retry { after: Duration::ZERO, error: "again".into() },
        TaskOutcome::Dead { reason: DeadReason::Permanent, error: "over".into() },
        TaskOutcome::Released,
    ];
    for outcome in outcomes.clone() {
        let refused = tasks.finish(vec![Finish { lease, outcome }], soon()).await;
        assert!(matches!(refused, Err(MessagingError::Provider { retryable: false, .. })), "{refused:?}");
        let seen = tasks.get(id, soon()).await.unwrap().unwrap().info;
        assert_eq!((seen.state, seen.attempt_count), (TaskState::Processing, 1));
        assert_eq!(tasks.attempts(id, soon()).await.unwrap().len(), 1, "the running attempt");
    }
    run("drop trigger refuse").await.unwrap();
    let [_, dead, _] = outcomes;
    let _ = tasks.finish(vec![Finish { lease, outcome: dead }], soon()).await.unwrap();
    assert_eq!(tasks.get(id, soon()).await.unwrap().unwrap().info.state, TaskState::Dead);
}

#[tokio::test]
async fn messages_of_tasks_fit_into_the_smallest_allowed_body() {
    let folder = tempfile::tempdir().unwrap();
    let limits =
        Limits { max_body_bytes: super::SMALLEST_BODY, max_delay: Duration::from_secs(60), ..Limits::default() };
    // The queues do not exist and sends may not create them; those of tasks are created all the same.
    let options = SqliteOptions { limits, create_queues: false, ..SqliteOptions::default() };
    let deaths = QueueName::new("deaths").unwrap();
    let routes = TaskRoutes { mode: TaskMode::Queue, dead_events: Some(deaths.clone()), ..TaskRoutes::default() };
    let tasks = open(&folder, options, routes.clone()).await;
    let id = create(&tasks, NewTask::of(mail(), "x")).await.id;
    let lease = claim_one(&tasks).await;
    let later = TaskOutcome::Retry { after: Duration::from_secs(3600), error: "\u{1}".repeat(100_000) };
    let _ = tasks.finish(vec![Finish { lease, outcome: later }], soon()).await.unwrap();
    let stats = tasks.provider.queue_stats(&routes.queue(&mail()).unwrap(), soon()).await.unwrap();
    assert_eq!(stats.message_count(), Some(1), "a longer delay than a message can have is cut");
    tasks.run_now(&[id], soon()).await.unwrap().remove(0).unwrap();
    let lease = claim_one(&tasks).await;
    let dead = TaskOutcome::Dead { reason: DeadReason::Permanent, error: "\u{1}".repeat(100_000) };
    let _ = tasks.finish(vec![Finish { lease, outcome: dead }], soon()).await.unwrap();
    let events = tasks.provider.receive_messages(&deaths, &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(events.len(), 1);
    assert!(events[0].message.len() <= super::SMALLEST_BODY, "{} bytes", events[0].message.len());
    let kept = tasks.get(id, soon()).await.unwrap().unwrap().info.last_error.unwrap();
    assert_eq!(kept.len(), 8 * 1024, "the stored error has the usual bound");
}

#[tokio::test]
async fn invalid_routes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { max_body_bytes: 100, ..Limits::default() };
    let options = SqliteOptions { limits, ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path().join("tasks.db"), options).await.unwrap();
    let provider = store.connect().await.unwrap();
    let plain = TaskRoutes::default();
    let deaths = QueueName::new("deaths").unwrap();
    let refused = [
        TaskRoutes { queue_prefix: "two words".into(), ..plain.clone() },
        TaskRoutes { queue_prefix: "t".repeat(80), ..plain.clone() },
        TaskRoutes { dead_events: Some(deaths.dead_letters()), post: Post::Outbox, ..plain.clone() },
        // The messages would not fit into the allowed body.
        TaskRoutes { mode: TaskMode::Queue, ..plain.clone() },
        TaskRoutes { dead_events: Some(deaths.clone()), ..plain.clone() },
    ];
    for routes in refused {
        let answer = SqliteTasks::new(provider.clone(), routes.clone());
        assert!(matches!(answer, Err(MessagingError::InvalidInput { .. })), "{routes:?}: {answer:?}");
    }
    let elsewhere =
        TaskRoutes { mode: TaskMode::Queue, post: Post::Outbox, dead_events: Some(deaths), ..plain.clone() };
    for routes in [plain.clone(), elsewhere] {
        SqliteTasks::new(provider.clone(), routes).unwrap();
    }
    // With this prefix some types give a valid queue name and others do not.
    let tasks = SqliteTasks::new(provider, TaskRoutes { queue_prefix: "t".repeat(70), ..plain }).unwrap();
    let long = NewTask::new("a_type_of_some_length", "x").unwrap();
    let rows = tasks.create(vec![NewTask::of(mail(), "x"), long], soon()).await.unwrap();
    assert!(rows[0].is_ok() && matches!(rows[1], Err(MessagingError::InvalidInput { .. })), "{rows:?}");
}
