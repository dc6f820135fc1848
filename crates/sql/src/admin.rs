//! What people and tools ask of queues and dead letters.

use std::sync::Arc;

use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Feature,
    MessageAttempt, MessageId, MessagingError, MessagingService, PeekedMessage, QueueAdmin, QueueHealthReport,
    QueueName, QueueStats, Redrive, RedriveReport,
};

use crate::provider::SqlProvider;
use crate::store::{Part, Removal, SqlStore};
use crate::undone::Undone;

/// So many dead letters are redriven or purged in one transaction.
const CHUNK: usize = 500;

/// After a part was done, a failure of the rest leaves the whole half done.
fn half_done(operation: &'static str, error: MessagingError) -> MessagingError {
    match error {
        // Whoever is told that somebody was in the way knows that it is to be repeated.
        known @ (MessagingError::OutcomeUnknown { .. } | MessagingError::Busy { .. }) => known,
        error => MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: Some(Arc::new(error)) },
    }
}

impl<S: SqlStore> SqlProvider<S> {
    /// Work whose lost answer does no harm: it only looks, or a second time does nothing more.
    async fn look_at<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        let work = async move { Ok(work.await.map_err(Undone::into_harmless)) };
        self.carry_out(operation, Vec::new(), deadline, work).await?
    }

    /// One step of something that takes several.
    async fn do_part<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        is_first: bool,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let done = self.carry_out(operation, Vec::new(), deadline, work).await;
        done.map_err(|error| if is_first { error } else { half_done(operation, error) })
    }

    /// Removes a queue's messages, chunk after chunk.
    async fn remove_all(
        &self,
        operation: &'static str,
        queue: &QueueName,
        removal: Removal,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let (store, name) = (self.store().clone(), queue.clone());
        let look = async move { store.present(operation, &name, deadline).await };
        let mut removed = 0;
        for (number, chunk) in self.do_part(operation, deadline, true, look).await?.into_iter().enumerate() {
            let (store, name) = (self.store().clone(), queue.clone());
            let step = async move { store.remove_some(operation, &name, &chunk, removal).await };
            removed += self.do_part(operation, deadline, number == 0, step).await?;
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
        let (store, queue) = (self.store().clone(), queue.clone());
        self.look_at(operation, deadline, async move { store.set_paused(&queue, is_paused, deadline).await }).await
    }
}

impl<S: SqlStore> QueueAdmin for SqlProvider<S> {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let store = self.store().clone();
        self.look_at("list queues", deadline, async move { store.list_queues(deadline).await }).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let (store, queue) = (self.store().clone(), queue.clone());
        self.look_at("stats", deadline, async move { store.stats(&queue, deadline).await }).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        let (store, queues) = (self.store().clone(), queues.to_vec());
        self.look_at("verify queues", deadline, async move {
            let exist = store.queues_exist(&queues, deadline).await?;
            let mut report = QueueHealthReport::default();
            for queue in queues {
                let is_there = exist.contains(queue.origin().as_str());
                let list = if is_there { &mut report.healthy } else { &mut report.missing };
                list.push(queue);
            }
            Ok(report)
        })
        .await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        let (store, queue) = (self.store().clone(), queue.clone());
        self.look_at("peek", deadline, async move { store.peek(&queue, limit, deadline).await }).await
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
        self.look_at("read attempts", deadline, async move { store.attempts(&queue, id, deadline).await }).await
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
                format!("'{queue}' belongs to '{}' and goes with it; purge the dead letters instead", queue.origin()),
            ));
        }
        let (store, name) = (self.store().clone(), queue.clone());
        let unlist = async move { store.unlist(&name, deadline).await };
        self.do_part(DELETE, deadline, true, unlist).await?;
        for name in [queue.clone(), queue.dead_letters()] {
            if let Err(error) = self.remove_all(DELETE, &name, Removal::Everything, deadline).await {
                // What is left must be seen, and the next try must find the queue.
                let (store, name) = (self.store().clone(), queue.clone());
                let list_again = async move { store.ensure_queue(&name, Deadline::default()).await };
                let _ = self.do_part(DELETE, deadline, true, list_again).await;
                return Err(half_done(DELETE, error));
            }
        }
        Ok(())
    }
}

