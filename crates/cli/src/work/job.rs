//! One message: started, watched, settled, told.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use postrider::{
    Disposition, Envelope, MessagingProvider, Nack, QueueName, QueuedMessage, RetryStrategy, Settlement, duration_text,
};
use serde::Serialize;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::echo::Echo;
use super::environment::{self, Store};
use super::handler::{Handler, LeftBehind};
use super::lease::Lease;
use super::outcome::{Ending, Standing, disposition};
use super::settle::{Settled, settle};
use super::stop::{Stage, Stop};
use crate::failure::Failure;
use crate::output::Output;

/// From SIGTERM to SIGKILL.
const TERMINATION_PATIENCE: Duration = Duration::from_secs(5);

/// What every message is handled with.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) provider: MessagingProvider,
    pub(super) queue: QueueName,
    pub(super) visibility: Duration,
    pub(super) strategy: RetryStrategy,
    pub(super) timeout: Option<Duration>,
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) store: Store,
    pub(super) out: Output,
    pub(super) echo: Echo,
    pub(super) stop: Stop,
}

/// What one message says about the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// Nothing. The outcome is its row's.
    Handled(&'static str),
    /// The system could not start a process; it may later.
    Starved,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: String,
    queue: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    receive_count: u32,
    seconds: f64,
}

/// Why a command is not waited for any longer.
enum Cause {
    Itself(io::Result<ExitStatus>),
    Us(Ending),
    LeaseLost(String),
}

/// How a command ended, and what the system says about it.
struct Ended {
    ending: Ending,
    status: Option<ExitStatus>,
}

enum Watched {
    Ended(Ended),
    LeaseLost(String, Option<ExitStatus>),
}

