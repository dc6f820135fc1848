//! `impl Store`: says where each operation is.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::{Coalescer, CoalescerConfig};
use postrider_core::wakes::Listener;
use postrider_core::{
    Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, Deadline, MessageId, MessagingError,
    PeekedMessage, QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiptHandle, ReceiveOptions,
    RedriveReport, ReturnLease, Timestamp, WakeUps,
};
use postrider_provider::{Batches, DeadPart, Deliver, Look, Looked, Removal, Store, Undone, batched, hints, until_due};
use tokio::sync::watch;

use crate::PROVIDER;
use crate::connection::{Connection, next_due};
use crate::index::Row;
use crate::look::{list_queues, nothing, verify_queues};
use crate::queue::Queue;
use crate::queues::{delete_queue, present, purge_dead, remove_some, set_paused, with};
use crate::redrive;
use crate::session::Side;
use crate::work;

/// Upper bound of the wait for a file that may still be written to, in a receive that does not wait.
const MAX_SETTLING: Duration = Duration::from_secs(2);

/// Granularity of a file system's clock.
const TICK: Duration = Duration::from_millis(50);

/// Queues that stay open and watched while a receiver waits for them.
#[derive(Debug)]
pub struct Open {
    listener: Listener,
    _queues: Vec<Arc<Queue>>,
}

/// Messages to remove under one lock.
#[derive(Debug)]
pub struct Chunk(Vec<Row>);

fn missing(queue: &QueueName, id: MessageId) -> MessagingError {
    MessagingError::MessageNotFound { queue: queue.dead_letters(), id }
}

impl Store for Connection {
    const PROVIDER: &'static str = PROVIDER;

    const MOST_TOGETHER: usize = usize::MAX;

    const DEAD_CHUNK: usize = usize::MAX;

    type Listener = Open;

    type Chunk = Chunk;

    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn creates_queues(&self) -> bool {
        self.shared.options.create_queues
    }

    fn batches(&self) -> Result<Vec<Coalescer>, MessagingError> {
        Ok(vec![batched(self.clone(), CoalescerConfig::new(PROVIDER))?])
    }

    fn returns(&self) -> Arc<dyn ReturnLease> {
        self.return_leases()
    }

    async fn release(&self, receipts: Vec<ReceiptHandle>) {
        self.release_leases(receipts).await;
    }

    async fn health_check(&self, _: Deadline) -> Result<(), Undone> {
        Ok(self.on_disk(work::health_check).await?)
    }

    fn listen(&self, queues: &[QueueName]) -> Option<Open> {
        Some(Open { _queues: self.kept_open(queues), listener: self.shared.wakes.listen(queues) })
    }

    fn begin_look(&self, open: &Open) {
        open.listener.begin_look();
    }

    fn end_look(&self, open: &Open, next: Timestamp) {
        open.listener.end_look(next);
    }

    async fn look(&self, look: Look) -> Result<Looked, Undone> {
        Ok(self.settle_and_claim(look).await?)
    }

    async fn news(&self, open: &Open, _: &[QueueName], next: Timestamp) {
        until_due(&open.listener, &*self.shared.options.clock, next).await;
    }

    /// A receive that does not wait still waits this long for a file that was just created.
    fn imminent_within(&self) -> Duration {
        self.shared.options.grace_period.min(MAX_SETTLING).saturating_add(TICK)
    }

