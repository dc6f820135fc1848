//! The worker of the tour: receives, handles, settles, and prints a line for each message.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postrider::{
    DeadLetterReason, Deadline, MessageId, MessagingService, Nack, QueuedMessage, RetryStrategy, duration_text,
};

use super::tour::{Tour, check};
use crate::failure::Failure;

const VISIBILITY: Duration = Duration::from_secs(30);
/// Large enough for all due messages: a failed message is then retried after the others of its batch.
const BATCH: usize = 10;
const ATTEMPTS: u32 = 3;

/// A message that is done or dead.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) body: String,
    pub(super) attempts: u32,
    pub(super) died: bool,
}

/// A failed attempt, to check the time of its retry.
struct Failed {
    at: Instant,
    after: Duration,
    receive_count: u32,
}

/// Handles messages until `ends` of them are done or dead. The handler takes the body and the attempt number.
pub(super) async fn work(
    tour: &mut Tour,
    ends: usize,
    handler: impl Fn(&str, u32) -> Result<(), &'static str>,
) -> Result<Vec<Ended>, Failure> {
    let mut worker = Worker {
        strategy: RetryStrategy::exponential(tour.pace.retry, 2.0, VISIBILITY).with_max_attempts(ATTEMPTS),
        failed: HashMap::new(),
        ended: Vec::new(),
    };
    while worker.ended.len() < ends {
        for message in tour.receive(&tour.first, BATCH, VISIBILITY).await? {
            worker.handle(tour, message, &handler).await?;
        }
    }
    Ok(worker.ended)
}

struct Worker {
    strategy: RetryStrategy,
    failed: HashMap<MessageId, Failed>,
    ended: Vec<Ended>,
}

impl Worker {
    async fn handle(
        &mut self,
        tour: &mut Tour,
        message: QueuedMessage,
        handler: &impl Fn(&str, u32) -> Result<(), &'static str>,
    ) -> Result<(), Failure> {
        let envelope = &message.envelope;
        let (id, receive_count, attempts) = (envelope.id, envelope.receive_count, envelope.attempts_count + 1);
        let body = String::from_utf8_lossy(&message.message).into_owned();
        if let Some(earlier) = self.failed.remove(&id) {
            check(earlier.at.elapsed() >= earlier.after, format!("'{body}' was retried too early"))?;
            check(receive_count == earlier.receive_count + 1, format!("'{body}' has the wrong delivery count"))?;
        }
        // Taken before the settlement, because the delay cannot begin earlier.
        let at = Instant::now();
        // The strategy has no time limit, so the time since the first attempt does not matter.
        let delay = |attempts| self.strategy.next_delay(attempts, Duration::ZERO, 0.0);
        let (nack, text) = match handler(&body, attempts).map_err(|error| (error, delay(attempts))) {
            Ok(()) => (None, format!("{body}: handled{}", ordinal(attempts))),
            Err((error, Some(after))) => {
                self.failed.insert(id, Failed { at, after, receive_count });
                let text = format!("{body}: {error}; retried in {}", duration_text::show(after));
                (Some(Nack::retry_after(after).with_error(error)), text)
            }
            Err((error, None)) => {
                let text = format!("{body}: {error}{}; no attempt left: dead-lettered", ordinal(attempts));
                (Some(Nack::dead_letter(DeadLetterReason::RETRIES_EXHAUSTED).with_error(error)), text)
            }
        };
        let died = matches!(nack, Some(Nack::DeadLetter { .. }));
        if nack.is_none() || died {
            self.ended.push(Ended { body, attempts, died });
        }
        match nack {
            None => tour.first.ack_message(&tour.queue, message, Deadline::default()).await?,
            Some(nack) => tour.first.nack_message(&tour.queue, message, nack, Deadline::default()).await?,
        }
        tour.line(text).await
    }
}

fn ordinal(attempt: u32) -> String {
    if attempt == 1 { String::new() } else { format!(", at attempt {attempt}") }
}
