//! A store that fails every third call: before it is carried out, or by a lost answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider::provider::*;
use postrider::*;

#[derive(Debug)]
pub(crate) struct Flaky<P> {
    inner: P,
    calls: AtomicUsize,
}

impl<P: MessagingService> Flaky<P> {
    pub(crate) fn new(inner: P) -> Self {
        Self { inner, calls: AtomicUsize::new(0) }
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        work: impl Future<Output = Result<T, MessagingError>>,
    ) -> Result<T, MessagingError> {
        match self.calls.fetch_add(1, Ordering::SeqCst) % 12 {
            2 | 5 | 8 => {
                Err(MessagingError::Connection { provider: "flaky", detail: "every third call".into(), source: None })
            }
            11 => {
                work.await?;
                Err(MessagingError::OutcomeUnknown { operation, ids, source: None })
            }
            _ => work.await,
        }
    }
}

fn ids(settlements: &[Settlement]) -> Vec<MessageId> {
    settlements.iter().map(|settlement| settlement.receipt.message_id()).collect()
}

#[async_trait]
impl<P: MessagingService> MessagingService for Flaky<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.ensure_queue(queue, deadline).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.inner.send_batch(queue, messages, deadline).await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.call("receive", Vec::new(), self.inner.receive_messages(queue, options, deadline)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let ids = ids(&settlements);
        self.call("settle", ids, self.inner.settle(settlements, deadline)).await
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let ids = ids(&settlements);
        self.call("settle", ids, self.inner.settle_and_receive(settlements, queues, options, deadline)).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let call = self.inner.extend_visibility(queue, receipt, extension, deadline);
        self.call("extend", vec![receipt.message_id()], call).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.inner.receive_by_id(queue, id, options, deadline).await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.inner.subscribe(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}
