//! The handler of tasks: runs the command for one attempt and watches it to its end.

use std::time::Duration;

use postrider::Bytes;
use postrider::subscriber::HandlerError;
use postrider::tasks::{StopReason, TaskContext};
use postrider_core::failpoint;

use super::journal::Journal;
use super::{environment, progress};
use crate::command::{Echo, Ending, Kept, NotStarted, Process, RowPermit, Runner, Stop, Taps};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) runner: Runner,
    pub(super) timeout: Option<Duration>,
    pub(super) max_result: usize,
    pub(super) journal: Journal,
    pub(super) echo: Echo,
    pub(super) stop: Stop,
}

impl Job {
    /// Runs the command for an attempt. Its stdout is the task's result.
    ///
    /// Dropping the future kills the command and everything that it started.
    pub(super) async fn handle(&self, task: TaskContext) -> Result<Option<Bytes>, HandlerError> {
        let Some(permit) = self.row_permit(&task).await else {
            task.release();
            return Err(HandlerError::retryable("the task was released before its command started"));
        };
        let attempt = self.journal.begin(&task, permit);
        let (mut ending, status, stdout, tail) = match self.start(&task).await {
            Ok(mut process) => {
                let (ending, status) = self.runner.watch(&mut process, self.must_end(&task)).await;
                let output = self.runner.finish(process, &format!("task {}", task.id())).await;
                (ending, status, output.stdout, output.stderr_tail)
            }
            Err(why) => (Ending::Failed(why), None, Kept::default(), String::new()),
        };
        let result = match ending {
            Ending::Exited(0) if stdout.length > self.max_result => {
                let why = format!(
                    "its result has {} bytes, and the limit is {}; store it elsewhere and print a reference to it",
                    stdout.length, self.max_result
                );
                ending = Ending::Failed(why.clone());
                Err(HandlerError::permanent(why))
            }
            Ending::Exited(0) if stdout.bytes.is_empty() => Ok(None),
            Ending::Exited(0) => Ok(Some(stdout.bytes.into())),
            _ => ending.result("task", &tail).map(|()| None),
        };
        self.journal.end(attempt, ending, status, task.stop_reason());
        result
    }

    /// Waits for the permit of the attempt's row; `None` if the task must be released instead.
    async fn row_permit(&self, task: &TaskContext) -> Option<RowPermit> {
        let shutdown = self.stop.shutdown();
        tokio::select! {
            biased;
            permit = self.journal.row_permit() => permit,
            () = task.cancellation().cancelled() => None,
            () = shutdown.requested() => None,
        }
    }

    /// Starts the command; waits while the system has no process for it. Returns why it cannot be started.
    async fn start(&self, task: &TaskContext) -> Result<Process, String> {
        let shutdown = self.stop.shutdown();
        loop {
            failpoint::reach("task.begin");
            if !task.is_leased() {
                task.release();
                return Err("its lease ended before its command started".to_owned());
            }
            let sieve = progress::sieve(task.clone(), self.echo.clone());
            let taps = Taps { stdout: Some(self.max_result), stderr: Some(sieve) };
            let variables = environment::variables(task);
            let started = self.runner.start(task.payload().clone(), variables, environment::must_clear, taps);
            let (text, backoff) = match started {
                Ok(process) => return Ok(process),
                Err(NotStarted::Refused(text)) => return Err(text),
                Err(NotStarted::Gone(text)) => {
                    // Nothing was started, so the task keeps its attempt.
                    task.release();
                    return Err(text);
                }
                Err(NotStarted::Busy(text, backoff)) => (text, backoff),
            };
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = task.cancellation().cancelled() => return Err(text),
                () = shutdown.requested() => {
                    task.release();
                    return Err(text);
                }
            }
        }
    }

    /// Completes when the command must be stopped: the task is canceled or its lease lost, the command has timed out, or
    /// the grace of a stop is over.
    async fn must_end(&self, task: &TaskContext) -> Ending {
        task.cancellation().cancelled().await;
        match (task.stop_reason(), self.timeout) {
            (Some(StopReason::TimedOut), Some(limit)) => Ending::TimedOut(limit),
            _ => Ending::Stopped,
        }
    }
}
