//! The handler: a command, run for one attempt of a task and watched to its end.

use std::time::Duration;

use postrider::Bytes;
use postrider::subscriber::HandlerError;
use postrider::tasks::{StopReason, TaskContext};
use postrider_core::failpoint;

use super::journal::Journal;
use super::{environment, progress};
use crate::command::{Echo, Ending, Kept, NotStarted, Place, Process, Runner, Stop, Taps};

/// What every attempt is made with.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) runner: Runner,
    pub(super) timeout: Option<Duration>,
    pub(super) most_result: usize,
    pub(super) journal: Journal,
    pub(super) echo: Echo,
    pub(super) stop: Stop,
}

impl Job {
    /// Runs the command for an attempt. Its end is the handler's answer, and what it printed the result.
    ///
    /// Dropped, it kills the command and everything that this started.
    pub(super) async fn handle(&self, task: TaskContext) -> Result<Option<Bytes>, HandlerError> {
        let Some(place) = self.place(&task).await else {
            task.release();
            return Err(HandlerError::retryable("the task was given back before its command began"));
        };
        let attempt = self.journal.begin(&task, place);
        let (mut ending, status, stdout, tail) = match self.start(&task).await {
            Ok(mut process) => {
                let (ending, status) = self.runner.watch(&mut process, self.must_end(&task)).await;
                let output = self.runner.finish(process, &format!("task {}", task.id())).await;
                (ending, status, output.stdout, output.stderr_tail)
            }
            Err(why) => (Ending::Trouble(why), None, Kept::default(), String::new()),
        };
        let result = match ending {
            Ending::Exited(0) if stdout.length > self.most_result => {
                let why = format!(
                    "its result has {} bytes, at most {} are allowed; print where it is instead",
                    stdout.length, self.most_result
                );
                ending = Ending::Trouble(why.clone());
                Err(HandlerError::permanent(why))
            }
            Ending::Exited(0) if stdout.bytes.is_empty() => Ok(None),
            Ending::Exited(0) => Ok(Some(stdout.bytes.into())),
            _ => ending.result("task", &tail).map(|()| None),
        };
        self.journal.end(attempt, ending, status, task.stop_reason());
        result
    }

    /// Waits until a line can be written about the attempt; `None` when the task is better given back.
    async fn place(&self, task: &TaskContext) -> Option<Place> {
        let shutdown = self.stop.shutdown();
        tokio::select! {
            biased;
            place = self.journal.place() => place,
            () = task.cancellation().cancelled() => None,
            () = shutdown.requested() => None,
        }
    }

    /// Starts the command, as soon as the system has a process for it. Says why it cannot be.
    async fn start(&self, task: &TaskContext) -> Result<Process, String> {
        let shutdown = self.stop.shutdown();
        loop {
            failpoint::reach("task.begin");
            if !task.is_leased() {
                task.release();
                return Err("its lease was over before its command began".to_owned());
            }
            let sieve = progress::sieve(task.clone(), self.echo.clone());
            let taps = Taps { stdout: Some(self.most_result), stderr: Some(sieve) };
            let variables = environment::variables(task);
            let started = self.runner.start(task.payload().clone(), variables, environment::shines_through, taps);
            let (text, pause) = match started {
                Ok(process) => return Ok(process),
                Err(NotStarted::Refused(text)) => return Err(text),
                Err(NotStarted::Gone(text)) => {
                    // Nothing was tried, so it costs the task nothing.
                    task.release();
                    return Err(text);
                }
                Err(NotStarted::Busy(text, pause)) => (text, pause),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = task.cancellation().cancelled() => return Err(text),
                () = shutdown.requested() => {
                    task.release();
                    return Err(text);
                }
            }
        }
    }

    /// Completes when the command may not go on: the task is not wanted from it any more, it has taken too long, or a
    /// stop has run out of patience.
    async fn must_end(&self, task: &TaskContext) -> Ending {
        task.cancellation().cancelled().await;
        match (task.stop_reason(), self.timeout) {
            (Some(StopReason::TimedOut), Some(limit)) => Ending::TimedOut(limit),
            _ => Ending::Stopped,
        }
    }
}
