//! A connection: what callers use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig};
use postrider_core::receive_options::check_visibility;
use postrider_core::{
    Capabilities, Deadline, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, Returns, RowResults, SettledAndReceived, Settlement, UnderWay, WakeUps,
};

use crate::PROVIDER;
use crate::store::{Shared, SpoolStore};
use crate::work;

/// A connection to a [`SpoolStore`]. Clones are the same connection and close together.
#[derive(Debug, Clone)]
pub struct SpoolProvider {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: SpoolStore,
    coalescer: Coalescer,
    pub(crate) returns: Arc<Returns>,
    pub(crate) under_way: UnderWay,
    /// How many messages were handed out here and not settled here.
    pub(crate) held: Arc<AtomicUsize>,
}

impl SpoolProvider {
    pub(crate) fn new(store: SpoolStore) -> Result<Self, MessagingError> {
        let executor = OnThreads { shared: store.shared.clone() };
        let (coalescer, drivers) = Coalescer::new(executor, CoalescerConfig::new(PROVIDER))?;
        drivers.spawn();
        let (shared, held) = (store.shared.clone(), Arc::new(AtomicUsize::new(0)));
        let given_back = held.clone();
        let returns = Returns::new(move |receipts| {
            let shared = shared.clone();
            no_longer_held(&given_back, receipts.len());
            async move { blocking(move || work::give_up(&shared, &receipts)).await }
        });
        let under_way = UnderWay::new(PROVIDER);
        Ok(Self { inner: Arc::new(Inner { store, coalescer, returns, under_way, held }) })
    }

    /// The store behind this connection, to open another.
    pub fn store(&self) -> &SpoolStore {
        &self.inner.store
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.store.shared
    }

    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// These are not held any more, as far as is known.
    pub(crate) fn count_settled(&self, settled: &RowResults<()>) {
        let is_over = |row: &&Result<(), MessagingError>| !row.as_ref().is_err_and(MessagingError::is_retryable);
        no_longer_held(&self.inner.held, settled.iter().filter(is_over).count());
    }

    /// Does something with files, on a thread that may wait for the disk, apart from the caller.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl FnOnce(&Shared) -> Result<T, MessagingError> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        let shared = self.shared().clone();
        let work = blocking(move || work(&shared));
        self.inner.under_way.carry_out(operation, Vec::new(), deadline, work).await?
    }
}

/// Receipts may be settled twice, or elsewhere: the number is not to be relied on, and never below zero.
fn no_longer_held(held: &AtomicUsize, fewer: usize) {
    let _ = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_sub(fewer)));
}

/// Runs what uses files on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MessagingError> + Send + 'static,
) -> Result<T, MessagingError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime is shutting down, or the work panicked.
        Err(_) => Err(MessagingError::OutcomeUnknown { operation: "work on files", ids: Vec::new(), source: None }),
    }
}

/// Carries the coalescer's batches out, each on a thread of its own. What waits meanwhile is in the next one, and shares
/// its writes to the disk.
struct OnThreads {
    shared: Arc<Shared>,
}

impl BatchExecutor for OnThreads {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let (shared, batch) = (self.shared.clone(), batch.clone());
        let done = tokio::task::spawn_blocking(move || BatchReply {
            extends: work::extend(&shared, &batch.extends),
            settles: work::settle(&shared, &batch.settles),
            sends: work::send(&shared, &batch.sends),
        });
        done.await.map_err(|_| BatchFailure::Unknown(MessagingError::Closed { provider: PROVIDER }))
    }
}

impl MessagingService for SpoolProvider {
    fn provider_name(&self) -> &'static str {
        PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        &self.shared().capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let queue = queue.clone();
        self.on_disk("ensure_queue", deadline, move |shared| work::ensure_queue(shared, &queue)).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.begin("send", deadline)?;
        self.inner.coalescer.send(queue, messages, deadline).await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        options.check(&self.capabilities().limits)?;
        self.settle_and_claim(Vec::new(), std::slice::from_ref(queue), options, deadline).await?.received
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        let settled = self.inner.coalescer.settle(settlements, deadline).await?;
        self.count_settled(&settled);
        Ok(settled)
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        self.begin("settle", deadline)?;
        if let Err(error) = options.check(&self.capabilities().limits) {
            let settled = self.settle(settlements, deadline).await?;
            return Ok(SettledAndReceived { settled, received: Err(error) });
        }
        self.settle_and_claim(settlements, queues, options, deadline).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin("extend", deadline)?;
        receipt.check_queue(queue)?;
        check_visibility(extension, &self.capabilities().limits)?;
        self.inner.coalescer.extend(receipt.clone(), extension, deadline).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        options.check(&self.capabilities().limits)?;
        let (queue, options) = (queue.clone(), options.clone());
        let claim = move |shared: &Shared| Ok(work::claim_by_id(shared, &queue, id, &options)?.into_iter().collect());
        let claimed: Vec<_> = self.lease("receive", Vec::new(), deadline, claim).await?;
        Ok(claimed.into_iter().next().map(|claimed| self.deliver(claimed)))
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.wake_ups(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.on_disk("health check", deadline, work::health_check).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.close();
        let closed = self.inner.coalescer.close(deadline).await;
        self.inner.under_way.finish(deadline).await?;
        closed
    }
}
