//! The state that the steps of the tour share.

use std::time::Duration;

use postrider::{
    Deadline, Feature, Message, MessageId, MessagingProvider, MessagingService, QueueAdmin, QueueName, QueuedMessage,
    ReceiveOptions,
};

use super::transcript::Transcript;
use crate::failure::Failure;

/// Upper bound of a wait for a due message; only a fault takes that long.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Two workers, a queue and the output.
#[derive(Debug)]
pub(super) struct Tour {
    pub(super) transcript: Transcript,
    pub(super) pace: Pace,
    /// The first worker's connection.
    pub(super) first: MessagingProvider,
    /// The second worker's.
    pub(super) second: MessagingProvider,
    pub(super) queue: QueueName,
}

/// Delays of the tour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Before the second attempt; before the third it is twice as long.
    pub(super) retry: Duration,
    pub(super) delay: Duration,
    /// The lease of the worker that dies.
    pub(super) lease: Duration,
}

impl Pace {
    pub(super) fn readable() -> Self {
        Self { retry: Duration::from_secs(1), delay: Duration::from_secs(3), lease: Duration::from_secs(4) }
    }

    pub(super) fn fast() -> Self {
        let [retry, delay, lease] = [50, 200, 300].map(Duration::from_millis);
        Self { retry, delay, lease }
    }
}

impl Tour {
    pub(super) async fn step(&mut self, step: &'static str, title: &'static str) -> Result<(), Failure> {
        self.transcript.step(step, title).await
    }

    pub(super) async fn line(&mut self, text: impl Into<String>) -> Result<(), Failure> {
        self.transcript.line(text).await
    }

    pub(super) async fn send(&self, message: Message) -> Result<MessageId, Failure> {
        Ok(self.first.send_message(&self.queue, message, Deadline::default()).await?)
    }

    /// Receives at least one and at most `max` messages, leased for `visibility`.
    pub(super) async fn receive(
        &self,
        worker: &MessagingProvider,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<QueuedMessage>, Failure> {
        let options = ReceiveOptions::batch(max).visibility(visibility).wait(RECEIVE_TIMEOUT).max_receive_count(10);
        let received = worker.receive_messages(&self.queue, &options, Deadline::after(2 * RECEIVE_TIMEOUT)).await?;
        check(!received.is_empty(), format!("no message was received within {RECEIVE_TIMEOUT:?}"))?;
        Ok(received)
    }

    /// Ready, in flight, delayed and dead messages.
    pub(super) async fn counts(&self) -> Result<[u64; 4], Failure> {
        let stats = self.first.queue_stats(&self.queue, Deadline::default()).await?;
        // A count that the store cannot give is taken as zero.
        Ok([stats.ready, stats.in_flight, stats.delayed, stats.dead].map(|count| count.value().unwrap_or_default()))
    }

    /// Whether the store has the feature; prints a line if not.
    pub(super) async fn offers(&mut self, feature: Feature) -> Result<bool, Failure> {
        match self.first.capabilities().require(feature) {
            Ok(()) => Ok(true),
            Err(refused) => self.line(format!("Skipped: {refused}")).await.map(|()| false),
        }
    }
}

/// Fails the demo with `why` unless `holds`.
pub(super) fn check(holds: bool, why: impl Into<String>) -> Result<(), Failure> {
    if holds {
        return Ok(());
    }
    Err(Failure::failed(format!("the demo failed: {}", why.into())))
}
