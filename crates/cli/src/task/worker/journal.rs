//! Prints a row for each attempt once the store has its outcome, and warnings at once.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider::task::{DeadReason, TaskOutcome};
use postrider::tasks::{StopReason, TaskContext, TaskEnded, TaskObserver};
use postrider::{TaskId, TaskType};
use serde::Serialize;
use tokio::time::Instant;

use super::tally::Tally;
use crate::command::{Echo, Ending, RowPermit, Rows, Stop, Written};
use crate::output::Output;
use crate::text;

/// Records attempts and prints their outcomes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Locked only for a lookup.
    begun: Mutex<HashMap<Attempt, Begun>>,
    // Locked only to count.
    tally: Mutex<Tally>,
    rows: Rows<Row>,
    echo: Echo,
}

/// A task and the number of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Attempt(TaskId, u32);

/// An attempt whose command was started.
#[derive(Debug)]
struct Begun {
    task_type: TaskType,
    at: Instant,
    ending: Option<Ending>,
    status: Option<ExitStatus>,
    stopped: Option<StopReason>,
    permit: RowPermit,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row {
    id: TaskId,
    #[serde(rename = "type")]
    task_type: TaskType,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<DeadReason>,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    seconds: f64,
}

/// The outcome of an attempt.
struct Outcome {
    outcome: &'static str,
    dead_reason: Option<DeadReason>,
    words: String,
}

impl Journal {
    /// Starts the journal. With `draws`, stdout is the terminal that stderr draws on.
    pub(super) fn start(out: Output, workers: usize, draws: bool, echo: Echo, stop: Stop) -> (Self, Written) {
        let (rows, written) = Rows::start(out, workers, draws.then(|| echo.clone()), stop);
        let inner = Inner { begun: Mutex::default(), tally: Mutex::default(), rows, echo };
        (Self(Arc::new(inner)), written)
    }

    /// Waits for the permit of a row.
    pub(super) async fn row_permit(&self) -> Option<RowPermit> {
        self.0.rows.permit().await
    }

    /// Records the start of an attempt's command.
    pub(super) fn begin(&self, task: &TaskContext, permit: RowPermit) -> Attempt {
        let attempt = Attempt(task.id(), task.attempt());
        let task_type = task.task_type().clone();
        let begun = Begun { task_type, at: Instant::now(), ending: None, status: None, stopped: None, permit };
        lock(&self.0.begun).insert(attempt, begun);
        attempt
    }

    /// Records the end of an attempt's command.
    pub(super) fn end(
        &self,
        attempt: Attempt,
        ending: Ending,
        status: Option<ExitStatus>,
        stopped: Option<StopReason>,
    ) {
        if let Some(begun) = lock(&self.0.begun).get_mut(&attempt) {
            (begun.ending, begun.status, begun.stopped) = (Some(ending), status, stopped);
        }
    }

    /// The number of attempts whose outcome is not stored yet.
    pub(super) fn running(&self) -> usize {
        lock(&self.0.begun).len()
    }

    pub(super) fn tally(&self) -> Tally {
        *lock(&self.0.tally)
    }

    /// Reports attempts without an outcome as lost, and waits until all rows are written, or shortly after a forced stop.
    pub(super) async fn finish(&self, written: Written) {
        let left: Vec<_> = lock(&self.0.begun).drain().collect();
        for (attempt, begun) in left {
            let words = describe(&begun);
            self.0.echo.warn(format_args!(
                "task {} ({words}): the outcome was not stored in time, so the task is retried when its lease ends",
                attempt.0
            ));
            lock(&self.0.tally).lost += 1;
            let took = begun.at.elapsed();
            self.write(attempt, begun, Outcome { outcome: "lost", dead_reason: None, words }, took);
        }
        self.0.rows.finish(written).await;
    }

    fn write(&self, attempt: Attempt, begun: Begun, outcome: Outcome, took: Duration) {
        let Attempt(id, attempt) = attempt;
        let Outcome { outcome, dead_reason, words } = outcome;
        let seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        let text = format!("{id} {outcome}: {words}, {seconds:.1} s");
        let row = Row {
            id,
            task_type: begun.task_type,
            outcome,
            dead_reason,
            attempt,
            exit_code: begun.status.and_then(|status| status.code()),
            signal: begun.status.and_then(|status| status.signal()),
            seconds,
        };
        self.0.rows.write(row, text, begun.permit);
    }

    fn count(&self, outcome: &str) {
        let mut tally = lock(&self.0.tally);
        let count = match outcome {
            "succeeded" => &mut tally.succeeded,
            "retried" => &mut tally.retried,
            "dead" => &mut tally.dead,
            "canceled" => &mut tally.canceled,
            "released" => &mut tally.released,
            _ => &mut tally.lost,
        };
        *count += 1;
    }
}

impl TaskObserver for Journal {
    fn ended(&self, ended: &TaskEnded) {
        let attempt = Attempt(ended.id, ended.attempt);
        let Some(begun) = lock(&self.0.begun).remove(&attempt) else {
            // Its command was never started, so it is only counted.
            return self.count("released");
        };
        let outcome = outcome(ended, &begun);
        if outcome.outcome == "lost" {
            let (id, words) = (ended.id, &outcome.words);
            self.0
                .echo
                .warn(format_args!("task {id} ({words}): another worker has it, or may have it; nothing was changed"));
        }
        self.count(outcome.outcome);
        self.write(attempt, begun, outcome, ended.took);
    }
}

fn outcome(ended: &TaskEnded, begun: &Begun) -> Outcome {
    let words = describe(begun);
    let plain = |outcome, words| Outcome { outcome, dead_reason: None, words };
    let dead = |reason: DeadReason| {
        let words = format!("{reason}, {words}");
        Outcome { outcome: "dead", dead_reason: Some(reason), words }
    };
    match &ended.outcome {
        Some(TaskOutcome::Succeeded { .. }) => plain("succeeded", words),
        Some(TaskOutcome::Retry { after, .. }) => {
            plain("retried", format!("again in {}, {words}", text::delay(*after)))
        }
        Some(TaskOutcome::Dead { reason, .. }) => dead(*reason),
        Some(TaskOutcome::Released) => plain("released", words),
        // The lease was lost.
        None => match begun.stopped {
            Some(StopReason::Canceled) => plain("canceled", words),
            Some(StopReason::DeadlinePassed) => dead(DeadReason::Deadline),
            _ => plain("lost", words),
        },
    }
}

/// The ending of the command as text.
fn describe(begun: &Begun) -> String {
    match (&begun.ending, begun.stopped) {
        (Some(Ending::Stopped), Some(StopReason::Canceled)) => "stopped with the task".into(),
        (Some(Ending::Stopped), Some(StopReason::DeadlinePassed)) => "stopped at the deadline".into(),
        (Some(Ending::Stopped), Some(StopReason::LeaseLost)) => "stopped after its lease was lost".into(),
        // A dropped handler recorded no ending.
        (ending, _) => ending.as_ref().unwrap_or(&Ending::Stopped).describe(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
