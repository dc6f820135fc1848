//! The provider contract: each operation, and the function that does it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_core::coalescer::{ExtendRow, SendRow};
use postrider_core::{
    ArchivePage, ArchiveQuery, Begun, Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery,
    DeadLetterReason, DeadLetterSelection, Deadline, IdempotencyKey, IdempotencyToken, MessageAttempt, MessageId,
    MessagingError, PeekedMessage, QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiptHandle,
    ReceiveOptions, RedriveReport, RowResults, Settlement, Standing,
};
use postrider_provider::{DeadPart, Deliver, RecordChange, Records, Removal, Store, Undone};
use postrider_sql::{Due, SqlStore, Taken, Wakes, find_dead, get_dead, health};

use crate::PROVIDER;
use crate::claim::Chores;
use crate::store::PostgresStore;

impl SqlStore for PostgresStore {
    type Chores = Chores;

    fn wakes(&self) -> &Arc<Wakes> {
        &self.shared.wakes
    }

    fn poll_interval(&self) -> Duration {
        self.shared.options.poll_interval
    }

    fn hear(&self, _: &[QueueName]) {
        if let Some(notifier) = &self.shared.notifier {
            notifier.listen([]);
        }
    }

    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, Undone> {
        self.shared.send(rows).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        self.shared.settle(settlements).await
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        self.shared.extend(rows).await
    }

    async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        self.shared.give_up(receipts).await
    }

    async fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Taken<Chores>, Undone> {
        self.shared.settle_and_claim(settlements, queue, wanted, options, deadline).await
    }

    async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.shared.do_chores(queue, chores).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        self.shared.next_due(queue).await
    }
}

impl Store for PostgresStore {
    const PROVIDER: &'static str = PROVIDER;

    postrider_sql::database!();

    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn creates_queues(&self) -> bool {
        self.shared.options.create_queues
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), Undone> {
        self.shared.ask("health check", deadline, "select 1", Vec::new()).await.map(drop)
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        let statement = &self.shared.database.sql.ensure_queue;
        self.shared.ask("ensure queue", deadline, statement, vec![&queue.as_str()]).await.map(drop)
    }

    async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deliver: &Deliver,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, Undone> {
        let claimed = self.shared.claim_by_id(queue, id, options, deadline).await?;
        Ok(claimed.map(|claimed| deliver.message(claimed)))
    }

    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        self.shared.list_queues(deadline).await
    }

    async fn verify_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<QueueHealthReport, Undone> {
        Ok(health(queues, &self.shared.queues_exist(queues, deadline).await?))
    }

    async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        self.shared.stats(queue, deadline).await
    }

    async fn peek_rows(
        &self,
        queue: &QueueName,
        after: i64,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<(i64, PeekedMessage)>, Undone> {
        self.shared.peek(queue, after, limit, deadline).await
    }

    async fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, Undone> {
        self.shared.attempts(queue, id, deadline).await
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, Undone> {
        self.shared.archived(queue, query, deadline).await
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), Undone> {
        self.shared.deliver_now(queue, id, deadline).await
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        self.shared.dead_letter_waiting(queue, id, reason, error, deadline).await
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, deadline: Deadline) -> Result<(), Undone> {
        let (sql, began) = (&self.shared.database.sql, Instant::now());
        let (operation, statement) = if is_paused { ("pause", &sql.pause) } else { ("resume", &sql.resume) };
        self.shared.ask(operation, deadline, statement, vec![&queue.as_str()]).await?;
        self.shared.touch([queue], began);
        Ok(())
    }

    async fn unlist(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        let dead = queue.dead_letters();
        let names = (queue.as_str(), dead.as_str());
        let statement = &self.shared.database.sql.delete_queue;
        self.shared.ask("delete queue", deadline, statement, vec![&names.0, &names.1]).await.map(|_| true)
    }

    async fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Vec<Self::Chunk>, Undone> {
        self.shared.present(operation, queue, deadline).await
    }

    async fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chunk: Self::Chunk,
        removal: Removal,
        _: Deadline,
    ) -> Result<u64, Undone> {
        self.shared.remove_some(operation, queue, &chunk, removal).await
    }

    async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        bodies: bool,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        self.shared.list_dead(queue, query, bodies, deadline).await
    }

    async fn find_dead(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Option<Vec<MessageId>>, Undone> {
        find_dead(selection, error, |reason, error| self.shared.find_dead(queue, reason, error, deadline)).await
    }

    async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, Undone> {
        self.shared.edit_dead(queue, id, &edit, deadline).await?;
        get_dead(self, queue, id, deadline).await
    }

    async fn rehearse(&self, part: &DeadPart, target: &QueueName, _: Deadline) -> Result<RedriveReport, Undone> {
        self.shared.rehearse(part, target).await
    }

    async fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        _: Deadline,
    ) -> Result<(RedriveReport, Option<i64>), Undone> {
        self.shared.redrive(part, target).await
    }

    async fn purge_dead(&self, part: &DeadPart, _: Deadline) -> Result<(u64, Option<i64>), Undone> {
        self.shared.purge_dead(part).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        if let Some(notifier) = &self.shared.notifier {
            // Send the pending hints now.
            deadline.limit(notifier.flush(deadline)).await.unwrap_or_default();
        }
        Ok(())
    }
}

impl Records for PostgresStore {
    async fn begin_work(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, Undone> {
        self.shared.begin_work(key, lease, deadline).await
    }

    async fn change_work(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> Result<Standing, Undone> {
        self.shared.change_work(token, change, deadline).await
    }

    async fn forget_work(&self, older_than: Duration, deadline: Deadline) -> Result<u64, Undone> {
        self.shared.forget_work(older_than, deadline).await
    }
}
