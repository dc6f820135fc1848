//! What is told of messages: a line for each once the store has it, and trouble as it comes.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider::subscriber::{Ended, Observer, Outcome};
use postrider::{Disposition, Envelope, MessageId, MessagingError, Nack, QueueName, duration_text};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::echo::Echo;
use super::ending::Ending;
use super::stop::Stop;
use crate::output::Output;

/// Lines that may wait for whoever reads stdout, besides one for each worker. No command is begun without a place for its
/// line.
const ROOM: usize = 1000;
/// How long lines may still take to be written when everything shall end at once.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// What lasts is told again after that long.
const REMIND: Duration = Duration::from_secs(10);

/// Writes what became of messages. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Held to look something up.
    begun: Mutex<HashMap<Delivered, Begun>>,
    room: Arc<Semaphore>,
    /// Without a bound of its own: there is a place for each line. `None` ends it.
    lines: mpsc::UnboundedSender<Option<Line>>,
    cannot_fetch: Trouble,
    cannot_settle: Trouble,
    echo: Echo,
    stop: Stop,
}

/// Which delivery of which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Delivered(MessageId, u32);

/// A message whose command was begun.
#[derive(Debug)]
struct Begun {
    queue: QueueName,
    at: Instant,
    ending: Option<Ending>,
    status: Option<ExitStatus>,
    place: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Line {
    row: Row,
    text: String,
    _place: OwnedSemaphorePermit,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    queue: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    receive_count: u32,
    seconds: f64,
}

/// Completes when every line has been written.
#[derive(Debug)]
pub(super) struct Written(oneshot::Receiver<()>);

impl Journal {
    /// With `draws`, stdout is the terminal that stderr draws on.
    pub(super) fn start(out: Output, workers: usize, draws: bool, echo: Echo, stop: Stop) -> (Self, Written) {
        let (lines, waiting) = mpsc::unbounded_channel();
        let (done, is_done) = oneshot::channel();
        let (to, failing) = (echo.clone(), stop.clone());
        // A thread of its own: whoever reads stdout may take as long as they like.
        std::thread::spawn(move || {
            write(waiting, out, draws.then_some(to), &failing);
            let _ = done.send(());
        });
        let inner = Inner {
            begun: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM + workers)),
            lines,
            cannot_fetch: Trouble::default(),
            cannot_settle: Trouble::default(),
            echo,
            stop,
        };
        (Self(Arc::new(inner)), Written(is_done))
    }

    /// Waits for the place of a line.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.0.room.clone().acquire_owned().await.ok()
    }

    /// A command is begun for this message.
    pub(super) fn begin(&self, envelope: &Envelope, place: OwnedSemaphorePermit) -> Delivered {
        let delivered = Delivered(envelope.id, envelope.receive_count);
        let begun = Begun { queue: envelope.queue.clone(), at: Instant::now(), ending: None, status: None, place };
        self.begun().insert(delivered, begun);
        delivered
    }

    /// It ended so.
    pub(super) fn end(&self, delivered: Delivered, ending: Ending, status: Option<ExitStatus>) {
        if let Some(begun) = self.begun().get_mut(&delivered) {
            (begun.ending, begun.status) = (Some(ending), status);
        }
    }

    /// Tells what no outcome came of, and waits until everything is written or somebody has no patience for that.
    pub(super) async fn finish(&self, written: Written) {
        let left: Vec<_> = self.begun().drain().collect();
        for (delivered, begun) in left {
            let words = describe(begun.ending.as_ref());
            self.0.echo.note(format_args!(
                "message {} ({words}): the store did not take that in time, so the message will come back",
                delivered.0
            ));
            let took = begun.at.elapsed();
            self.write(delivered, begun, "unsettled", words, took);
        }
        let _ = self.0.lines.send(None);
        let out_of_patience = async {
            self.0.stop.killing().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        };
        tokio::select! {
            _ = written.0 => {}
            () = out_of_patience => {}
        }
    }

    fn write(&self, delivered: Delivered, begun: Begun, outcome: &'static str, words: String, took: Duration) {
        let Delivered(id, receive_count) = delivered;
        let seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        let text = format!("{id} {}: {words}, {seconds:.1} s", outcome.replace('_', "-"));
        let row = Row {
            id: id.to_string(),
            queue: begun.queue.to_string(),
            outcome,
            exit_code: begun.status.and_then(|status| status.code()),
            signal: begun.status.and_then(|status| status.signal()),
            receive_count,
            seconds,
        };
        // Its reader ends only after `finish`.
        let _ = self.0.lines.send(Some(Line { row, text, _place: begun.place }));
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Delivered, Begun>> {
        self.0.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(mut waiting: mpsc::UnboundedReceiver<Option<Line>>, out: Output, terminal: Option<Echo>, stop: &Stop) {
    while let Some(Some(Line { row, text, _place })) = waiting.blocking_recv() {
        match &terminal {
            Some(terminal) => terminal.row(text),
            None => {
                if let Err(failure) = out.row(&row, text) {
                    stop.fail(failure);
                }
            }
        }
    }
}

impl Observer for Journal {
    fn ended(&self, message: Ended) {
        let delivered = Delivered(message.id, message.receive_count);
        // Messages whose command was never begun are only counted.
        let Some(begun) = self.begun().remove(&delivered) else { return };
        let took = message.since_received();
        let Ended { id, queue, outcome, disposition, .. } = message;
        let words = words(disposition.as_ref(), begun.ending.as_ref());
        let expired = || MessagingError::VisibilityExpired { queue: queue.clone(), id };
        let echo = &self.0.echo;
        let (outcome, words) = match outcome {
            Outcome::Acked => ("acked", words),
            Outcome::Retried => ("retried", words),
            Outcome::Dead => ("dead_lettered", words),
            Outcome::Released => ("released", words),
            Outcome::Abandoned => {
                echo.note(format_args!("the command for message {id} was killed: it did not stop in time"));
                ("abandoned", words)
            }
            Outcome::Unknown => {
                echo.note(format_args!("message {id} ({words}): whether it was settled is not known"));
                ("unknown", words)
            }
            Outcome::Refused => {
                echo.note(format_args!("message {id} ({words}): it could not be settled and will come back"));
                ("unsettled", words)
            }
            _ if disposition.is_some() => {
                echo.note(format_args!("message {id} ({words}): {}", expired()));
                ("lost", words)
            }
            _ => {
                echo.note(format_args!("the command for message {id} was stopped: {}", expired()));
                ("lost", "its lease was lost".into())
            }
        };
        self.write(delivered, begun, outcome, words, took);
    }

    fn fetched(&self, _: usize) {
        if self.0.cannot_fetch.is_over() {
            self.0.echo.note("the store answers again");
        }
    }

    fn fetch_failed(&self, error: &MessagingError) {
        if !error.is_retryable() && !matches!(error, MessagingError::OutcomeUnknown { .. }) {
            return self.0.stop.fail(error.clone().into());
        }
        if self.0.cannot_fetch.is_news() {
            self.0.echo.note(format_args!("cannot receive, trying again soon: {error}"));
        }
    }

    fn settle_failed(&self, error: &MessagingError) {
        if self.0.cannot_settle.is_news() {
            self.0.echo.note(format_args!("cannot settle messages yet, trying again soon: {error}"));
        }
    }
}

/// What was decided, and why.
fn words(disposition: Option<&Disposition>, ending: Option<&Ending>) -> String {
    let ending = describe(ending);
    match disposition {
        Some(Disposition::Nack(Nack::Retry { after, .. })) => {
            format!("again in {}, {ending}", duration_text::show(rounded(*after)))
        }
        Some(Disposition::Nack(Nack::DeadLetter { reason, .. })) => format!("{reason}, {ending}"),
        Some(Disposition::Ack | Disposition::Nack(Nack::Release)) | None => ending,
    }
}

fn describe(ending: Option<&Ending>) -> String {
    // A handler that was dropped did not come to say how its command ended.
    ending.unwrap_or(&Ending::Stopped).describe()
}

/// To what people read: whole milliseconds, and tenths of what takes longer than a second.
fn rounded(delay: Duration) -> Duration {
    let step = if delay < Duration::from_secs(1) { 1 } else { 100 };
    let steps = delay.as_nanos().div_ceil(step * 1_000_000);
    Duration::from_millis(u64::try_from(steps * step).unwrap_or(u64::MAX))
}

/// Something that goes wrong again and again, and need not be told every time.
#[derive(Debug, Default)]
struct Trouble(Mutex<Option<Instant>>);

impl Trouble {
    fn is_news(&self) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_none_or(|at| at.elapsed() >= REMIND);
        if is_news {
            *told = Some(Instant::now());
        }
        is_news
    }

    /// It works again. Answers whether it had not.
    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_told_shorter_than_it_is_nor_much_longer() {
        let told = |micros| rounded(Duration::from_micros(micros)).as_millis();
        assert_eq!([0, 1, 7_000, 7_001, 999_900, 1_000_001].map(told), [0, 1, 7, 8, 1000, 1100]);
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_that_lasts_is_told_now_and_then() {
        let trouble = Trouble::default();
        assert!(!trouble.is_over());
        assert!(trouble.is_news() && !trouble.is_news());
        tokio::time::advance(REMIND).await;
        assert!(trouble.is_news() && !trouble.is_news());
        assert!(trouble.is_over() && !trouble.is_over());
        assert!(trouble.is_news());
    }
}