    async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deliver: &Deliver,
        _: Deadline,
    ) -> Result<Option<QueuedMessage>, Undone> {
        let (queue, options, deliver) = (queue.clone(), options.clone(), deliver.clone());
        let claim = move |shared: &_| {
            let claimed = work::claim_by_id(shared, &queue, id, &options)?;
            Ok(claimed.map(|claimed| deliver.message(claimed)))
        };
        let claimed = self.on_disk(claim).await?;
        self.hand_out(claimed.iter().len());
        Ok(claimed)
    }

    async fn wake_ups(
        &self,
        queue: &QueueName,
        closing: watch::Receiver<bool>,
        deadline: Deadline,
    ) -> Result<WakeUps, MessagingError> {
        let open = self.kept_open(std::slice::from_ref(queue));
        let listener = self.shared.wakes.listen(std::slice::from_ref(queue));
        let clock = self.shared.options.clock.clone();
        // This call starts to watch the folder.
        let (name, now) = (queue.clone(), clock.now());
        let look = self.on_disk(move |shared| work::next_due(shared, &name, now));
        deadline.limit(look).await.ok_or(MessagingError::DeadlineExceeded { operation: "subscribe" })??;
        let (connection, queue) = (self.clone(), queue.clone());
        Ok(hints(listener, clock, closing, move |after| {
            let _ = &open;
            let (connection, queue) = (connection.clone(), queue.clone());
            Box::pin(async move { next_due(&connection, queue, after).await })
        }))
    }

    async fn ensure_queue(&self, queue: &QueueName, _: Deadline) -> Result<(), Undone> {
        let queue = queue.clone();
        Ok(self.on_disk(move |shared| work::ensure_queue(shared, &queue)).await?)
    }

    async fn list_queues(&self, _: Deadline) -> Result<Vec<QueueName>, Undone> {
        Ok(self.on_disk(list_queues).await?)
    }

    async fn verify_queues(&self, queues: &[QueueName], _: Deadline) -> Result<QueueHealthReport, Undone> {
        let queues = queues.to_vec();
        Ok(self.on_disk(move |shared| verify_queues(shared, &queues)).await?)
    }

    async fn stats(&self, queue: &QueueName, _: Deadline) -> Result<QueueStats, Undone> {
        let queue = queue.clone();
        let look = move |shared: &_| {
            with(shared, "stats", &queue, || nothing(shared, &queue), |session| session.stats(&queue))
        };
        Ok(self.on_disk(look).await?)
    }

    async fn peek(&self, queue: &QueueName, limit: usize, _: Deadline) -> Result<Vec<PeekedMessage>, Undone> {
        let queue = queue.clone();
        let look = move |shared: &_| {
            with(shared, "peek", &queue, || Ok(Vec::new()), |session| session.peek(Side::of(&queue), limit))
        };
        Ok(self.on_disk(look).await?)
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, _: Deadline) -> Result<(), Undone> {
        let queue = queue.clone();
        Ok(self.on_disk(move |shared| set_paused(shared, &queue, is_paused)).await?)
    }

    async fn present(&self, _: &'static str, queue: &QueueName, _: Deadline) -> Result<Vec<Chunk>, Undone> {
        let queue = queue.clone();
        let chunks = self.on_disk(move |shared| present(shared, &queue)).await?;
        Ok(chunks.into_iter().map(Chunk).collect())
    }

    async fn remove_some(
        &self,
        _: &'static str,
        queue: &QueueName,
        Chunk(rows): Chunk,
        _: Removal,
        _: Deadline,
    ) -> Result<u64, Undone> {
        let queue = queue.clone();
        Ok(self.on_disk(move |shared| remove_some(shared, &queue, &rows)).await?)
    }

    async fn unlist(&self, queue: &QueueName, _: Deadline) -> Result<bool, Undone> {
        let queue = queue.clone();
        self.on_disk(move |shared| delete_queue(shared, &queue)).await?;
        Ok(false)
    }

    async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        _: bool,
        _: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        let (queue, query) = (queue.clone(), query.clone());
        let none = || Ok(DeadLetterPage { letters: Vec::new(), next: None });
        let list =
            move |shared: &_| with(shared, "list dead letters", &queue, none, |session| session.list_dead(&query));
        Ok(self.on_disk(list).await?)
    }

    async fn get_dead(&self, queue: &QueueName, id: MessageId, _: Deadline) -> Result<Option<DeadLetter>, Undone> {
        let queue = queue.clone();
        let get =
            move |shared: &_| with(shared, "get dead letter", &queue, || Ok(None), |session| session.get_dead(id));
        Ok(self.on_disk(get).await?)
    }

    async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        _: Deadline,
    ) -> Result<DeadLetter, Undone> {
        let queue = queue.clone();
        let edit = move |shared: &_| {
            let none = || Err(missing(&queue, id));
            with(shared, "edit dead letter", &queue, none, |session| session.edit_dead(id, edit))
        };
        Ok(self.on_disk(edit).await?)
    }

    async fn rehearse(&self, part: &DeadPart, target: &QueueName, _: Deadline) -> Result<RedriveReport, Undone> {
        let (part, target) = (part.clone(), target.clone());
        let rehearse = move |shared: &_| redrive::rehearse(shared, &part.queue, &part.selection, &target);
        Ok(self.on_disk(rehearse).await?)
    }

    async fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        _: Deadline,
    ) -> Result<(RedriveReport, Option<i64>), Undone> {
        let (part, target) = (part.clone(), target.clone());
        let redrive = move |shared: &_| redrive::redrive(shared, &part.queue, &part.selection, &target);
        Ok((self.on_disk(redrive).await?, None))
    }

    async fn purge_dead(&self, part: &DeadPart, _: Deadline) -> Result<(u64, Option<i64>), Undone> {
        let part = part.clone();
        Ok((self.on_disk(move |shared| purge_dead(shared, &part.queue, &part.selection)).await?, None))
    }
}
