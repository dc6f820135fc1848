//! The handler: a command, run for one message and watched to its end.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider::subscriber::{Delivery, HandlerError};
use postrider::{MessageId, Nack, RetryStrategy, duration_text};
use tokio::process::Command;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::echo::Echo;
use super::ending::Ending;
use super::environment::{self, Store};
use super::journal::Journal;
use super::process::{LeftBehind, Process};
use super::stop::Stop;
use crate::failure::Failure;

/// From SIGTERM to SIGKILL.
const TERMINATION_PATIENCE: Duration = Duration::from_secs(5);
/// How long a handler whose token was cancelled takes at most: that, and what comes after it.
pub(super) const TO_OBEY: Duration = Duration::from_secs(10);

/// When the system starts no process.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What every message is handled with.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) store: Store,
    pub(super) strategy: RetryStrategy,
    pub(super) timeout: Option<Duration>,
    pub(super) journal: Journal,
    pub(super) echo: Echo,
    pub(super) stop: Stop,
    /// In a row.
    pub(super) failed_starts: AtomicU32,
}

impl Job {
    /// Runs the command for a message. Its end is the handler's answer.
    ///
    /// Dropped, it kills the command and everything that this started.
    pub(super) async fn handle(&self, delivery: Delivery) -> Result<(), HandlerError> {
        let Some(place) = self.place(&delivery).await else {
            delivery.control().release();
            return Err(HandlerError::retryable("the message was given back before its command began"));
        };
        let delivered = self.journal.begin(&delivery.envelope, place);
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        environment::prepare(&mut command, &delivery.envelope, &self.store);
        let (ending, status, tail) = match Process::start(command, delivery.body.clone(), self.echo.clone()) {
            Ok(mut process) => {
                self.failed_starts.store(0, Ordering::Relaxed);
                let (ending, status) = self.watch(&mut process, &delivery).await;
                (ending, status, self.finish(process, delivery.id()).await)
            }
            Err(error) => (self.could_not_start(&error, &delivery).await, None, String::new()),
        };
        if ending == Ending::Stopped {
            // A deployment must not kill messages, whatever the policy and the strategy say. The limit of deliveries
            // ends what is stopped again and again.
            let delay = self.strategy.next_delay(delivery.attempt(), Duration::ZERO, rand::random());
            let nack = Nack::retry_after(delay.unwrap_or_default()).with_error(ending.error_text(&tail));
            delivery.control().nack(nack);
        }
        let result = ending.result(&tail);
        self.journal.end(delivered, ending, status);
        result
    }

    /// Waits until a line can be written about the message; `None` when it is better given back.
    async fn place(&self, delivery: &Delivery) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            place = self.journal.place() => place,
            () = delivery.cancellation().cancelled() => None,
            () = delivery.stopping() => None,
        }
    }

    /// Waits for the command's end, or ends it.
    async fn watch(&self, process: &mut Process, delivery: &Delivery) -> (Ending, Option<ExitStatus>) {
        let too_long = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let ending = tokio::select! {
            biased;
            status = process.wait() => return match status {
                Ok(status) => (Ending::of(status), Some(status)),
                Err(error) => (Ending::Trouble(format!("the end of the command was not seen: {error}")), None),
            },
            // The lease is lost, and what is answered does not count; or a stop has run out of patience.
            () = delivery.cancellation().cancelled() => Ending::Stopped,
            () = self.stop.killing() => Ending::Stopped,
            () = too_long => Ending::TimedOut(self.timeout.unwrap_or_default()),
        };
        let patience = async {
            tokio::select! {
                () = sleep(TERMINATION_PATIENCE) => {}
                () = self.stop.killing() => {}
            }
        };
        // Whatever code it then ends with: a program that is told to stop often says 0 and means only that.
        (ending, process.terminate(patience).await.ok())
    }

    /// Answers the last lines of the command's stderr.
    async fn finish(&self, process: Process, id: MessageId) -> String {
        let (tail, left_behind) = process.finish().await;
        let became = match left_behind {
            LeftBehind::Nothing => return tail,
            LeftBehind::Killed => "it was killed",
            LeftBehind::OutOfReach => "it is in another process group and was let run",
        };
        self.echo.note(format_args!(
            "the command for message {id} ended and left a process behind that held its output open; {became}"
        ));
        tail
    }

    async fn could_not_start(&self, error: &io::Error, delivery: &Delivery) -> Ending {
        let text = format!("cannot run '{}': {error}", self.program.display());
        match error.kind() {
            io::ErrorKind::ArgumentListTooLong => {
                return Ending::Trouble(format!(
                    "the command cannot be started: its arguments and environment are too long ({error})"
                ));
            }
            // It was there when the worker began. Every further message would end the same way.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => self.stop.fail(Failure::failed(&text)),
            // The system has no process left, or no memory. The worker waits, or it would ask again and again.
            _ => {
                let failures = self.failed_starts.fetch_add(1, Ordering::Relaxed);
                let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
                self.echo.note(format_args!("{text}; trying again in {}", duration_text::show(pause)));
                tokio::select! {
                    () = sleep(pause) => {}
                    () = delivery.cancellation().cancelled() => {}
                    () = delivery.stopping() => {}
                }
            }
        }
        // Nothing was tried, so it costs the message nothing.
        delivery.control().release();
        Ending::Trouble(text)
    }
}
