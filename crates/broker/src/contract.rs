//! The store operations, mapped to the broker's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::coalescer::{BatchFailure, Coalescer, CoalescerConfig, ExtendRow, Lanes, SendRow};
use postrider_core::{
    Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline,
    MessageId, MessagingError, PeekedMessage, QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiptHandle,
    ReceiveOptions, RedriveReport, ReturnLease, RowResults, Settlement, Timestamp, WakeUps,
};
use postrider_provider::{Batches, DeadPart, Deliver, Look, Looked, Removal, Store, Undone, batched};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use crate::broker::{Broker, Hold};
use crate::dead_letters;

/// Upper bound of the tries of a repeatable operation.
const TRIES: usize = 4;

/// Pause between tries: the loss of a connection may be noticed late.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection to a broker. Clones are the same connection.
///
/// The futures of a broker client are deep and large, so they are boxed before the provider wraps them.
#[derive(Debug, Clone)]
pub struct Connection<B> {
    broker: B,
    holds: Arc<Holds>,
}

/// Locks of the queues whose messages are held. A hold hides messages from other holds, so only one runs at a time.
#[derive(Debug, Default)]
struct Holds(Mutex<HashMap<QueueName, Arc<AsyncMutex<()>>>>);

impl<B: Broker> Connection<B> {
    /// Creates a connection on top of a broker.
    pub fn new(broker: B) -> Self {
        Self { broker, holds: Arc::default() }
    }

    /// The broker.
    pub fn broker(&self) -> &B {
        &self.broker
    }

    /// Waits for the lock of the holds on a queue.
    pub(crate) async fn lock_hold(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<OwnedMutexGuard<()>, MessagingError> {
        let lock = {
            let mut queues = self.holds.0.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, lock| Arc::strong_count(lock) > 1);
            queues.entry(queue.clone()).or_default().clone()
        };
        let guard = deadline.limit(lock.lock_owned()).await;
        guard.ok_or(MessagingError::DeadlineExceeded { operation: "read" })
    }

    /// Runs a repeatable operation, again on the next connection if the connection is lost.
    async fn repeat<T, Fut>(&self, deadline: Deadline, work: impl Fn() -> Fut) -> Result<T, Undone>
    where
        Fut: Future<Output = Result<T, MessagingError>> + Send,
    {
        for _ in 1..TRIES {
            match Box::pin(work()).await {
                Err(MessagingError::Connection { .. }) if !deadline.has_passed() => tokio::time::sleep(PAUSE).await,
                done => return Ok(done?),
            }
        }
        Ok(Box::pin(work()).await?)
    }
}

impl<B: Broker> Batches for Connection<B> {
    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        Box::pin(self.broker.send(rows)).await
    }

    async fn settle(&self, rows: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        Box::pin(self.broker.settle(rows)).await
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        Box::pin(self.broker.extend(rows)).await
    }

    async fn give_up(&self, receipts: Vec<ReceiptHandle>) -> Result<(), MessagingError> {
        Box::pin(self.broker.give_up(&receipts)).await
    }
}

impl<B: Broker> Store for Connection<B> {
    const PROVIDER: &'static str = B::PROVIDER;

    /// A broker settles and delivers in separate operations.
    const MOST_TOGETHER: usize = 0;

    const DEAD_CHUNK: usize = usize::MAX;

    const LOOKS_AT_SEVERAL: bool = false;

    type Listener = ();

    /// A chunk is everything that is not leased.
    type Chunk = ();

    fn capabilities(&self) -> &Capabilities {
        self.broker.capabilities()
    }

    fn creates_queues(&self) -> bool {
        self.broker.creates_queues()
    }

    fn batches(&self) -> Result<Vec<Coalescer>, MessagingError> {
        let lane = |lanes| batched(self.clone(), CoalescerConfig { lanes, ..self.broker.batches() });
        let mut all = vec![lane(Lanes::Separate)?];
        for _ in 1..self.broker.senders() {
            // A merged coalescer has one driver; this one only sends.
            all.push(lane(Lanes::Merged)?);
        }
        Ok(all)
    }

    async fn sent(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.broker.sent(queue, deadline).await
    }

    fn returns(&self) -> Arc<dyn ReturnLease> {
        self.return_leases()
    }

    /// Given up instead of released: not every broker can take back a delivery uncounted.
    async fn release(&self, receipts: Vec<ReceiptHandle>) {
        if let Err(error) = Box::pin(self.broker.give_up(&receipts)).await {
            tracing::debug!(?error, "leases without a caller were not given back; they will expire");
        }
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), Undone> {
        self.repeat(deadline, || self.broker.health_check(deadline)).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        Box::pin(self.broker.close(deadline)).await
    }

    /// A look waits by itself, because the broker pushes.
    fn listen(&self, _: &[QueueName]) -> Option<()> {
        None
    }

    async fn look(&self, look: Look) -> Result<Looked, Undone> {
        let Look { queues, options, deadline, patience, deliver, .. } = look;
        let mut looked = Looked::default();
        if let Some(queue) = queues.first() {
            let claimed = Box::pin(self.broker.receive(queue, &options, deadline, patience)).await?;
            looked.messages = claimed.into_iter().map(|claimed| deliver.message(claimed)).collect();
        }
        Ok(looked)
    }

    async fn news(&self, (): &(), _: &[QueueName], _: Timestamp) {}

    /// A broker cannot deliver a message by its id.
    async fn claim_by_id(
        &self,
        _: &QueueName,
        _: MessageId,
        _: &ReceiveOptions,
        _: &Deliver,
        _: Deadline,
    ) -> Result<Option<QueuedMessage>, Undone> {
        Ok(None)
    }

