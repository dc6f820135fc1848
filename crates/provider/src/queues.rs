//! The queue operations of the contract.

use std::sync::Arc;

use postrider_core::{
    ArchivePage, ArchiveQuery, DeadLetterReason, DeadLetterSelection, DeadLetters, Deadline, Feature, MessageAttempt,
    MessageId, MessagingError, MessagingService, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueHealthReport,
    QueueName, QueueStats, archive, async_trait, waiting,
};

use crate::service::Provider;
use crate::store::{Removal, Store};
use crate::undone::Undone;

/// Turns the failure of a later step into an unknown outcome: earlier steps have taken effect.
fn partly_done(operation: &'static str, error: MessagingError) -> MessagingError {
    match error {
        // `Busy` already asks the caller to repeat the operation.
        kept @ (MessagingError::OutcomeUnknown { .. } | MessagingError::Busy { .. }) => kept,
        error => MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: Some(Arc::new(error)) },
    }
}

impl<S: Store> Provider<S> {
    /// Runs one step of an operation that takes several.
    pub(crate) async fn step<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        is_first: bool,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let done = self.carry_out(operation, Vec::new(), deadline, work).await;
        done.map_err(|error| if is_first { error } else { partly_done(operation, error) })
    }

    /// Removes the messages of a queue, chunk by chunk.
    async fn remove_all(
        &self,
        operation: &'static str,
        queue: &QueueName,
        removal: Removal,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let (store, name) = (self.store().clone(), queue.clone());
        let present = async move { store.present(operation, &name, deadline).await };
        let mut removed = 0;
        for (number, chunk) in self.step(operation, deadline, true, present).await?.into_iter().enumerate() {
            let (store, name) = (self.store().clone(), queue.clone());
            let step = async move { store.remove_some(operation, &name, chunk, removal, deadline).await };
            removed += self.step(operation, deadline, number == 0, step).await?;
        }
        Ok(removed)
    }

    async fn set_paused(
        &self,
        operation: &'static str,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin(operation, deadline)?;
        self.capabilities().require(Feature::Pause)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        self.read(operation, deadline, async move { store.set_paused(&queue, is_paused, deadline).await }).await
    }

    /// Checks what every action on a waiting message requires.
    fn begin_waiting(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin(operation, deadline)?;
        self.capabilities().require(Feature::WaitingMessages)?;
        waiting::check_queue(queue)
    }
}

#[async_trait]
impl<S: Store> QueueAdmin for Provider<S> {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let store = self.store().clone();
        self.read("list queues", deadline, async move { store.list_queues(deadline).await }).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let (store, queue) = (self.store().clone(), queue.clone());
        self.read("stats", deadline, async move { store.stats(&queue, deadline).await }).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        let (store, queues) = (self.store().clone(), queues.to_vec());
        self.read("verify queues", deadline, async move { store.verify_queues(&queues, deadline).await }).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.begin("peek", deadline)?;
        self.capabilities().require(Feature::Peek)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        self.read("peek", deadline, async move { store.peek(&queue, limit, deadline).await }).await
    }

    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError> {
        self.begin_waiting("peek", queue, deadline)?;
        let (after, limit) = (query.row()?, query.limit);
        let (store, queue) = (self.store().clone(), queue.clone());
        let read = async move { store.peek_rows(&queue, after, limit.saturating_add(1), deadline).await };
        Ok(PeekPage::of_rows(self.read("peek", deadline, read).await?, limit))
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("read attempts", deadline)?;
        self.capabilities().require(Feature::AttemptHistory)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        self.read("read attempts", deadline, async move { store.attempts(&queue, id, deadline).await }).await
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError> {
        self.begin("search the archive", deadline)?;
        self.capabilities().require(Feature::Archive)?;
        let (store, queue, query) = (self.store().clone(), queue.clone(), query.clone());
        let read = async move { store.archived(&queue, &query, deadline).await };
        self.read("search the archive", deadline, read).await
    }

    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        archive::send_again(self, queue, id, deadline).await
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin_waiting("deliver now", queue, deadline)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        self.read("deliver now", deadline, async move { store.deliver_now(&queue, id, deadline).await }).await
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin_waiting("dead-letter", queue, deadline)?;
        let (reason, error) = waiting::check_death(reason, error)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        let dead_letter = async move { store.dead_letter_waiting(&queue, id, reason, error, deadline).await };
        self.carry_out("dead-letter", vec![id], deadline, dead_letter).await
    }

    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin_waiting("delete", queue, deadline)?;
        waiting::delete(self, queue, id, deadline).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("purge", deadline)?;
        if queue.holds_dead_letters() {
            return self.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await;
        }
        self.remove_all("purge", queue, Removal::Unleased, deadline).await
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.set_paused("pause", queue, true, deadline).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.set_paused("resume", queue, false, deadline).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        const DELETE: &str = "delete queue";
        self.begin(DELETE, deadline)?;
        if queue.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "queue name",
                format!("'{queue}' is deleted with '{}'; purge its dead letters instead", queue.origin()),
            ));
        }
        let (store, name) = (self.store().clone(), queue.clone());
        let unlist = async move { store.unlist(&name, deadline).await };
        if !self.step(DELETE, deadline, true, unlist).await? {
            return Ok(());
        }
        for name in [queue.clone(), queue.dead_letters()] {
            if let Err(error) = self.remove_all(DELETE, &name, Removal::Everything, deadline).await {
                // Messages are left: the queue must stay listed, so that a repeated deletion finds it.
                let (store, name) = (self.store().clone(), queue.clone());
                let list_again = async move { store.ensure_queue(&name, Deadline::default()).await };
                let _ = self.step(DELETE, deadline, true, list_again).await;
                return Err(partly_done(DELETE, error));
            }
        }
        Ok(())
    }
}
