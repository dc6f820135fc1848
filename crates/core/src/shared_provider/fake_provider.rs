//! A provider for tests that records its calls and fails on request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::archive::{ArchivePage, ArchiveQuery};
use crate::capabilities::{Capabilities, Feature, Support};
use crate::clock::Timestamp;
use crate::dead_letter::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason, DeadLetterSelection, Redrive,
    RedriveReport,
};
use crate::deadline::Deadline;
use crate::disposition::Settlement;
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Message, Priority};
use crate::queue_name::QueueName;
use crate::queued_message::{Envelope, QueuedMessage, ReturnLease};
use crate::receipt::{LeaseToken, NativeRef, ReceiptHandle};
use crate::receive_options::ReceiveOptions;
use crate::service::{
    DeadLetters, MessageAttempt, MessagingService, PeekedMessage, QueueAdmin, RowResults, SettledAndReceived, WakeUps,
};
use crate::stats::{Measured, QueueHealthReport, QueueStats};
use crate::sync::Mutex;
use crate::waiting::{PeekPage, PeekQuery};

/// The behaviour of `settle`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Settling {
    /// Succeeds.
    #[default]
    Succeeds,
    /// Fails with an outer error.
    Fails,
    /// Fails each row.
    RefusesRows,
    /// Never completes.
    Hangs,
}

/// Leases of dropped messages.
#[derive(Debug, Default)]
struct Returned(Mutex<Vec<MessageId>>);

impl ReturnLease for Returned {
    fn return_lease(&self, receipt: ReceiptHandle) {
        self.0.lock().push(receipt.message_id());
    }
}

#[derive(Debug)]
pub(crate) struct FakeProvider {
    capabilities: Capabilities,
    settling: Settling,
    calls: Mutex<Vec<&'static str>>,
    queues: Mutex<BTreeMap<QueueName, VecDeque<Message>>>,
    settle_calls: Mutex<Vec<Vec<Settlement>>>,
    returned: Arc<Returned>,
}

impl Default for FakeProvider {
    fn default() -> Self {
        Self {
            capabilities: Capabilities::native("fake"),
            settling: Settling::default(),
            calls: Mutex::default(),
            queues: Mutex::default(),
            settle_calls: Mutex::default(),
            returned: Arc::default(),
        }
    }
}

impl FakeProvider {
    /// Sets the behaviour of `settle`.
    pub(crate) fn settling(settling: Settling) -> Self {
        Self { settling, ..Self::default() }
    }

    /// Sets the support of a feature.
    pub(crate) fn with(mut self, feature: Feature, support: Support) -> Self {
        self.capabilities = self.capabilities.with(feature, support);
        self
    }

    /// The methods that were called, in order.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().clone()
    }

    /// Adds a message where no send is allowed, for example to a dead-letter queue.
    pub(crate) fn put(&self, queue: &QueueName, body: &'static str) -> MessageId {
        let message = Message::new(body);
        let id = message.id;
        self.queues.lock().entry(queue.clone()).or_default().push_back(message);
        id
    }

    /// The messages of a queue.
    pub(crate) fn waiting(&self, queue: &QueueName) -> Vec<Message> {
        self.queues.lock().get(queue).map_or_else(Vec::new, |queue| queue.iter().cloned().collect())
    }

    /// All queues that were created or sent to.
    pub(crate) fn queue_names(&self) -> Vec<String> {
        self.queues.lock().keys().map(QueueName::to_string).collect()
    }

    /// The rows of every settle call.
    pub(crate) fn settle_calls(&self) -> Vec<Vec<Settlement>> {
        self.settle_calls.lock().clone()
    }

    /// The messages that were dropped unsettled.
    pub(crate) fn returned(&self) -> Vec<MessageId> {
        self.returned.0.lock().clone()
    }

    fn called(&self, method: &'static str) {
        self.calls.lock().push(method);
    }

    fn take(&self, queue: &QueueName, max: usize) -> Vec<QueuedMessage> {
        let mut queues = self.queues.lock();
        let waiting = queues.entry(queue.clone()).or_default();
        let count = max.min(waiting.len());
        waiting.drain(..count).map(|message| self.lease(queue, message)).collect()
    }

    fn lease(&self, queue: &QueueName, message: Message) -> QueuedMessage {
        let receipt = ReceiptHandle::new("fake", queue.clone(), message.id, LeaseToken::generate(), NativeRef::Row(1));
        let envelope = Envelope {
            id: message.id,
            queue: queue.clone(),
            content_type: message.content_type,
            headers: message.headers,
            ordering_key: message.ordering_key,
            dedup_key: None,
            expires_at: None,
            priority: message.priority,
            receive_count: 1,
            attempts_count: 0,
            enqueued_at: Timestamp::EPOCH,
            first_attempt_at: Timestamp::EPOCH,
            lease_expires_at: Timestamp::MAX,
        };
        QueuedMessage::new(message.body, envelope, receipt, self.returned.clone())
    }
}

