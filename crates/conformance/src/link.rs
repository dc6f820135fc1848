//! A simulated network link between a worker and its store that can be cut and can lose answers.
//!
//! Calls wait while the link is down, as with a provider that reconnects by itself, and a lost answer leaves the caller
//! with an unknown outcome. With a fixed seed the same answers are lost in every run.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

/// A link that can be cut. Clones share the link.
#[derive(Debug, Clone)]
pub struct Link {
    up: watch::Sender<bool>,
    rng: Arc<Mutex<StdRng>>,
    lost_answers: f64,
    /// What a call does while the link is cut.
    while_cut: WhileCut,
    /// The round-trip time of a call.
    latency: Duration,
}

/// What a call does while the link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhileCut {
    Waits,
    Fails,
}

impl Link {
    /// A link that loses nothing until it is cut.
    pub fn new() -> Self {
        Self::losing(0.0, 0)
    }

    /// A link that loses this fraction of all answers to sends and settles, by a generator seeded with `seed`.
    pub fn losing(lost_answers: f64, seed: u64) -> Self {
        let rng = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        Self { up: watch::Sender::new(true), rng, lost_answers, while_cut: WhileCut::Waits, latency: Duration::ZERO }
    }

    /// A link on which calls fail at once while it is cut.
    pub fn failing_while_cut() -> Self {
        Self { while_cut: WhileCut::Fails, ..Self::new() }
    }

    /// A link on which every call takes `latency`.
    pub fn slow(latency: Duration) -> Self {
        Self { latency, ..Self::new() }
    }

    /// Cuts the link for `time`.
    pub async fn cut(&self, time: Duration) {
        self.up.send_replace(false);
        tokio::time::sleep(time).await;
        self.up.send_replace(true);
    }

    fn loses_answer(&self) -> bool {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        self.lost_answers > 0.0 && rng.random_bool(self.lost_answers)
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

/// A provider behind a [`Link`].
#[derive(Debug, Clone)]
pub struct LinkedProvider<P> {
    inner: P,
    link: Link,
    capabilities: Capabilities,
}

impl<P: MessagingService> LinkedProvider<P> {
    /// Puts the link between the caller and `inner`.
    pub fn new(inner: P, link: Link) -> Self {
        let recovery = Support::emulated(match link.while_cut {
            WhileCut::Waits => "calls wait until the link is up again",
            WhileCut::Fails => "calls fail until the link is up again",
        });
        let capabilities = inner.capabilities().clone().with(Feature::Recovery, recovery);
        Self { inner, link, capabilities }
    }

    async fn connected(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let mut up = self.link.up.subscribe();
        let deadline = match self.link.while_cut {
            WhileCut::Waits => deadline,
            WhileCut::Fails => Deadline::after(Duration::ZERO),
        };
        match deadline.limit(up.wait_for(|up| *up)).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(_)) | None => Err(MessagingError::Connection {
                provider: self.inner.provider_name(),
                detail: "the link is down".into(),
                source: None,
            }),
        }
    }

    /// Waits half the latency: one direction.
    async fn travel(&self) {
        // A sleep of zero would still take a tick of the timer.
        if !self.link.latency.is_zero() {
            tokio::time::sleep(self.link.latency / 2).await;
        }
    }

    async fn call<T>(
        &self,
        deadline: Deadline,
        call: impl Future<Output = Result<T, MessagingError>>,
    ) -> Result<T, MessagingError> {
        self.connected(deadline).await?;
        self.travel().await;
        let answer = call.await;
        self.travel().await;
        answer
    }

    /// Makes a call that changes the store; its answer can be lost.
    async fn change<T>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        call: impl Future<Output = Result<T, MessagingError>>,
    ) -> Result<T, MessagingError> {
        let answer = self.call(deadline, call).await?;
        if self.link.loses_answer() {
            return Err(MessagingError::OutcomeUnknown { operation, ids, source: None });
        }
        Ok(answer)
    }
}

#[async_trait]
impl<P: MessagingService> MessagingService for LinkedProvider<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.call(deadline, self.inner.ensure_queue(queue, deadline)).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let ids = messages.iter().map(|message| message.id).collect();
        self.change("send", ids, deadline, self.inner.send_batch(queue, messages, deadline)).await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.call(deadline, self.inner.receive_messages(queue, options, deadline)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let ids = settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        self.change("settle", ids, deadline, self.inner.settle(settlements, deadline)).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let call = self.inner.extend_visibility(queue, receipt, extension, deadline);
        self.change("extend", vec![receipt.message_id()], deadline, call).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.call(deadline, self.inner.receive_by_id(queue, id, options, deadline)).await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.call(deadline, self.inner.subscribe(queue, deadline)).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.call(deadline, self.inner.health_check(deadline)).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}

crate::forward_admin!(LinkedProvider);
crate::forward_dead_letters!(LinkedProvider);
