//! The fixture of a test: connections, its own queues, and the common steps of the rules.

use std::fmt;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    DeadLetter, DeadLetterQuery, DeadLetters, Deadline, Feature, Message, MessageId, MessagingError, MessagingService,
    Nack, QueueAdmin, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, Settlement, SharedProvider,
};
use tokio::time::Instant;

use crate::exercise::Settings;
use crate::harness::AnyHarness;

/// Time limit of a call or a wait on a store of ordinary speed.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A lease that outlives its test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Why a test ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The rule is broken.
    Violation(String),
    /// The harness lacks what the test needs.
    NotExercised(String),
}

impl From<MessagingError> for Stop {
    fn from(error: MessagingError) -> Self {
        Self::Violation(format!("a call failed: {error}"))
    }
}

/// The result of a test.
pub(crate) type Check = Result<(), Stop>;

/// Ends the test: the rule is broken.
pub(crate) fn violation<T>(text: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Violation(text.into()))
}

/// Ends the test unless `holds`.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { violation(otherwise()) }
}

/// Ends the test unless both are the same.
pub(crate) fn ensure_same<T: PartialEq + fmt::Debug>(what: &str, seen: T, expected: T) -> Check {
    ensure(seen == expected, || format!("{what} is {seen:?}, not {expected:?}"))
}

/// Ends the test unless the cursor `nonsense` is refused with the text that all stores share.
pub(crate) fn ensure_invalid_cursor(answer: Result<(), MessagingError>) -> Check {
    let expected = MessagingError::invalid_cursor("nonsense").to_string();
    ensure_same("the answer to an invalid cursor", answer.map_err(|error| error.to_string()), Err(expected))
}

/// A deadline for one call.
pub(crate) fn soon() -> Deadline {
    Deadline::after(TIME_LIMIT)
}

