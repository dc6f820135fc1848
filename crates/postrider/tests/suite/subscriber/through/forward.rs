//! The contract of a provider reached through subscribers: receives and settles go through them, the rest is forwarded.

use std::time::Duration;

use postrider::provider::*;
use postrider::*;

use super::{Through, receiving};

#[async_trait]
impl<P: Provider + Clone> MessagingService for Through<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        deadline.check("receive")?;
        options.check(&self.capabilities().limits)?;
        receiving::receive(&self.inner, queue, options, deadline).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        deadline.check("settle")?;
        let mut rows = self.settling.settle(settlements, deadline).await;
        // A closed connection in a row is the error of the call.
        match rows.iter().position(|row| matches!(row, Err(MessagingError::Closed { .. }))) {
            Some(closed) => Err(rows.swap_remove(closed).err().unwrap()),
            None => Ok(rows),
        }
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

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.inner.extend_visibility(queue, receipt, extension, deadline).await
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

postrider_conformance::forward_admin!(Through);
postrider_conformance::forward_dead_letters!(Through);
