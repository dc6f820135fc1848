//! A worker: receives, handles, settles, and tells each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postrider::{
    DeadLetterReason, Deadline, MessageId, MessagingService, Nack, QueuedMessage, RetryStrategy, duration_text,
};

use super::stage::{Stage, check};
use crate::failure::Failure;

const VISIBILITY: Duration = Duration::from_secs(30);
/// Everything that is due comes at once, so what fails is told before its neighbours and comes back after them.
const BATCH: usize = 10;
const ATTEMPTS: u32 = 3;

/// A message that has come to its end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) body: String,
    pub(super) attempts: u32,
    pub(super) died: bool,
}

/// What a worker remembers of a failure, to see that the retry comes when it should.
struct Failed {
    at: Instant,
    after: Duration,
    receive_count: u32,
}

/// Handles messages until `ends` of them are done or dead. The handler is given the body and the number of the attempt.
pub(super) async fn work(
    stage: &mut Stage,
    ends: usize,
    handler: impl Fn(&str, u32) -> Result<(), &'static str>,
) -> Result<Vec<Ended>, Failure> {
    let mut worker = Worker {
        strategy: RetryStrategy::exponential(stage.pace.retry, 2.0, VISIBILITY).with_max_attempts(ATTEMPTS),
        failed: HashMap::new(),
        ended: Vec::new(),
    };
    while worker.ended.len() < ends {
        for message in stage.receive(&stage.first, BATCH, VISIBILITY).await? {
            worker.handle(stage, message, &handler).await?;
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
        stage: &mut Stage,
        message: QueuedMessage,
        handler: &impl Fn(&str, u32) -> Result<(), &'static str>,
    ) -> Result<(), Failure> {
        let envelope = &message.envelope;
        let (id, receive_count, attempts) = (envelope.id, envelope.receive_count, envelope.attempts_count + 1);
        let body = String::from_utf8_lossy(&message.message).into_owned();
        if let Some(earlier) = self.failed.remove(&id) {
            check(earlier.at.elapsed() >= earlier.after, format!("'{body}' came back too early"))?;
            check(receive_count == earlier.receive_count + 1, format!("'{body}' was counted wrongly"))?;
        }
        // Before the settlement: the delay cannot have begun earlier.
        let at = Instant::now();
        // The strategy has no limit of time, so the time since the first attempt does not matter.
        let delay = |attempts| self.strategy.next_delay(attempts, Duration::ZERO, 0.0);
        let (nack, text) = match handler(&body, attempts).map_err(|error| (error, delay(attempts))) {
            Ok(()) => (None, format!("{body}: handled{}", ordinal(attempts))),
            Err((error, Some(after))) => {
                self.failed.insert(id, Failed { at, after, receive_count });
                let text = format!("{body}: {error}; comes back in {}", duration_text::show(after));
                (Some(Nack::retry_after(after).with_error(error)), text)
            }
            Err((error, None)) => {
                let text = format!("{body}: {error}{}; no more: to the dead letters", ordinal(attempts));
                (Some(Nack::dead_letter(DeadLetterReason::RETRIES_EXHAUSTED).with_error(error)), text)
            }
        };
        let died = matches!(nack, Some(Nack::DeadLetter { .. }));
        if nack.is_none() || died {
            self.ended.push(Ended { body, attempts, died });
        }
        match nack {
            None => stage.first.ack_message(&stage.queue, message, Deadline::default()).await?,
            Some(nack) => stage.first.nack_message(&stage.queue, message, nack, Deadline::default()).await?,
        }
        stage.line(text).await
    }
}

fn ordinal(attempt: u32) -> String {
    if attempt == 1 { String::new() } else { format!(", at attempt {attempt}") }
}
