//! Prints a row for each message once the store has its outcome, and warnings at once.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider::subscriber::{Ended, Observer, Outcome};
use postrider::{Disposition, Envelope, MessageId, MessagingError, Nack, QueueName};
use serde::Serialize;
use tokio::time::Instant;

use crate::command::{Echo, Ending, RowPermit, Rows, Stop, Written};
use crate::output::Output;
use crate::text;

/// Records messages and prints their outcomes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Locked only for a lookup.
    begun: Mutex<HashMap<Delivered, Begun>>,
    rows: Rows<Row>,
    echo: Echo,
    stop: Stop,
}

/// A message and the number of its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Delivered(MessageId, u32);

/// A message whose command was started.
#[derive(Debug)]
struct Begun {
    queue: QueueName,
    at: Instant,
    ending: Option<Ending>,
    status: Option<ExitStatus>,
    permit: RowPermit,
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

impl Journal {
    /// Starts the journal. With `draws`, stdout is the terminal that stderr draws on.
    pub(super) fn start(out: Output, workers: usize, draws: bool, echo: Echo, stop: Stop) -> (Self, Written) {
        let (rows, written) = Rows::start(out, workers, draws.then(|| echo.clone()), stop.clone());
        let inner = Inner { begun: Mutex::default(), rows, echo, stop };
        (Self(Arc::new(inner)), written)
    }

    /// Waits for the permit of a row.
    pub(super) async fn row_permit(&self) -> Option<RowPermit> {
        self.0.rows.permit().await
    }

    /// Records the start of a message's command.
    pub(super) fn begin(&self, envelope: &Envelope, permit: RowPermit) -> Delivered {
        let delivered = Delivered(envelope.id, envelope.receive_count);
        let begun = Begun { queue: envelope.queue.clone(), at: Instant::now(), ending: None, status: None, permit };
        self.begun().insert(delivered, begun);
        delivered
    }

    /// Records the end of a message's command.
    pub(super) fn end(&self, delivered: Delivered, ending: Ending, status: Option<ExitStatus>) {
        if let Some(begun) = self.begun().get_mut(&delivered) {
            (begun.ending, begun.status) = (Some(ending), status);
        }
    }

    /// Reports messages without an outcome as unsettled, and waits until all rows are written, or shortly after a forced
    /// stop.
    pub(super) async fn finish(&self, written: Written) {
        let left: Vec<_> = self.begun().drain().collect();
        for (delivered, begun) in left {
            let words = describe(begun.ending.as_ref());
            self.0.echo.warn(format_args!(
                "message {} ({words}): it was not settled in time, so it is delivered again when its lease ends",
                delivered.0
            ));
            let took = begun.at.elapsed();
            self.write(delivered, begun, "unsettled", words, took);
        }
        self.0.rows.finish(written).await;
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
        self.0.rows.write(row, text, begun.permit);
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Delivered, Begun>> {
        self.0.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Journal {
    fn ended(&self, message: Ended) {
        let delivered = Delivered(message.id, message.receive_count);
        // Messages whose command was never started are only counted.
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
                echo.warn(format_args!("the command for message {id} was killed: it did not stop in time"));
                ("abandoned", words)
            }
            Outcome::Unknown => {
                echo.warn(format_args!("message {id} ({words}): it is unknown whether it was settled"));
                ("unknown", words)
            }
            Outcome::Refused => {
                echo.warn(format_args!("message {id} ({words}): it could not be settled and will be delivered again"));
                ("unsettled", words)
            }
            _ if disposition.is_some() => {
                echo.warn(format_args!("message {id} ({words}): {}", expired()));
                ("lost", words)
            }
            _ => {
                echo.warn(format_args!("the command for message {id} was stopped: {}", expired()));
                ("lost", "its lease was lost".into())
            }
        };
        self.write(delivered, begun, outcome, words, took);
    }

    fn fetch_failed(&self, error: &MessagingError) {
        if !error.is_retryable() && !matches!(error, MessagingError::OutcomeUnknown { .. }) {
            self.0.stop.fail(error.clone().into());
        }
    }
}

/// The disposition and the ending as text.
fn words(disposition: Option<&Disposition>, ending: Option<&Ending>) -> String {
    let ending = describe(ending);
    match disposition {
        Some(Disposition::Nack(Nack::Retry { after, .. })) => {
            format!("again in {}, {ending}", text::delay(*after))
        }
        Some(Disposition::Nack(Nack::DeadLetter { reason, .. })) => format!("{reason}, {ending}"),
        Some(Disposition::Ack | Disposition::Nack(Nack::Release)) | None => ending,
    }
}

fn describe(ending: Option<&Ending>) -> String {
    // A dropped handler recorded no ending.
    ending.unwrap_or(&Ending::Stopped).describe()
}