impl<S: SqlStore> DeadLetters for SqlProvider<S> {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        let (store, queue, query) = (self.store().clone(), queue.clone(), query.clone());
        let list = async move { store.list_dead(&queue, &query, deadline).await };
        self.look_at("list dead letters", deadline, list).await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let (store, queue) = (self.store().clone(), queue.clone());
        let get = async move { get_dead(&store, &queue, id, deadline).await };
        self.look_at("get dead letter", deadline, get).await
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.begin("edit dead letter", deadline)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        let edit = async move {
            store.edit_dead(&queue, id, &edit, deadline).await?;
            get_dead(&store, &queue, id, deadline).await
        };
        self.carry_out("edit dead letter", vec![id], deadline, edit).await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        self.begin("redrive", deadline)?;
        let target = redrive.target(queue)?;
        if !self.store().creates_queues()
            && !self.verify_queues(std::slice::from_ref(&target), deadline).await?.is_healthy()
        {
            return Err(MessagingError::QueueNotFound { queue: target });
        }
        let mut report = RedriveReport::default();
        if redrive.dry_run {
            let (store, selection) = (self.store().clone(), redrive.selection.clone());
            let part = Part { queue: queue.clone(), selection, after: 0, limit: usize::MAX };
            report = self.look_at("redrive", deadline, async move { store.rehearse(&part, &target).await }).await?;
        } else {
            for selection in chunks(&redrive.selection) {
                let mut after = Some(0);
                while let Some(from) = after {
                    let (store, target) = (self.store().clone(), target.clone());
                    let part = Part { queue: queue.clone(), selection: selection.clone(), after: from, limit: CHUNK };
                    let step = async move { store.redrive(&part, &target).await };
                    let (done, next) = self.do_part("redrive", deadline, report.redriven.is_empty(), step).await?;
                    report.redriven.extend(done.redriven);
                    report.skipped.extend(done.skipped);
                    after = next;
                }
            }
        }
        report.add_missing(&redrive.selection);
        Ok(report)
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        self.begin("purge dead letters", deadline)?;
        let mut purged = 0;
        for selection in chunks(selection) {
            let mut after = Some(0);
            while let Some(from) = after {
                let store = self.store().clone();
                let part = Part { queue: queue.clone(), selection: selection.clone(), after: from, limit: CHUNK };
                let step = async move { store.purge_dead(&part).await };
                let (rows, next) = self.do_part("purge dead letters", deadline, purged == 0, step).await?;
                purged += rows;
                after = next;
            }
        }
        Ok(purged)
    }
}

/// A selection in pieces that fit into a transaction. All dead letters, or those of a reason, are cut later, by the order
/// of their deaths.
fn chunks(selection: &DeadLetterSelection) -> Vec<DeadLetterSelection> {
    match selection {
        DeadLetterSelection::Ids(ids) => {
            ids.chunks(CHUNK).map(|chunk| DeadLetterSelection::Ids(chunk.to_vec())).collect()
        }
        whole => vec![whole.clone()],
    }
}

async fn get_dead<S: SqlStore>(
    store: &S,
    queue: &QueueName,
    id: MessageId,
    deadline: Deadline,
) -> Result<DeadLetter, Undone> {
    let query =
        DeadLetterQuery { selection: DeadLetterSelection::Ids(vec![id]), limit: 1, ..DeadLetterQuery::default() };
    let found = store.list_dead(queue, &query, deadline).await?.letters.pop();
    found.ok_or_else(|| MessagingError::MessageNotFound { queue: queue.dead_letters(), id }.into())
}
