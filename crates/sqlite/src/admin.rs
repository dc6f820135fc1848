//! What people and tools ask of queues and dead letters.

use std::sync::Arc;

use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline,
    MessageAttempt, MessageId, MessagingError, PeekedMessage, QueueAdmin, QueueHealthReport, QueueName, QueueStats,
    Redrive, RedriveReport,
};

use crate::dead_letters::{CHUNK, Part, rehearse};
use crate::look;
use crate::provider::SqliteProvider;
use crate::purge::{self, Removal};

/// After a part was done, a failure of the rest leaves the whole half done.
fn half_done(operation: &'static str, error: MessagingError) -> MessagingError {
    match error {
        unknown @ MessagingError::OutcomeUnknown { .. } => unknown,
        error => MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: Some(Arc::new(error)) },
    }
}

impl SqliteProvider {
    /// Removes a queue's messages, chunk after chunk.
    async fn remove_all(
        &self,
        operation: &'static str,
        queue: &QueueName,
        removal: Removal,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let name = queue.clone();
        let look = move |connection: &rusqlite::Connection| Ok(purge::present(connection, &name)?);
        let present = self.shared().readers.read(operation, deadline, look).await?;
        let mut removed = 0;
        for chunk in present.chunks(purge::CHUNK) {
            let (name, chunk) = (queue.clone(), chunk.to_vec());
            let step = self.write(operation, deadline, move |session| Ok(session.remove_some(&name, &chunk, removal)?));
            match step.await {
                Ok(rows) => removed += rows,
                Err(error) if removed > 0 => return Err(half_done(operation, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Removes archived messages that are older than the retention, now, and answers how many. The writer does the
    /// same by itself, a little at a time.
    pub async fn sweep_archive(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("sweep the archive", deadline)?;
        let retention = self.shared().desk.options.archive_retention;
        let (mut removed, mut after) = (0, 0);
        loop {
            let sweep = self.write("sweep the archive", deadline, move |session| {
                Ok(session.sweep_archive(retention, CHUNK, after)?)
            });
            let sweep = sweep.await?;
            removed += sweep.removed;
            let Some(next) = sweep.next else { return Ok(removed) };
            after = next;
        }
    }
}

impl QueueAdmin for SqliteProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.begin("list queues", deadline)?;
        self.shared().readers.read("list queues", deadline, |connection| Ok(look::list_queues(connection)?)).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        self.begin("stats", deadline)?;
        let (queue, clock) = (queue.clone(), self.shared().desk.options.clock.clone());
        let look = move |connection: &rusqlite::Connection| Ok(look::stats(connection, &queue, clock.now())?);
        self.shared().readers.read("stats", deadline, look).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        self.begin("verify queues", deadline)?;
        let queues = queues.to_vec();
        let look = move |connection: &rusqlite::Connection| Ok(look::verify_queues(connection, &queues)?);
        self.shared().readers.read("verify queues", deadline, look).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.begin("peek", deadline)?;
        let (queue, clock) = (queue.clone(), self.shared().desk.options.clock.clone());
        let look = move |connection: &rusqlite::Connection| Ok(look::peek(connection, &queue, limit, clock.now())?);
        self.shared().readers.read("peek", deadline, look).await
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("read attempts", deadline)?;
        let queue = queue.clone();
        let look = move |connection: &rusqlite::Connection| Ok(look::attempts(connection, &queue, id)?);
        self.shared().readers.read("read attempts", deadline, look).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("purge", deadline)?;
        if queue.holds_dead_letters() {
            return self.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await;
        }
        self.remove_all("purge", queue, Removal::Unleased, deadline).await
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("pause", deadline)?;
        let queue = queue.clone();
        self.write("pause", deadline, move |session| Ok(session.pause(&queue)?)).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("resume", deadline)?;
        let queue = queue.clone();
        self.write("resume", deadline, move |session| Ok(session.resume(&queue)?)).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("delete queue", deadline)?;
        if queue.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "queue name",
                format!("'{queue}' belongs to '{}' and goes with it; purge the dead letters instead", queue.origin()),
            ));
        }
        let name = queue.clone();
        self.write("delete queue", deadline, move |session| Ok(session.unlist_queue(&name)?)).await?;
        for name in [queue.clone(), queue.dead_letters()] {
            let removed = self.remove_all("delete queue", &name, Removal::Everything, deadline).await;
            removed.map_err(|error| half_done("delete queue", error))?;
        }
        Ok(())
    }
}

impl DeadLetters for SqliteProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.begin("list dead letters", deadline)?;
        let (queue, query) = (queue.clone(), query.clone());
        let look = move |connection: &rusqlite::Connection| look::list_dead(connection, &queue, &query);
        self.shared().readers.read("list dead letters", deadline, look).await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.begin("get dead letter", deadline)?;
        let queue = queue.clone();
        let look = move |connection: &rusqlite::Connection| look::get_dead(connection, &queue, id);
        self.shared().readers.read("get dead letter", deadline, look).await
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        self.begin("edit dead letter", deadline)?;
        let (queue, limits) = (queue.clone(), self.shared().desk.options.limits.clone());
        self.write("edit dead letter", deadline, move |session| session.edit_dead(&queue, id, &edit, &limits)).await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        self.begin("redrive", deadline)?;
        let target = redrive.target(queue)?;
        if !self.shared().desk.options.create_queues
            && !self.verify_queues(std::slice::from_ref(&target), deadline).await?.is_healthy()
        {
            return Err(MessagingError::QueueNotFound { queue: target });
        }
        let mut report = if redrive.dry_run {
            let (name, selection) = (queue.clone(), redrive.selection.clone());
            let clock = self.shared().desk.options.clock.clone();
            let look = move |connection: &rusqlite::Connection| {
                let part = Part { queue: &name, selection: &selection, after: 0, limit: usize::MAX };
                Ok(rehearse(connection, &part, &target, clock.now())?)
            };
            self.shared().readers.read("redrive", deadline, look).await?
        } else {
            self.redrive_all(queue, &redrive.selection, &target, deadline).await?
        };
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
            let mut part = Some(0);
            while let Some(after) = part {
                let (queue, selection) = (queue.clone(), selection.clone());
                let chunk = self.write("purge dead letters", deadline, move |session| {
                    Ok(session.purge_dead(&Part { queue: &queue, selection: &selection, after, limit: CHUNK })?)
                });
                let (rows, next) = chunk.await.map_err(|error| match purged {
                    0 => error,
                    _ => half_done("purge dead letters", error),
                })?;
                purged += rows;
                part = next;
            }
        }
        Ok(purged)
    }
}

impl SqliteProvider {
    async fn redrive_all(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        target: &QueueName,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let mut report = RedriveReport::default();
        for selection in chunks(selection) {
            let mut part = Some(0);
            while let Some(after) = part {
                let (queue, selection, target) = (queue.clone(), selection.clone(), target.clone());
                let chunk = self.write("redrive", deadline, move |session| {
                    session.redrive(&Part { queue: &queue, selection: &selection, after, limit: CHUNK }, &target)
                });
                let (done, next) = chunk.await.map_err(|error| match report.redriven[..] {
                    [] => error,
                    _ => half_done("redrive", error),
                })?;
                report.redriven.extend(done.redriven);
                report.skipped.extend(done.skipped);
                part = next;
            }
        }
        Ok(report)
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
