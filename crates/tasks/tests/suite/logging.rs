//! The log of a worker: its failed attempts.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::RetryStrategy;
use postrider_core::task::{ClaimTasks, NewTask, TaskId, TaskState, TaskStore};
use postrider_tasks::{HandlerError, Shutdown, TaskContext};
use serde_json::Value;

use crate::fixture::{Fixture, Route, Running, create, ended, start_keeper};
use crate::soon;

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Records the log of this thread until the guard is dropped.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let written = self.clone();
        let listener = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || written.clone());
        tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish())
    }

    /// The log lines of a task.
    fn lines(&self, id: TaskId) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["id"] == id.to_string()).collect()
    }
}

#[tokio::test]
async fn each_failed_attempt_is_a_warning_and_each_death_an_error() {
    for route in Route::ALL {
        let log = Log::default();
        let _listens = log.listen();
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system.worker().handler("print", |task: TaskContext| async move {
            match task.attempt() {
                1 => Err(HandlerError::retryable("the printer is on fire")),
                _ => Err::<(), _>(HandlerError::permanent("there is no printer")),
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let strategy = RetryStrategy::constant(Duration::from_millis(5));
        let id = create(&system, NewTask::new("print", "").unwrap().retry_strategy(strategy)).await.id;
        ended(&system, id).await;
        running.stop().await;
        let lines = log.lines(id);
        assert_eq!(lines.len(), 2, "{route:?}: {lines:?}");
        for (line, level, message, attempt, error) in [
            (&lines[0], "WARN", "a task failed and is tried again", 1, "the printer is on fire"),
            (&lines[1], "ERROR", "a task is dead", 2, "there is no printer"),
        ] {
            assert_eq!((&line["level"], &line["message"]), (&level.into(), &message.into()), "{route:?}: {line}");
            assert_eq!((&line["task_type"], &line["attempt"]), (&"print".into(), &attempt.into()), "{route:?}: {line}");
            assert_eq!(line["error"], error, "{route:?}: {line}");
        }
        assert!(lines[0]["next_attempt_at"].is_string() && lines[1]["reason"] == "permanent", "{route:?}: {lines:?}");
    }
}

#[tokio::test]
async fn a_death_by_a_deadline_or_by_a_lost_worker_is_an_error() {
    let log = Log::default();
    let _listens = log.listen();
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let late = create(&system, NewTask::new("print", "").unwrap().deadline_in(Duration::from_millis(1))).await.id;
    let abandoned = create(&system, NewTask::new("scan", "").unwrap().max_attempts(1)).await.id;
    let (types, lease) = (vec!["scan".parse().unwrap()], Duration::from_millis(1));
    let claim = ClaimTasks { types, max: 1, lease, worker: "lost".into() };
    assert_eq!(system.client().store().claim(claim, soon()).await.unwrap().claimed.len(), 1);
    let shutdown = Shutdown::new();
    let keeper = start_keeper(&system, &shutdown);
    for (id, task_type, attempt, reason) in [(late, "print", 0, "deadline"), (abandoned, "scan", 1, "lease_lost")] {
        assert_eq!(ended(&system, id).await.info.state, TaskState::Dead);
        // The log line follows a moment after the change in the store.
        crate::until("it is logged", crate::TIME_LIMIT, || async { !log.lines(id).is_empty() }).await;
        let lines = log.lines(id);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line = &lines[0];
        assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"a task is dead".into()), "{line}");
        assert_eq!((&line["task_type"], &line["attempt"]), (&task_type.into(), &attempt.into()), "{line}");
        assert_eq!(line["reason"], reason, "{line}");
        assert!(line["error"].as_str().is_some_and(|error| !error.is_empty()), "{line}");
    }
    shutdown.request();
    keeper.await.unwrap();
}