impl Job {
    /// Handles a message to its end. Fails only when there is no point in handling another.
    pub(super) async fn handle(&self, message: QueuedMessage, leased_at: Instant) -> Result<JobEnd, Failure> {
        let (body, envelope, receipt) = message.into_parts();
        let lease = Lease::keep(self.provider.clone(), self.queue.clone(), receipt.clone(), self.visibility, leased_at);
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        environment::prepare(&mut command, &envelope, &self.store);

        let (ended, tail) = match Handler::start(command, body, self.echo.clone()) {
            Ok(handler) => match self.watch(handler, &lease, &envelope).await {
                (Watched::Ended(ended), tail) => (ended, tail),
                (Watched::LeaseLost(why, status), _) => {
                    self.echo.note(format_args!("the command for message {} was stopped: {why}", envelope.id));
                    self.tell(&envelope, "lost", "its lease was lost", status, leased_at)?;
                    return Ok(JobEnd::Handled("lost"));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                let why =
                    format!("the command cannot be started: its arguments and environment are too long ({error})");
                (Ended { ending: Ending::Trouble(why), status: None }, String::new())
            }
            Err(error) => {
                let released = Settlement::nack(receipt, Nack::Release);
                let (outcome, words) =
                    said(settle(&self.provider, released, &lease, &self.stop, &self.echo).await, "released");
                self.tell(&envelope, outcome, &words, None, leased_at)?;
                return self.could_not_start(&error);
            }
        };

        let standing = Standing::of(&envelope, self.visibility, leased_at.elapsed(), rand::random());
        let disposition = disposition(&ended.ending, &tail, standing, &self.strategy);
        let (outcome, words) = match &disposition {
            Disposition::Ack => ("acked", String::new()),
            Disposition::Nack(Nack::Retry { after, .. }) => {
                ("retried", format!("again in {}, ", duration_text::show(rounded(*after))))
            }
            Disposition::Nack(Nack::Release) => ("released", String::new()),
            Disposition::Nack(Nack::DeadLetter { reason, .. }) => ("dead_lettered", format!("{reason}, ")),
        };
        let words = format!("{words}{}", ended.ending.describe());
        let settlement = Settlement { receipt, disposition };
        let (outcome, why) = said(settle(&self.provider, settlement, &lease, &self.stop, &self.echo).await, outcome);
        if !why.is_empty() {
            self.echo.note(format_args!("message {} ({words}): {why}", envelope.id));
        }
        self.tell(&envelope, outcome, &words, ended.status, leased_at)?;
        Ok(JobEnd::Handled(outcome))
    }

    /// Waits for the command's end, or ends it; answers the last lines of its stderr too.
    async fn watch(&self, mut handler: Handler, lease: &Lease, envelope: &Envelope) -> (Watched, String) {
        let too_long = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let cause = tokio::select! {
            biased;
            status = handler.wait() => Cause::Itself(status),
            why = lease.lost() => Cause::LeaseLost(why),
            () = self.stop.reached(Stage::Terminating) => Cause::Us(Ending::Stopped),
            () = too_long => Cause::Us(Ending::TimedOut(self.timeout.unwrap_or_default())),
        };
        let watched = match cause {
            Cause::Itself(status) => {
                let ending = match &status {
                    Ok(status) => match (status.code(), status.signal()) {
                        (Some(code), _) => Ending::Exited(code),
                        (None, signal) => Ending::Signaled(signal.unwrap_or_default()),
                    },
                    Err(error) => Ending::Trouble(format!("the end of the command was not seen: {error}")),
                };
                Watched::Ended(Ended { ending, status: status.ok() })
            }
            // Whatever code it then ends with: a program that is told to stop often says 0 and means only that.
            Cause::Us(ending) => Watched::Ended(Ended { ending, status: self.terminate(&mut handler).await }),
            Cause::LeaseLost(why) => Watched::LeaseLost(why, self.terminate(&mut handler).await),
        };
        let (tail, left_behind) = handler.finish().await;
        let became = match left_behind {
            LeftBehind::Nothing => return (watched, tail),
            LeftBehind::Killed => "it was killed",
            LeftBehind::OutOfReach => "it is in another process group and was let run",
        };
        self.echo.note(format_args!(
            "the command for message {} ended and left a process behind that held its output open; {became}",
            envelope.id
        ));
        (watched, tail)
    }

    async fn terminate(&self, handler: &mut Handler) -> Option<ExitStatus> {
        let patience = async {
            tokio::select! {
                () = sleep(TERMINATION_PATIENCE) => {}
                () = self.stop.reached(Stage::Killing) => {}
            }
        };
        handler.terminate(patience).await.ok()
    }

    fn could_not_start(&self, error: &io::Error) -> Result<JobEnd, Failure> {
        let text = format!("cannot run '{}': {error}", self.program.display());
        match error.kind() {
            // It was there when the worker began. Every further message would end the same way.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Err(Failure::failed(text)),
            _ => {
                self.echo.note(format_args!("{text}; the message was given back, trying again soon"));
                Ok(JobEnd::Starved)
            }
        }
    }

    fn tell(
        &self,
        envelope: &Envelope,
        outcome: &'static str,
        words: &str,
        status: Option<ExitStatus>,
        leased_at: Instant,
    ) -> Result<(), Failure> {
        let seconds = (leased_at.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        let row = Row {
            id: envelope.id.to_string(),
            queue: envelope.queue.as_str(),
            outcome,
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            receive_count: envelope.receive_count,
            seconds,
        };
        let words = if words.is_empty() { String::new() } else { format!("{words}, ") };
        self.out.row(&row, format_args!("{} {}: {words}{seconds:.1} s", envelope.id, outcome.replace('_', "-")))
    }
}

/// The word for what became of a settlement that would be `outcome`, and why it is another.
fn said(settled: Settled, outcome: &'static str) -> (&'static str, String) {
    match settled {
        Settled::Done => (outcome, String::new()),
        Settled::Lost(why) => ("lost", why),
        Settled::Unknown(why) => ("unknown", format!("whether it was settled is not known: {why}")),
        Settled::Refused(why) => ("unsettled", format!("it could not be settled and will come back: {why}")),
    }
}

/// To what people read: whole milliseconds, and tenths of what takes longer than a second.
fn rounded(delay: Duration) -> Duration {
    let step = if delay < Duration::from_secs(1) { 1 } else { 100 };
    let steps = delay.as_nanos().div_ceil(step * 1_000_000);
    Duration::from_millis(u64::try_from(steps * step).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_told_shorter_than_it_is_nor_much_longer() {
        let told = |micros| rounded(Duration::from_micros(micros)).as_millis();
        assert_eq!([0, 1, 7_000, 7_001, 999_900, 1_000_001].map(told), [0, 1, 7, 8, 1000, 1100]);
    }
}
