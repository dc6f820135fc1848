//! Implements the provider contract with the writer and the readers.

use std::sync::Arc;

use postrider_core::coalescer::Coalescer;
use postrider_core::wakes::Listener;
use postrider_core::{
    ArchivePage, ArchiveQuery, Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery,
    DeadLetterReason, DeadLetterSelection, Deadline, MessageAttempt, MessageId, MessagingError, PeekedMessage,
    QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiveOptions, RedriveReport, ReturnLease, Timestamp,
    WakeUps,
};
use postrider_provider::{DeadPart, Deliver, Look, Looked, Removal, Store, Undone, until_due};
use tokio::sync::watch;

use crate::PROVIDER;
use crate::claim::next_due;
use crate::dead_letters::preview_redrive;
use crate::error::{Failure, refusal_as_value};
use crate::provider::Connection;
use crate::purge::{self, Present};
use crate::session::Session;
use crate::{archived, look};

/// Settles, then leases what is due in the queues, in one transaction.
fn settle_and_claim(session: &mut Session<'_>, look: &Look) -> Result<Looked, Failure> {
    let mut looked = Looked::default();
    for settlement in &look.settlements {
        looked.settled.push(refusal_as_value(session.settle(settlement))?);
    }
    if look.patience.is_closing() {
        // Due messages are left to other connections.
        return Ok(looked);
    }
    let mut options = look.options.clone();
    for queue in &look.queues {
        let claim = session.claim(queue, &options)?;
        options.max -= claim.messages.len().min(options.max);
        looked.messages.extend(claim.messages.into_iter().map(|claimed| look.deliver.message(claimed)));
        looked.next = looked.next.min(claim.next);
        looked.is_cut_short |= claim.is_cut_short;
        if options.max == 0 {
            break;
        }
    }
    Ok(looked)
}

impl Connection {
    /// The rows of a message in a queue. A reader searches them: message ids have no index, and the writer must not
    /// scan a queue.
    async fn find(
        &self,
        operation: &'static str,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<i64>, MessagingError> {
        let queue = queue.clone();
        self.read(operation, deadline, move |connection| Ok(look::find(connection, &queue, id)?)).await
    }

    fn now(&self) -> Timestamp {
        self.shared().context.options.clock.now()
    }
}

impl Store for Connection {
    const PROVIDER: &'static str = PROVIDER;

    const MOST_TOGETHER: usize = 1000;

    const DEAD_CHUNK: usize = 500;

    /// The writer carries out every operation.
    const SPAWNS: bool = false;

    type Listener = Listener;

    type Chunk = Vec<Present>;

    fn capabilities(&self) -> &Capabilities {
        &self.shared().context.rules.capabilities
    }

    fn creates_queues(&self) -> bool {
        self.shared().context.options.create_queues
    }

    fn batches(&self) -> Result<Vec<Coalescer>, MessagingError> {
        Ok(vec![self.coalescer()?])
    }

    fn returns(&self) -> Arc<dyn ReturnLease> {
        self.return_leases()
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), Undone> {
        // An empty transaction: the write lock can be taken and the file can be read.
        Ok(self.write("health check", deadline, |session| Ok(session.last_id().map(|_| ())?)).await?)
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.end(deadline).await
    }

    fn listen(&self, queues: &[QueueName]) -> Option<Listener> {
        Some(self.shared().context.wakes.listen(queues))
    }

    fn begin_look(&self, listener: &Listener) {
        listener.begin_look();
    }

    fn end_look(&self, listener: &Listener, next: Timestamp) {
        listener.end_look(next);
    }

    async fn look(&self, look: Look) -> Result<Looked, Undone> {
        let operation = if look.settlements.is_empty() { "receive" } else { "settle" };
        let ids = look.settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        let deadline = look.deadline;
        Ok(self.lease(operation, ids, deadline, move |session| settle_and_claim(session, &look)).await?)
    }

    async fn news(&self, listener: &Listener, _: &[QueueName], next: Timestamp) {
        until_due(listener, &*self.shared().context.options.clock, next).await;
    }