pub(crate) fn dead_letter(queue: &QueueName, id: MessageId, body: &'static str) -> DeadLetter {
    DeadLetter {
        id,
        origin: queue.origin(),
        body: body.into(),
        content_type: ContentType::OCTET_STREAM,
        headers: Headers::new(),
        ordering_key: None,
        dedup_key: None,
        expires_at: None,
        priority: Priority::default(),
        reason: DeadLetterReason::REJECTED,
        error: None,
        deliveries_count: 1,
        attempts_count: 1,
        enqueued_at: Timestamp::EPOCH,
        first_attempt_at: None,
        last_attempt_at: None,
        dead_at: Timestamp::EPOCH,
        revision: 0,
    }
}

#[async_trait]
impl MessagingService for FakeProvider {
    fn provider_name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.called("ensure_queue");
        self.queues.lock().entry(queue.clone()).or_default();
        Ok(())
    }

    async fn ensure_queues(&self, queues: &[QueueName], _: Deadline) -> Result<(), MessagingError> {
        self.called("ensure_queues");
        for queue in queues {
            self.queues.lock().entry(queue.clone()).or_default();
        }
        Ok(())
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        _: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.called("send_batch");
        let ids = messages.iter().map(|message| Ok(message.id)).collect();
        self.queues.lock().entry(queue.clone()).or_default().extend(messages);
        Ok(ids)
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        _: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.called("receive_messages");
        Ok(self.take(queue, options.max))
    }

    async fn settle(&self, settlements: Vec<Settlement>, _: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.called("settle");
        self.settle_calls.lock().push(settlements.clone());
        match self.settling {
            Settling::Succeeds => Ok(settlements.iter().map(|_| Ok(())).collect()),
            Settling::Fails => Err(MessagingError::Closed { provider: "fake" }),
            Settling::RefusesRows => Ok(settlements.iter().map(|row| Err(row.receipt.expired())).collect()),
            Settling::Hangs => std::future::pending().await,
        }
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        _: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        self.called("settle_and_receive");
        let settled = settlements.iter().map(|_| Ok(())).collect();
        let received = queues.iter().flat_map(|queue| self.take(queue, options.max)).collect();
        Ok(SettledAndReceived { settled, received: Ok(received) })
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        _: Duration,
        _: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.called("extend_visibility");
        receipt.check_queue(queue)?;
        Ok(receipt.clone())
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        _: &ReceiveOptions,
        _: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.called("receive_by_id");
        Ok(self.waiting(queue).into_iter().find(|message| message.id == id).map(|m| self.lease(queue, m)))
    }

    async fn subscribe(&self, _: &QueueName, _: Deadline) -> Result<WakeUps, MessagingError> {
        self.called("subscribe");
        Ok(WakeUps::new(futures_util::stream::iter([()])))
    }

    async fn health_check(&self, _: Deadline) -> Result<(), MessagingError> {
        self.called("health_check");
        Ok(())
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        self.called("close");
        Err(MessagingError::Closed { provider: "fake" })
    }
}

#[async_trait]
impl QueueAdmin for FakeProvider {
    async fn list_queues(&self, _: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.called("list_queues");
        Ok(self.queues.lock().keys().cloned().collect())
    }

