//! A provider behind a breaker.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use postrider_core::*;

use super::answer::{Answer, verdict};
use super::lease_ends::LeaseEnds;
use super::{BreakerSettings, CircuitBreaker, Permit, Verdict};

/// A provider behind a circuit breaker. It keeps the whole contract itself.
///
/// While the breaker is open a call fails at once with [`MessagingError::CircuitBreakerOpen`], but settles and extensions
/// are deferred: they wait for the store as long as their deadline and their lease allow, and are then made.
///
/// Clones share the breaker.
#[derive(Debug, Clone)]
pub struct Guarded<P> {
    inner: P,
    breaker: Arc<CircuitBreaker>,
    lease_ends: Arc<LeaseEnds>,
}

impl<P> Guarded<P> {
    /// Puts a breaker before `inner`.
    pub fn new(inner: P, settings: BreakerSettings) -> Self {
        Self { inner, breaker: Arc::new(CircuitBreaker::new(settings)), lease_ends: Arc::default() }
    }

    /// The provider behind the breaker. Calls made to it directly are neither refused nor counted.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The breaker.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.breaker
    }

    pub(super) fn lease_ends(&self) -> &LeaseEnds {
        &self.lease_ends
    }
}

impl<P: MessagingService> Guarded<P> {
    /// Admits a call, after probes if they are due.
    pub(super) async fn admit(&self, deadline: Deadline) -> Result<Permit<'_>, MessagingError> {
        loop {
            let permit = self.breaker.admit(self.inner.provider_name())?;
            if !permit.is_probe {
                return Ok(permit);
            }
            match self.probe(permit, deadline).await {
                // The call itself was not made, so its outcome is known.
                Err(MessagingError::OutcomeUnknown { .. }) if deadline.has_passed() => {
                    return Err(MessagingError::DeadlineExceeded { operation: "health check" });
                }
                Ok(()) | Err(MessagingError::OutcomeUnknown { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Probes the store. When this future is dropped, so is the permit, and the next call probes.
    async fn probe(&self, permit: Permit<'_>, deadline: Deadline) -> Result<(), MessagingError> {
        let outcome = self.inner.health_check(permit.probe_deadline(deadline)).await;
        let ran_out =
            matches!(outcome, Err(MessagingError::OutcomeUnknown { .. } | MessagingError::DeadlineExceeded { .. }));
        // A store that used up the whole time of a probe does not answer; with less time it may have.
        let verdict = if ran_out && !deadline.has_passed() { Verdict::Failure } else { verdict(&outcome) };
        permit.answered(verdict);
        outcome
    }

    async fn guard<T, F>(&self, deadline: Deadline, call: impl FnOnce(Deadline) -> F) -> Result<T, MessagingError>
    where
        T: Answer,
        F: Future<Output = Result<T, MessagingError>>,
    {
        counted(self.admit(deadline).await?, call(deadline)).await
    }
}

/// Makes the call and counts its answer. When this future is dropped, so is the permit, and nothing is counted.
pub(super) async fn counted<T: Answer>(
    permit: Permit<'_>,
    call: impl Future<Output = Result<T, MessagingError>>,
) -> Result<T, MessagingError> {
    let outcome = call.await;
    permit.answered(verdict(&outcome));
    outcome
}

#[async_trait]
impl<P: MessagingService> MessagingService for Guarded<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.ensure_queue(queue, deadline)).await
    }

    async fn ensure_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.ensure_queues(queues, deadline)).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.guard(deadline, |deadline| self.inner.send_batch(queue, messages, deadline)).await
    }

    async fn send_message(
        &self,
        queue: &QueueName,
        message: Message,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        self.guard(deadline, |deadline| self.inner.send_message(queue, message, deadline)).await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let received = self.guard(deadline, |deadline| self.inner.receive_messages(queue, options, deadline)).await?;
        self.note_granted(&received, options.visibility);
        Ok(received)
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.settle_deferred(settlements, deadline).await
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        self.settle_and_receive_deferred(settlements, queues, options, deadline).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.extend_deferred(queue, receipt, extension, deadline).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        let call = |deadline| self.inner.receive_by_id(queue, id, options, deadline);
        let received = self.guard(deadline, call).await?;
        self.note_granted(received.as_slice(), options.visibility);
        Ok(received)
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        let hints = self.guard(deadline, |deadline| self.inner.subscribe(queue, deadline)).await?;
        let breaker = self.breaker.clone();
        Ok(WakeUps::new(hints.inspect(move |()| breaker.store_responded())))
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let permit = self.breaker.admit(self.inner.provider_name())?;
        if permit.is_probe {
            return self.probe(permit, deadline).await;
        }
        counted(permit, self.inner.health_check(deadline)).await
    }

    /// Never refused: a connection can be closed in any state of its store.
    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}

#[async_trait]
impl<P: MessagingService + QueueAdmin> QueueAdmin for Guarded<P> {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.guard(deadline, |deadline| self.inner.list_queues(deadline)).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        self.guard(deadline, |deadline| self.inner.queue_stats(queue, deadline)).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        self.guard(deadline, |deadline| self.inner.verify_queues(queues, deadline)).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.guard(deadline, |deadline| self.inner.peek(queue, limit, deadline)).await
    }

    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError> {
        self.guard(deadline, |deadline| self.inner.peek_page(queue, query, deadline)).await
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.guard(deadline, |deadline| self.inner.message_attempts(queue, id, deadline)).await
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError> {
        self.guard(deadline, |deadline| self.inner.archived(queue, query, deadline)).await
    }

    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        self.guard(deadline, |deadline| self.inner.send_again(queue, id, deadline)).await
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.deliver_now(queue, id, deadline)).await
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.dead_letter_waiting(queue, id, reason, error, deadline)).await
    }

    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.delete_waiting(queue, id, deadline)).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        self.guard(deadline, |deadline| self.inner.purge(queue, deadline)).await
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.pause(queue, deadline)).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.resume(queue, deadline)).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.guard(deadline, |deadline| self.inner.delete_queue(queue, deadline)).await
    }
}

#[async_trait]
impl<P: MessagingService + DeadLetters> DeadLetters for Guarded<P> {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.guard(deadline, |deadline| self.inner.list_dead_letters(queue, query, deadline)).await
    }

    async fn find_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        self.guard(deadline, |deadline| self.inner.find_dead_letters(queue, selection, error, deadline)).await
    }

    async fn list_dead_letter_summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        self.guard(deadline, |deadline| self.inner.list_dead_letter_summaries(queue, query, deadline)).await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.guard(deadline, |deadline| self.inner.get_dead_letter(queue, id, deadline)).await
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.guard(deadline, |deadline| self.inner.edit_dead_letter(queue, id, edit, deadline)).await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        self.guard(deadline, |deadline| self.inner.redrive_dead_letters(queue, redrive, deadline)).await
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        self.guard(deadline, |deadline| self.inner.purge_dead_letters(queue, selection, deadline)).await
    }
}

#[cfg(test)]
mod tests;