    async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deliver: &Deliver,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, Undone> {
        let rows = self.find("receive", queue, id, deadline).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let (queue, options, deliver) = (queue.clone(), options.clone(), deliver.clone());
        let claim = move |session: &mut Session<'_>| {
            let claimed = session.claim_by_id(&queue, id, &rows, &options)?;
            Ok(claimed.map(|claimed| deliver.message(claimed)).into_iter().collect::<Vec<_>>())
        };
        Ok(self.lease("receive", Vec::new(), deadline, claim).await?.pop())
    }

    async fn wake_ups(
        &self,
        queue: &QueueName,
        closing: watch::Receiver<bool>,
        _: Deadline,
    ) -> Result<WakeUps, MessagingError> {
        let name = queue.clone();
        let next = move |connection: &rusqlite::Connection, after| next_due(connection, &name, after);
        self.hints(std::slice::from_ref(queue), Arc::new(next), closing)
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        let queue = queue.clone();
        Ok(self.write("ensure queue", deadline, move |session| Ok(session.ensure_queue(&queue)?)).await?)
    }

    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        Ok(self.read("list queues", deadline, |connection| Ok(look::list_queues(connection)?)).await?)
    }

    async fn verify_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<QueueHealthReport, Undone> {
        let queues = queues.to_vec();
        let read = move |connection: &rusqlite::Connection| Ok(look::verify_queues(connection, &queues)?);
        Ok(self.read("verify queues", deadline, read).await?)
    }

    async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        let (queue, connection) = (queue.clone(), self.clone());
        let read = move |file: &rusqlite::Connection| Ok(look::stats(file, &queue, connection.now())?);
        Ok(self.read("stats", deadline, read).await?)
    }

    async fn peek_rows(
        &self,
        queue: &QueueName,
        after: i64,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<(i64, PeekedMessage)>, Undone> {
        let (queue, connection) = (queue.clone(), self.clone());
        let read = move |file: &rusqlite::Connection| Ok(look::peek(file, &queue, after, limit, connection.now())?);
        Ok(self.read("peek", deadline, read).await?)
    }

    async fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, Undone> {
        let queue = queue.clone();
        let read = move |connection: &rusqlite::Connection| Ok(look::attempts(connection, &queue, id)?);
        Ok(self.read("read attempts", deadline, read).await?)
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, Undone> {
        let (queue, query) = (queue.clone(), query.clone());
        let read = move |connection: &rusqlite::Connection| archived::archived(connection, &queue, &query);
        Ok(self.read("search the archive", deadline, read).await?)
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), Undone> {
        const DELIVER: &str = "deliver now";
        let rows = self.find(DELIVER, queue, id, deadline).await?;
        let queue = queue.clone();
        Ok(self.write(DELIVER, deadline, move |session| session.deliver_now(&queue, id, &rows)).await?)
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        const DEAD_LETTER: &str = "dead-letter";
        let rows = self.find(DEAD_LETTER, queue, id, deadline).await?;
        let queue = queue.clone();
        let dead_letter =
            move |session: &mut Session<'_>| session.dead_letter_waiting(&queue, id, &rows, &reason, error.as_deref());
        Ok(self.write(DEAD_LETTER, deadline, dead_letter).await?)
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, deadline: Deadline) -> Result<(), Undone> {
        let (operation, queue) = (if is_paused { "pause" } else { "resume" }, queue.clone());
        let set = move |session: &mut Session<'_>| match is_paused {
            true => Ok(session.pause(&queue)?),
            false => Ok(session.resume(&queue)?),
        };
        Ok(self.write(operation, deadline, set).await?)
    }

    async fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Present>>, Undone> {
        let queue = queue.clone();
        let read = move |connection: &rusqlite::Connection| Ok(purge::present(connection, &queue)?);
        let present = self.read(operation, deadline, read).await?;
        Ok(present.chunks(purge::CHUNK).map(<[Present]>::to_vec).collect())
    }

    async fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chunk: Vec<Present>,
        removal: Removal,
        deadline: Deadline,
    ) -> Result<u64, Undone> {
        let queue = queue.clone();
        let remove = move |session: &mut Session<'_>| Ok(session.remove_some(&queue, &chunk, removal)?);
        Ok(self.write(operation, deadline, remove).await?)
    }

    async fn unlist(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        let queue = queue.clone();
        self.write("delete queue", deadline, move |session| Ok(session.unlist_queue(&queue)?)).await?;
        Ok(true)
    }

    async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        bodies: bool,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        let (queue, query) = (queue.clone(), query.clone());
        let read = move |connection: &rusqlite::Connection| look::list_dead(connection, &queue, &query, bodies);
        Ok(self.read("list dead letters", deadline, read).await?)
    }

    async fn find_dead(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Option<Vec<MessageId>>, Undone> {
        let (queue, selection, error) = (queue.clone(), selection.clone(), error.map(str::to_owned));
        let read = move |connection: &rusqlite::Connection| {
            Ok(look::find_dead(connection, &queue, &selection, error.as_deref())?)
        };
        Ok(Some(self.read("find dead letters", deadline, read).await?))
    }

    async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, Undone> {
        let (queue, limits) = (queue.clone(), self.shared().context.options.limits.clone());
        let edit = move |session: &mut Session<'_>| session.edit_dead(&queue, id, &edit, &limits);
        Ok(self.write("edit dead letter", deadline, edit).await?)
    }

    async fn rehearse(&self, part: &DeadPart, target: &QueueName, deadline: Deadline) -> Result<RedriveReport, Undone> {
        let (part, target, connection) = (part.clone(), target.clone(), self.clone());
        let read = move |file: &rusqlite::Connection| Ok(preview_redrive(file, &part, &target, connection.now())?);
        Ok(self.read("redrive", deadline, read).await?)
    }

    async fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        deadline: Deadline,
    ) -> Result<(RedriveReport, Option<i64>), Undone> {
        let (part, target) = (part.clone(), target.clone());
        Ok(self.write("redrive", deadline, move |session| session.redrive(&part, &target)).await?)
    }

    async fn purge_dead(&self, part: &DeadPart, deadline: Deadline) -> Result<(u64, Option<i64>), Undone> {
        let part = part.clone();
        Ok(self.write("purge dead letters", deadline, move |session| Ok(session.purge_dead(&part)?)).await?)
    }
}