/// The fixture of one test.
pub(crate) struct Probe<'a> {
    pub(crate) harness: &'a dyn AnyHarness,
    /// The first worker.
    pub(crate) provider: SharedProvider,
    /// Length of leases that must expire. Long enough for several round trips.
    pub(crate) unit: Duration,
    /// Number of messages in the largest calls.
    pub(crate) rows: usize,
    prefix: String,
    queues: Mutex<Vec<QueueName>>,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(
        harness: &'a dyn AnyHarness,
        provider: SharedProvider,
        settings: &Settings,
        prefix: String,
    ) -> Self {
        Self { harness, provider, unit: settings.unit, rows: settings.rows, prefix, queues: Mutex::new(Vec::new()) }
    }

    /// How long a test waits for an expected event: longer on a slow store.
    pub(crate) fn time_limit(&self) -> Duration {
        TIME_LIMIT.max(self.unit * 10)
    }

    /// Another worker.
    pub(crate) async fn open(&self) -> Result<SharedProvider, Stop> {
        Ok(self.harness.open().await?)
    }

    pub(crate) fn offers(&self, feature: Feature) -> bool {
        self.provider.capabilities().offers(feature)
    }

    /// Makes a queue of this test, which is removed afterwards.
    pub(crate) async fn queue(&self, tag: &str) -> Result<QueueName, Stop> {
        let queue = self.unmade_queue(tag)?;
        self.provider.ensure_queue(&queue, soon()).await?;
        Ok(queue)
    }

    /// The name of a queue of this test that does not exist yet.
    pub(crate) fn unmade_queue(&self, tag: &str) -> Result<QueueName, Stop> {
        let queue = QueueName::new(format!("{}_{tag}", self.prefix))?;
        self.queues.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(queue.clone());
        Ok(queue)
    }

    /// Removes this test's queues through a new connection: the test may have closed the first.
    pub(crate) async fn clean_up(&self) -> Result<(), MessagingError> {
        let queues = std::mem::take(&mut *self.queues.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        if queues.is_empty() {
            return Ok(());
        }
        let provider = self.harness.open().await?;
        for queue in queues {
            provider.delete_queue(&queue, soon()).await?;
        }
        provider.close(soon()).await
    }

    pub(crate) async fn send(&self, queue: &QueueName, message: Message) -> Result<MessageId, Stop> {
        Ok(self.provider.send_message(queue, message, soon()).await?)
    }

    /// Sends bodies in order.
    pub(crate) async fn send_bodies(&self, queue: &QueueName, bodies: &[&str]) -> Result<Vec<MessageId>, Stop> {
        let messages = bodies.iter().map(|body| Message::new(Bytes::copy_from_slice(body.as_bytes()))).collect();
        self.send_all(queue, messages).await
    }

    pub(crate) async fn send_all(&self, queue: &QueueName, messages: Vec<Message>) -> Result<Vec<MessageId>, Stop> {
        let rows = self.provider.send_batch(queue, messages, soon()).await?;
        rows.into_iter().map(|row| row.map_err(Stop::from)).collect()
    }

    /// Options with a lease that expires during the test.
    pub(crate) fn short(&self) -> ReceiveOptions {
        ReceiveOptions::default().visibility(self.unit).max_receive_count(1000)
    }

    /// Options with a lease that outlives the test.
    pub(crate) fn long(&self) -> ReceiveOptions {
        ReceiveOptions::default().visibility(LONG).max_receive_count(1000)
    }

    /// Receives a message, with a wait.
    pub(crate) async fn take(&self, queue: &QueueName, options: &ReceiveOptions) -> Result<QueuedMessage, Stop> {
        self.take_by(&self.provider, queue, options).await
    }

    pub(crate) async fn take_by(
        &self,
        worker: &SharedProvider,
        queue: &QueueName,
        options: &ReceiveOptions,
    ) -> Result<QueuedMessage, Stop> {
        let mut received = self.take_up_to(worker, queue, 1, options).await?;
        match received.pop() {
            Some(message) => Ok(message),
            None => violation(format!("nothing could be received within {:?}", self.time_limit())),
        }
    }

    /// Receives `count` messages, with waits. A store may return fewer than requested at a time.
    pub(crate) async fn take_all(
        &self,
        queue: &QueueName,
        count: usize,
        options: &ReceiveOptions,
    ) -> Result<Vec<QueuedMessage>, Stop> {
        let received = self.take_up_to(&self.provider, queue, count, options).await?;
        if received.len() < count {
            let (came, limit) = (received.len(), self.time_limit());
            return violation(format!("only {came} of {count} messages came, and no other within {limit:?}"));
        }
        Ok(received)
    }

    async fn take_up_to(
        &self,
        worker: &SharedProvider,
        queue: &QueueName,
        count: usize,
        options: &ReceiveOptions,
    ) -> Result<Vec<QueuedMessage>, Stop> {
        let mut end = Instant::now() + self.time_limit();
        let mut received = Vec::new();
        while received.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let mut options = options.clone().wait(left);
            options.max = count - received.len();
            let more = worker.receive_messages(queue, &options, soon()).await?;
            if more.is_empty() {
                // A store that does not wait is polled with a pause.
                tokio::time::sleep(self.unit / 10).await;
            } else {
                // A slow store gets more time as long as it delivers something.
                end = Instant::now() + self.time_limit();
            }
            received.extend(more);
        }
        Ok(received)
    }

    /// Ends the test if a message can be received now, or within the next short time.
    pub(crate) async fn nothing(&self, queue: &QueueName, why: &str) -> Check {
        self.nothing_within(queue, self.unit / 4, why).await
    }

    pub(crate) async fn nothing_within(&self, queue: &QueueName, wait: Duration, why: &str) -> Check {
        let options = self.long().wait(wait);
        match self.provider.receive_messages(queue, &options, soon()).await?.pop() {
            None => Ok(()),
            Some(message) => violation(format!("message {} was delivered although {why}", message.id())),
        }
    }

    pub(crate) async fn ack(&self, receipt: impl Into<ReceiptHandle>) -> Result<(), MessagingError> {
        self.settle(Settlement::ack(receipt)).await
    }

    pub(crate) async fn nack(&self, receipt: impl Into<ReceiptHandle>, nack: Nack) -> Result<(), MessagingError> {
        self.settle(Settlement::nack(receipt, nack)).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), MessagingError> {
        let queue = settlement.receipt.queue().clone();
        match settlement.disposition {
            postrider_core::Disposition::Ack => self.provider.ack_message(&queue, settlement.receipt, soon()).await,
            postrider_core::Disposition::Nack(nack) => {
                self.provider.nack_message(&queue, settlement.receipt, nack, soon()).await
            }
        }
    }

    /// Repeats a query until its answer is the expected one; the failure names the last answer.
    pub(crate) async fn eventually<T, F>(
        &self,
        mut ask: impl FnMut() -> F,
        is_right: impl Fn(&T) -> bool,
    ) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, MessagingError>>,
        T: fmt::Debug,
    {
        let end = Instant::now() + self.time_limit() * 4;
        loop {
            let answer = ask().await?;
            if is_right(&answer) {
                return Ok(answer);
            }
            if Instant::now() >= end {
                return violation(format!("the answer is still {answer:?}"));
            }
            tokio::time::sleep(self.unit / 4).await;
        }
    }

    /// Every dead letter of a queue.
    pub(crate) async fn dead_letters(&self, queue: &QueueName) -> Result<Vec<DeadLetter>, Stop> {
        list_dead_letters(&self.provider, queue).await.map_err(Stop::from)
    }

    /// Receives until a queue has `count` dead letters: reading is what dead-letters a message.
    pub(crate) async fn read_until_dead(
        &self,
        queue: &QueueName,
        count: usize,
        options: &ReceiveOptions,
    ) -> Result<Vec<DeadLetter>, Stop> {
        let end = Instant::now() + self.time_limit();
        let options = options.clone().wait(self.unit / 4);
        loop {
            if let Some(message) = self.provider.receive_messages(queue, &options, soon()).await?.pop() {
                return violation(format!(
                    "message {} was delivered although it had to be dead-lettered unread",
                    message.id()
                ));
            }
            let letters = self.dead_letters(queue).await?;
            if letters.len() >= count || Instant::now() >= end {
                ensure_same("the number of dead letters", letters.len(), count)?;
                return Ok(letters);
            }
        }
    }
}

/// Every dead letter of a queue, page by page.
pub(crate) async fn list_dead_letters<P: DeadLetters>(
    provider: &P,
    queue: &QueueName,
) -> Result<Vec<DeadLetter>, MessagingError> {
    let mut letters = Vec::new();
    let mut query = DeadLetterQuery::default();
    loop {
        let page = provider.list_dead_letters(queue, &query, soon()).await?;
        letters.extend(page.letters);
        if page.next.is_none() {
            return Ok(letters);
        }
        query.after = page.next;
    }
}

/// Ends the test unless a settle or extend was refused because its lease is over.
pub(crate) fn ensure_expired<T>(what: &str, result: Result<T, MessagingError>) -> Check {
    match result {
        Err(MessagingError::VisibilityExpired { .. }) => Ok(()),
        Err(other) => violation(format!("{what} answered '{other}', not VisibilityExpired")),
        Ok(_) => violation(format!("{what} was accepted")),
    }
}
