//! What every act plays on.

use std::time::Duration;

use postrider::{
    Deadline, Feature, Message, MessageId, MessagingProvider, MessagingService, QueueAdmin, QueueName, QueuedMessage,
    ReceiveOptions,
};

use super::narrator::Narrator;
use crate::failure::Failure;

/// How long a message may take to come that is due: far beyond what it takes, so that only a fault meets it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two workers, a queue, and the one who tells.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) narrator: Narrator,
    pub(super) pace: Pace,
    /// The first worker's connection.
    pub(super) first: MessagingProvider,
    /// The second worker's.
    pub(super) second: MessagingProvider,
    pub(super) queue: QueueName,
}

/// How long the things take that take time.
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

impl Stage {
    pub(super) async fn step(&mut self, step: &'static str, title: &'static str) -> Result<(), Failure> {
        self.narrator.step(step, title).await
    }

    pub(super) async fn line(&mut self, text: impl Into<String>) -> Result<(), Failure> {
        self.narrator.line(text).await
    }

    pub(super) async fn send(&self, message: Message) -> Result<MessageId, Failure> {
        Ok(self.first.send_message(&self.queue, message, Deadline::default()).await?)
    }

    /// The next messages for a worker, at most `max`, leased for `visibility`.
    pub(super) async fn receive(
        &self,
        worker: &MessagingProvider,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<QueuedMessage>, Failure> {
        let options = ReceiveOptions::batch(max).visibility(visibility).wait(PATIENCE).max_receive_count(10);
        let received = worker.receive_messages(&self.queue, &options, Deadline::after(2 * PATIENCE)).await?;
        check(!received.is_empty(), format!("no message came within {PATIENCE:?}"))?;
        Ok(received)
    }

    /// Ready, in flight, delayed and dead messages.
    pub(super) async fn counts(&self) -> Result<[u64; 4], Failure> {
        let stats = self.first.queue_stats(&self.queue, Deadline::default()).await?;
        // What a store cannot count it cannot be blamed for.
        Ok([stats.ready, stats.in_flight, stats.delayed, stats.dead].map(|count| count.value().unwrap_or_default()))
    }

    /// Whether the store can do it; tells when it cannot.
    pub(super) async fn offers(&mut self, feature: Feature) -> Result<bool, Failure> {
        match self.first.capabilities().require(feature) {
            Ok(()) => Ok(true),
            Err(refused) => self.line(format!("Skipped: {refused}")).await.map(|()| false),
        }
    }
}

/// Ends the demo unless what is told is true.
pub(super) fn check(happened: bool, otherwise: impl Into<String>) -> Result<(), Failure> {
    if happened {
        return Ok(());
    }
    Err(Failure::failed(format!("the demo did not go as it should: {}", otherwise.into())))
}
