//! The provider in memory: the whole law in the plainest code, and the model that other providers are compared with.
//!
//! A message is sent in `send.rs`, claimed in `claim.rs`, settled in `settle.rs`, dead-lettered and redriven in
//! `dead_letters.rs`; [`lifecycle`] has its states. Everything happens under one lock and by one clock, which a test
//! can replace. A message is removed only by an ack, a purge or a deletion; `archive.rs` keeps it for a while.

mod archive;
mod claim;
mod dead_letters;
mod idempotency;
pub mod lifecycle;
mod queue;
mod send;
mod settle;
mod store;
mod wait;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::archive::{self as archives, ArchivePage, ArchiveQuery};
use crate::capabilities::{Capabilities, Feature};
use crate::clock::Timestamp;
use crate::dead_letter::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason, DeadLetterSelection, Redrive,
    RedriveReport,
};
use crate::deadline::Deadline;
use crate::disposition::Settlement;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::queued_message::{Envelope, QueuedMessage, ReturnLease};
use crate::receipt::{NativeRef, ReceiptHandle};
use crate::receive_options::{ReceiveOptions, check_visibility};
use crate::service::{DeadLetters, MessageAttempt, MessagingService, PeekedMessage, QueueAdmin, RowResults, WakeUps};
use crate::stats::{QueueHealthReport, QueueStats};
use crate::sync::Guard;
use crate::waiting::{self as actions, PeekPage, PeekQuery};
use claim::Claimed;
pub use store::{MemoryStore, MemoryStoreBuilder};
use store::{Shared, State};

const PROVIDER: &str = "memory";

/// A connection to a [`MemoryStore`]. Clones share the connection and close together.
#[derive(Debug, Clone)]
pub struct MemoryProvider {
    store: MemoryStore,
    // A watch channel, because close must reach waiting calls as well as later ones.
    closed: watch::Sender<bool>,
}

impl MemoryProvider {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self { store, closed: watch::Sender::new(false) }
    }

    /// The store of this connection.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.store.shared
    }

    fn now(&self) -> Timestamp {
        self.shared().clock.now()
    }

    /// Begins a call: takes the lock, then checks the connection and the deadline. Close takes the lock too, so a call
    /// is complete before the connection closes, or refused.
    fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<Guard<'_, State>, MessagingError> {
        let state = self.shared().state.lock();
        if *self.closed.borrow() {
            return Err(MessagingError::Closed { provider: PROVIDER });
        }
        deadline.check(operation)?;
        Ok(state)
    }

    fn deliver(&self, queue: &QueueName, claimed: Claimed) -> QueuedMessage {
        let Claimed { row, token, message, expires_at, record, lease_expires_at } = claimed;
        let receipt = ReceiptHandle::new(PROVIDER, queue.clone(), message.id, token, NativeRef::Row(row));
        let envelope = Envelope {
            id: message.id,
            queue: queue.clone(),
            content_type: message.content_type,
            headers: message.headers,
            ordering_key: message.ordering_key,
            dedup_key: message.dedup_key,
            priority: message.priority,
            expires_at,
            receive_count: record.deliveries_count,
            attempts_count: record.attempts_count,
            enqueued_at: record.created_at,
            first_attempt_at: record.first_attempt_at.unwrap_or(record.created_at),
            lease_expires_at,
        };
        QueuedMessage::new(message.body, envelope, receipt, self.shared().clone())
    }
}

impl ReturnLease for Shared {
    fn return_lease(&self, receipt: ReceiptHandle) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.give_up(&receipt, now);
    }
}

