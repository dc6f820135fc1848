//! What is told of attempts: a line for each once the store has it, and trouble as it comes.

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
use crate::command::{Echo, Ending, Place, Rows, Stop, Written};
use crate::output::Output;
use crate::text;

/// Writes what became of attempts. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Held to look something up.
    begun: Mutex<HashMap<Attempt, Begun>>,
    // Held to count one.
    tally: Mutex<Tally>,
    rows: Rows<Row>,
    echo: Echo,
}

/// Which attempt of which task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Attempt(TaskId, u32);

/// An attempt whose command was begun.
#[derive(Debug)]
struct Begun {
    task_type: TaskType,
    at: Instant,
    ending: Option<Ending>,
    status: Option<ExitStatus>,
    stopped: Option<StopReason>,
    place: Place,
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

/// What became of an attempt.
struct Became {
    outcome: &'static str,
    dead_reason: Option<DeadReason>,
    words: String,
}

impl Journal {
    /// With `draws`, stdout is the terminal that stderr draws on.
    pub(super) fn start(out: Output, workers: usize, draws: bool, echo: Echo, stop: Stop) -> (Self, Written) {
        let (rows, written) = Rows::start(out, workers, draws.then(|| echo.clone()), stop);
        let inner = Inner { begun: Mutex::default(), tally: Mutex::default(), rows, echo };
        (Self(Arc::new(inner)), written)
    }

    /// Waits for the place of a line.
    pub(super) async fn place(&self) -> Option<Place> {
        self.0.rows.place().await
    }

    /// A command is begun for this attempt.
    pub(super) fn begin(&self, task: &TaskContext, place: Place) -> Attempt {
        let attempt = Attempt(task.id(), task.attempt());
        let task_type = task.task_type().clone();
        let begun = Begun { task_type, at: Instant::now(), ending: None, status: None, stopped: None, place };
        lock(&self.0.begun).insert(attempt, begun);
        attempt
    }

    /// It ended so.
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

    /// How many commands run, or have ended and the store does not know yet.
    pub(super) fn running(&self) -> usize {
        lock(&self.0.begun).len()
    }

    pub(super) fn tally(&self) -> Tally {
        *lock(&self.0.tally)
    }

    /// Tells what no outcome came of, and waits until everything is written or somebody has no patience for that.
    pub(super) async fn finish(&self, written: Written) {
        let left: Vec<_> = lock(&self.0.begun).drain().collect();
        for (attempt, begun) in left {
            let words = describe(&begun);
            self.0.echo.warn(format_args!(
                "task {} ({words}): the store did not take that in time, so the task is tried again when its lease ends",
                attempt.0
            ));
            lock(&self.0.tally).lost += 1;
            let took = begun.at.elapsed();
            self.write(attempt, begun, Became { outcome: "lost", dead_reason: None, words }, took);
        }
        self.0.rows.finish(written).await;
    }

    fn write(&self, attempt: Attempt, begun: Begun, became: Became, took: Duration) {
        let Attempt(id, attempt) = attempt;
        let Became { outcome, dead_reason, words } = became;
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
        self.0.rows.write(row, text, begun.place);
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
            // Its command was never begun, so it is only counted.
            return self.count("released");
        };
        let became = became(ended, &begun);
        if became.outcome == "lost" {
            let (id, words) = (ended.id, &became.words);
            self.0
                .echo
                .warn(format_args!("task {id} ({words}): another worker has it, or may have; nothing was changed"));
        }
        self.count(became.outcome);
        self.write(attempt, begun, became, ended.took);
    }
}

fn became(ended: &TaskEnded, begun: &Begun) -> Became {
    let words = describe(begun);
    let plain = |outcome, words| Became { outcome, dead_reason: None, words };
    let dead = |reason: DeadReason| {
        let words = format!("{reason}, {words}");
        Became { outcome: "dead", dead_reason: Some(reason), words }
    };
    match &ended.outcome {
        Some(TaskOutcome::Succeeded { .. }) => plain("succeeded", words),
        Some(TaskOutcome::Retry { after, .. }) => {
            plain("retried", format!("again in {}, {words}", text::delay(*after)))
        }
        Some(TaskOutcome::Dead { reason, .. }) => dead(*reason),
        Some(TaskOutcome::Released) => plain("released", words),
        // It was taken from us.
        None => match begun.stopped {
            Some(StopReason::Canceled) => plain("canceled", words),
            Some(StopReason::DeadlinePassed) => dead(DeadReason::Deadline),
            _ => plain("lost", words),
        },
    }
}

/// How it ended, in words.
fn describe(begun: &Begun) -> String {
    match (&begun.ending, begun.stopped) {
        (Some(Ending::Stopped), Some(StopReason::Canceled)) => "stopped with the task".into(),
        (Some(Ending::Stopped), Some(StopReason::DeadlinePassed)) => "stopped at the deadline".into(),
        (Some(Ending::Stopped), Some(StopReason::LeaseLost)) => "stopped after its lease was lost".into(),
        // A handler that was dropped did not come to say how its command ended.
        (ending, _) => ending.as_ref().unwrap_or(&Ending::Stopped).describe(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