    async fn wake_ups(
        &self,
        queue: &QueueName,
        _: watch::Receiver<bool>,
        deadline: Deadline,
    ) -> Result<WakeUps, MessagingError> {
        Box::pin(self.broker.wake_ups(queue, deadline)).await
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        self.repeat(deadline, || self.broker.ensure_queue(queue, deadline)).await
    }

    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        self.repeat(deadline, || self.broker.list_queues(deadline)).await
    }

    async fn verify_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<QueueHealthReport, Undone> {
        let verify = || async {
            let mut report = QueueHealthReport::default();
            for queue in queues {
                match self.broker.is_usable(queue, deadline).await? {
                    None => report.missing.push(queue.clone()),
                    Some(Ok(())) => report.healthy.push(queue.clone()),
                    Some(Err(why)) => report.errors.push((queue.clone(), why)),
                }
            }
            Ok(report)
        };
        self.repeat(deadline, verify).await
    }

    async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        self.repeat(deadline, || self.broker.stats(queue, deadline)).await
    }

    async fn peek(&self, queue: &QueueName, limit: usize, deadline: Deadline) -> Result<Vec<PeekedMessage>, Undone> {
        let read = || async {
            let _guard = self.lock_hold(queue, deadline).await?;
            peek(&self.broker, queue, limit, deadline).await
        };
        self.repeat(deadline, read).await
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, deadline: Deadline) -> Result<(), Undone> {
        self.repeat(deadline, || self.broker.set_paused(queue, is_paused, deadline)).await
    }

    async fn present(&self, _: &'static str, _: &QueueName, _: Deadline) -> Result<Vec<()>, Undone> {
        Ok(vec![()])
    }

    async fn remove_some(
        &self,
        _: &'static str,
        queue: &QueueName,
        (): (),
        _: Removal,
        deadline: Deadline,
    ) -> Result<u64, Undone> {
        Ok(Box::pin(self.broker.purge(queue, deadline)).await?)
    }

    async fn unlist(&self, queue: &QueueName, deadline: Deadline) -> Result<bool, Undone> {
        self.repeat(deadline, || self.broker.delete_queue(queue, deadline)).await?;
        Ok(false)
    }

    async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        bodies: bool,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        let queue = queue.dead_letters();
        let list = || async {
            let _guard = self.lock_hold(&queue, deadline).await?;
            dead_letters::list(&self.broker, &queue, query, bodies, deadline).await
        };
        self.repeat(deadline, list).await
    }

    async fn find_dead(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Option<Vec<MessageId>>, Undone> {
        // One page, because each page reads every dead letter.
        let query = DeadLetterQuery { selection: selection.clone(), limit: usize::MAX, after: None };
        let found = self.list_dead(queue, &query, false, deadline).await?.letters;
        let matches = |letter: &DeadLetter| error.is_none_or(|error| letter.error.as_deref() == Some(error));
        Ok(Some(found.into_iter().filter(matches).map(|letter| letter.id).collect()))
    }

    async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, Undone> {
        let queue = queue.dead_letters();
        let _guard = self.lock_hold(&queue, deadline).await?;
        let limits = &self.capabilities().limits;
        Ok(Box::pin(dead_letters::replace(&self.broker, &queue, id, edit, limits, deadline)).await?)
    }

    async fn rehearse(&self, part: &DeadPart, target: &QueueName, deadline: Deadline) -> Result<RedriveReport, Undone> {
        let queue = part.queue.dead_letters();
        let _guard = self.lock_hold(&queue, deadline).await?;
        Ok(Box::pin(dead_letters::redrive(&self.broker, &queue, target, &part.selection, true, deadline)).await?)
    }

    async fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        deadline: Deadline,
    ) -> Result<(RedriveReport, Option<i64>), Undone> {
        let queue = part.queue.dead_letters();
        if Box::pin(self.broker.is_usable(target, deadline)).await?.is_none() {
            Box::pin(self.broker.ensure_queue(target, deadline)).await?;
        }
        let _guard = self.lock_hold(&queue, deadline).await?;
        let redrive = dead_letters::redrive(&self.broker, &queue, target, &part.selection, false, deadline);
        Ok((Box::pin(redrive).await?, None))
    }

    async fn purge_dead(&self, part: &DeadPart, deadline: Deadline) -> Result<(u64, Option<i64>), Undone> {
        let queue = part.queue.dead_letters();
        let _guard = self.lock_hold(&queue, deadline).await?;
        let purge = dead_letters::purge(&self.broker, &queue, &part.selection, deadline);
        Ok((Box::pin(purge).await?, None))
    }
}

async fn peek<B: Broker>(
    broker: &B,
    queue: &QueueName,
    limit: usize,
    deadline: Deadline,
) -> Result<Vec<PeekedMessage>, MessagingError> {
    let mut hold = broker.hold(queue, deadline).await?;
    let (mut seen, now) = (Vec::new(), Timestamp::now());
    while seen.len() < limit {
        match hold.take(limit - seen.len()).await {
            Ok(more) if more.is_empty() => break,
            Ok(more) => seen.extend(more.into_iter().map(|held| held.stored.into_peeked(now))),
            Err(error) => {
                // Taken messages must not stay hidden. The first error says more than a second one.
                let _ = hold.put_back().await;
                return Err(error);
            }
        }
    }
    hold.put_back().await?;
    Ok(seen)
}