#[async_trait]
impl MessagingService for MemoryProvider {
    fn provider_name(&self) -> &'static str {
        PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        &self.shared().capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("ensure queue", deadline)?.queue(&queue.origin()).exists = true;
        Ok(())
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let shared = self.shared();
        let mut state = self.begin("send", deadline)?;
        if !shared.create_queues && !state.queue(queue).exists {
            return Err(MessagingError::QueueNotFound { queue: queue.clone() });
        }
        let now = self.now();
        Ok(messages.into_iter().map(|message| state.send(&shared.capabilities, queue, message, now)).collect())
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        drop(self.begin("receive", deadline)?);
        options.check(&self.shared().capabilities.limits)?;
        let claimed = self.claim_or_wait(queue, options, deadline).await;
        Ok(claimed.into_iter().map(|claimed| self.deliver(queue, claimed)).collect())
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let mut state = self.begin("settle", deadline)?;
        let now = self.now();
        let limits = &self.shared().capabilities.limits;
        let settle = |settlement: Settlement| state.settle(settlement.checked(limits)?, now);
        Ok(settlements.into_iter().map(settle).collect())
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let mut state = self.begin("extend", deadline)?;
        receipt.check_queue(queue)?;
        check_visibility(extension, &self.shared().capabilities.limits)?;
        let now = self.now();
        state.extend(receipt, extension, now)?;
        Ok(receipt.clone())
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        let claimed = {
            let mut state = self.begin("receive", deadline)?;
            options.check(&self.shared().capabilities.limits)?;
            let now = self.now();
            let row = state.queues.get(queue).and_then(|queue| queue.rows_of(id).find(|row| queue.is_due(*row, now)));
            row.and_then(|row| state.claim_row(queue, row, options, now))
        };
        Ok(claimed.map(|claimed| self.deliver(queue, claimed)))
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        drop(self.begin("subscribe", deadline)?);
        self.capabilities().require(Feature::WakeUp)?;
        Ok(self.wake_ups(queue))
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("health check", deadline).map(drop)
    }

    async fn close(&self, _deadline: Deadline) -> Result<(), MessagingError> {
        // Every call except a waiting receive runs under the lock, so no call is unfinished.
        let _state = self.shared().state.lock();
        self.closed.send_replace(true);
        Ok(())
    }
}

#[async_trait]
impl QueueAdmin for MemoryProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let state = self.begin("list queues", deadline)?;
        let queues = state.queues.values().filter(|queue| queue.exists && !queue.name.holds_dead_letters());
        Ok(queues.map(|queue| queue.name.clone()).collect())
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        Ok(self.begin("stats", deadline)?.stats(queue, self.now()))
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        let state = self.begin("verify queues", deadline)?;
        let exists = |queue: &&QueueName| state.queues.get(*queue).is_some_and(|queue| queue.exists);
        let (healthy, missing) = queues.iter().partition::<Vec<&QueueName>, _>(exists);
        Ok(QueueHealthReport {
            healthy: healthy.into_iter().cloned().collect(),
            missing: missing.into_iter().cloned().collect(),
            errors: Vec::new(),
        })
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        Ok(self.begin("peek", deadline)?.peek(queue, limit, self.now()))
    }

    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError> {
        self.begin("peek", deadline)?.peek_page(queue, query, self.now())
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        Ok(self.begin("read attempts", deadline)?.attempts(queue, id))
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError> {
        self.begin("search the archive", deadline)?.archived(queue, query, self.now())
    }

    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        archives::send_again(self, queue, id, deadline).await
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("deliver now", deadline)?.deliver_now(queue, id, self.now())
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin("dead-letter", deadline)?.dead_letter_waiting(queue, id, reason, error, self.now())
    }

    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        actions::delete(self, queue, id, deadline).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        Ok(self.begin("purge", deadline)?.purge(queue, self.now()))
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("pause", deadline)?.queue(queue).paused = true;
        Ok(())
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let mut state = self.begin("resume", deadline)?;
        let queue = state.queue(queue);
        queue.paused = false;
        queue.wake();
        Ok(())
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let mut state = self.begin("delete queue", deadline)?;
        if queue.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "queue name",
                format!("'{queue}' is deleted with '{}'; purge its dead letters instead", queue.origin()),
            ));
        }
        state.delete(queue);
        Ok(())
    }
}

#[async_trait]
impl DeadLetters for MemoryProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.begin("list dead letters", deadline)?.list_dead(queue, query)
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.begin("get dead letter", deadline)?.get_dead(queue, id)
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let limits = &self.shared().capabilities.limits;
        self.begin("edit dead letter", deadline)?.edit_dead(queue, id, edit, limits, self.now())
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let mut state = self.begin("redrive", deadline)?;
        if let Some(target) = &redrive.to
            && !self.shared().create_queues
            && !state.queue(target).exists
        {
            return Err(MessagingError::QueueNotFound { queue: target.clone() });
        }
        state.redrive(queue, redrive, self.now())
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        Ok(self.begin("purge dead letters", deadline)?.purge_dead(queue, selection, self.now()))
    }
}
