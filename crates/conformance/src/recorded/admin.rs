//! The operations on queues and dead letters.

use std::time::Duration;

use postrider_core::{
    ArchivePage, ArchiveQuery, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, DeadLetterSummaryPage, DeadLetters, Deadline, Feature, MessageAttempt, MessageId,
    MessagingError, MessagingService, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueHealthReport, QueueName,
    QueueStats, Redrive, RedriveReport, Support, async_trait,
};

use super::{Recorded, outcome};
use crate::history::{BodyHash, DeleteCall, EditCall, Outcome, PurgeCall, Purged, ReceiveCall, RedriveCall, Selection};

#[async_trait]
impl<P: MessagingService + QueueAdmin + DeadLetters> QueueAdmin for Recorded<P> {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.provider.list_queues(deadline).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        self.provider.queue_stats(queue, deadline).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        self.provider.verify_queues(queues, deadline).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        // An emulated peek leases and counts like a receive, and its tokens are not known.
        let native = *self.provider.capabilities().support(Feature::Peek) == Support::Native;
        let hidden = (!native).then(|| ReceiveCall {
            queue: queue.clone(),
            visibility: Duration::ZERO,
            max_receive_count: u32::MAX,
            outcome: Outcome::Unknown,
        });
        let _call = self.begin(hidden.into_iter().collect());
        self.provider.peek(queue, limit, deadline).await
    }

    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError> {
        self.provider.peek_page(queue, query, deadline).await
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.provider.message_attempts(queue, id, deadline).await
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError> {
        self.provider.archived(queue, query, deadline).await
    }

    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        // Uses this wrapper's send, which is recorded.
        postrider_core::archive::send_again(self, queue, id, deadline).await
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.deliver_now(queue, id, deadline).await
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.provider.dead_letter_waiting(queue, id, reason, error, deadline).await
    }

    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.delete_waiting(queue, id, deadline).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        let (queue_name, what) = (queue.clone(), Purged::Waiting);
        let mut call = self.begin(vec![PurgeCall { queue: queue_name, what, outcome: Outcome::Unknown }]);
        let answer = self.provider.purge(queue, deadline).await;
        call.rows[0].outcome = outcome(answer.as_ref().copied());
        answer
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.pause(queue, deadline).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.resume(queue, deadline).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let mut call = self.begin(vec![DeleteCall { queue: queue.clone(), outcome: Outcome::Unknown }]);
        let answer = self.provider.delete_queue(queue, deadline).await;
        call.rows[0].outcome = outcome(answer.as_ref().copied());
        answer
    }
}

#[async_trait]
impl<P: MessagingService + QueueAdmin + DeadLetters> DeadLetters for Recorded<P> {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.provider.list_dead_letters(queue, query, deadline).await
    }

    async fn find_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        self.provider.find_dead_letters(queue, selection, error, deadline).await
    }

    async fn list_dead_letter_summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        self.provider.list_dead_letter_summaries(queue, query, deadline).await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.provider.get_dead_letter(queue, id, deadline).await
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let body_hash = edit.body.as_ref().map(|body| BodyHash::of(body));
        let mut call = self.begin(vec![EditCall { queue: queue.origin(), id, body_hash, outcome: Outcome::Unknown }]);
        let answer = self.provider.edit_dead_letter(queue, id, edit, deadline).await;
        call.rows[0].outcome = outcome(answer.as_ref().map(|_| ()));
        answer
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let row = (!redrive.dry_run).then(|| RedriveCall {
            queue: queue.origin(),
            to: redrive.to.clone(),
            selection: Selection::from(&redrive.selection),
            outcome: Outcome::Unknown,
        });
        let mut call = self.begin(row.into_iter().collect());
        let answer = self.provider.redrive_dead_letters(queue, redrive, deadline).await;
        for row in &mut call.rows {
            row.outcome = outcome(answer.as_ref().map(|report| report.redriven.clone()));
        }
        answer
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let mut call = self.begin(vec![PurgeCall {
            queue: queue.origin(),
            what: Purged::DeadLetters(Selection::from(selection)),
            outcome: Outcome::Unknown,
        }]);
        let answer = self.provider.purge_dead_letters(queue, selection, deadline).await;
        call.rows[0].outcome = outcome(answer.as_ref().copied());
        answer
    }
}