    async fn queue_stats(&self, queue: &QueueName, _: Deadline) -> Result<QueueStats, MessagingError> {
        self.called("queue_stats");
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(self.waiting(queue).len() as u64),
            in_flight: Measured::Unknown,
            delayed: Measured::Unknown,
            dead: Measured::Unknown,
            oldest_age: Measured::Unknown,
            paused: false,
        })
    }

    async fn verify_queues(&self, queues: &[QueueName], _: Deadline) -> Result<QueueHealthReport, MessagingError> {
        self.called("verify_queues");
        Ok(QueueHealthReport { healthy: queues.to_vec(), ..QueueHealthReport::default() })
    }

    async fn peek(&self, _: &QueueName, _: usize, _: Deadline) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.called("peek");
        Ok(Vec::new())
    }

    async fn peek_page(&self, _: &QueueName, query: &PeekQuery, _: Deadline) -> Result<PeekPage, MessagingError> {
        self.called("peek_page");
        Ok(PeekPage { messages: Vec::new(), next: query.after.clone() })
    }

    async fn message_attempts(
        &self,
        _: &QueueName,
        _: MessageId,
        _: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.called("message_attempts");
        let (started_at, failed_at) = (None, Timestamp::EPOCH);
        Ok(vec![MessageAttempt { attempt: 3, started_at, failed_at, worker: None, error: None }])
    }

    async fn archived(&self, _: &QueueName, query: &ArchiveQuery, _: Deadline) -> Result<ArchivePage, MessagingError> {
        self.called("archived");
        Ok(ArchivePage { messages: Vec::new(), next: query.after.clone() })
    }

    async fn send_again(&self, _: &QueueName, id: MessageId, _: Deadline) -> Result<MessageId, MessagingError> {
        self.called("send_again");
        Ok(id)
    }

    async fn deliver_now(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<(), MessagingError> {
        self.called("deliver_now");
        Ok(())
    }

    async fn dead_letter_waiting(
        &self,
        _: &QueueName,
        _: MessageId,
        _: DeadLetterReason,
        _: Option<String>,
        _: Deadline,
    ) -> Result<(), MessagingError> {
        self.called("dead_letter_waiting");
        Ok(())
    }

    async fn delete_waiting(&self, _: &QueueName, _: MessageId, _: Deadline) -> Result<(), MessagingError> {
        self.called("delete_waiting");
        Ok(())
    }

    async fn purge(&self, _: &QueueName, _: Deadline) -> Result<u64, MessagingError> {
        self.called("purge");
        Ok(7)
    }

    async fn pause(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.called("pause");
        Ok(())
    }

    async fn resume(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.called("resume");
        Ok(())
    }

    async fn delete_queue(&self, queue: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.called("delete_queue");
        Err(MessagingError::QueueNotFound { queue: queue.clone() })
    }
}

#[async_trait]
impl DeadLetters for FakeProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        _: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.called("list_dead_letters");
        let letters = (0..query.limit).map(|_| dead_letter(queue, MessageId::generate(), "listed")).collect();
        Ok(DeadLetterPage { letters, next: None })
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        _: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.called("get_dead_letter");
        Ok(dead_letter(queue, id, "got"))
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        _: DeadLetterEdit,
        _: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.called("edit_dead_letter");
        Ok(dead_letter(queue, id, "edited"))
    }

    async fn redrive_dead_letters(
        &self,
        _: &QueueName,
        redrive: &Redrive,
        _: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        self.called("redrive_dead_letters");
        match &redrive.selection {
            DeadLetterSelection::Ids(ids) => Ok(RedriveReport { redriven: ids.clone(), ..RedriveReport::default() }),
            _ => Ok(RedriveReport::default()),
        }
    }

    async fn purge_dead_letters(
        &self,
        _: &QueueName,
        _: &DeadLetterSelection,
        _: Deadline,
    ) -> Result<u64, MessagingError> {
        self.called("purge_dead_letters");
        Ok(9)
    }
}
