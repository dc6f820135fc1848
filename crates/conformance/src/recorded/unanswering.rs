//! A store that carries out every call and never answers.

use std::future::pending;
use std::time::Duration;

use postrider_core::{
    ArchivePage, ArchiveQuery, Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery,
    DeadLetterReason, DeadLetterSelection, DeadLetters, Deadline, Feature, MemoryProvider, Message, MessageAttempt,
    MessageId, MessagingError, MessagingService, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueHealthReport,
    QueueName, QueueStats, QueuedMessage, ReceiptHandle, ReceiveOptions, Redrive, RedriveReport, RowResults,
    Settlement, Support, WakeUps, async_trait,
};

#[derive(Debug)]
pub(super) struct Unanswering {
    inner: MemoryProvider,
    capabilities: Capabilities,
}

impl Unanswering {
    pub(super) fn new(inner: MemoryProvider) -> Self {
        let capabilities = inner.capabilities().clone().with(Feature::Peek, Support::emulated("a peek is a receive"));
        Self { inner, capabilities }
    }
}

#[async_trait]
impl MessagingService for Unanswering {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.ensure_queue(queue, deadline).await?;
        pending().await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.inner.send_batch(queue, messages, deadline).await?;
        pending().await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let _received = self.inner.receive_messages(queue, options, deadline).await?;
        pending().await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.inner.settle(settlements, deadline).await?;
        pending().await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.inner.extend_visibility(queue, receipt, extension, deadline).await?;
        pending().await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        let _received = self.inner.receive_by_id(queue, id, options, deadline).await?;
        pending().await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.inner.subscribe(queue, deadline).await
    }

    async fn health_check(&self, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }
}

#[async_trait]
impl QueueAdmin for Unanswering {
    async fn list_queues(&self, _: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        pending().await
    }

    async fn queue_stats(&self, _: &QueueName, _: Deadline) -> Result<QueueStats, MessagingError> {
        pending().await
    }

    async fn verify_queues(&self, _: &[QueueName], _: Deadline) -> Result<QueueHealthReport, MessagingError> {
        pending().await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.inner.peek(queue, limit, deadline).await
    }

    async fn peek_page(&self, _: &QueueName, _: &PeekQuery, _: Deadline) -> Result<PeekPage, MessagingError> {
        pending().await
    }

    async fn message_attempts(
        &self,
        _: &QueueName,
        _: MessageId,
        _: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        pending().await
    }

    async fn archived(&self, _: &QueueName, _: &ArchiveQuery, _: Deadline) -> Result<ArchivePage, MessagingError> {
        pending().await
    }

    async fn send_again(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<MessageId, MessagingError> {
        pending().await
    }

    async fn deliver_now(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }

    async fn dead_letter_waiting(
        &self,
        _: &QueueName,
        _: MessageId,
        _: DeadLetterReason,
        _: Option<String>,
        _: Deadline,
    ) -> Result<(), MessagingError> {
        pending().await
    }

    async fn delete_waiting(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        self.inner.purge(queue, deadline).await?;
        pending().await
    }

    async fn pause(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }

    async fn resume(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        pending().await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.delete_queue(queue, deadline).await?;
        pending().await
    }
}

#[async_trait]
impl DeadLetters for Unanswering {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.inner.list_dead_letters(queue, query, deadline).await
    }

    async fn get_dead_letter(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<DeadLetter, MessagingError> {
        pending().await
    }

    async fn edit_dead_letter(
        &self,
        _: &QueueName,
        _: MessageId,
        _: DeadLetterEdit,
        _: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        pending().await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        self.inner.redrive_dead_letters(queue, redrive, deadline).await?;
        pending().await
    }

    async fn purge_dead_letters(
        &self,
        _: &QueueName,
        _: &DeadLetterSelection,
        _: Deadline,
    ) -> Result<u64, MessagingError> {
        pending().await
    }
}
