//! A connection: sending, receiving and settling.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::coalescer::Coalescer;
use postrider_core::receive_options::check_visibility;
use postrider_core::receive_several;
use postrider_core::service::is_still_leased;
use postrider_core::{
    Capabilities, Deadline, Feature, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, RowResults, SettledAndReceived, Settlement, UnderWay, WakeUps, async_trait,
};
use tokio::sync::watch;

use crate::store::{Deliver, Looked, Store};
use crate::undone::Undone;

/// A connection to a store that implements the contract. Clones share the connection and close together.
#[derive(Debug)]
pub struct Provider<S> {
    pub(crate) inner: Arc<Inner<S>>,
}

impl<S> Clone for Provider<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct Inner<S> {
    pub(crate) store: S,
    /// The first lane keeps the order. The others take messages without ordering keys, so that the store is not idle
    /// while a batch waits for its answer.
    lanes: Vec<Lane>,
    pub(crate) deliver: Deliver,
    pub(crate) under_way: UnderWay,
}

#[derive(Debug)]
struct Lane {
    coalescer: Coalescer,
    /// Number of calls that use the lane.
    calls: AtomicUsize,
}

/// A call on a lane; counted until it is dropped.
struct Call<'a>(&'a Lane);

impl<'a> Call<'a> {
    fn on(lane: &'a Lane) -> Self {
        lane.calls.fetch_add(1, Ordering::Relaxed);
        Self(lane)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Store> Provider<S> {
    /// Creates a connection on top of a store.
    pub fn new(store: S) -> Result<Self, MessagingError> {
        let lane = |coalescer| Lane { coalescer, calls: AtomicUsize::new(0) };
        let lanes = store.batches()?.into_iter().map(lane).collect();
        let deliver = Deliver(store.returns());
        Ok(Self { inner: Arc::new(Inner { store, lanes, deliver, under_way: UnderWay::new(S::PROVIDER) }) })
    }

    /// The connection to the store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Turns true when the connection closes.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.inner.under_way.closing()
    }

    /// Refuses an operation when the connection is closed or the deadline has passed.
    pub fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// Runs an operation of the store to its end, even if the caller leaves.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let done = if S::SPAWNS {
            self.inner.under_way.carry_out(operation, ids.clone(), deadline, work).await?
        } else {
            let unknown = || MessagingError::OutcomeUnknown { operation, ids: ids.clone(), source: None };
            deadline.limit(work).await.ok_or_else(unknown)?
        };
        done.map_err(|error| error.into_error(operation, ids))
    }

    /// Runs an operation of the store that is no part of the contract, by the same rules.
    pub async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        self.carry_out(operation, Vec::new(), deadline, work).await
    }

    /// Like [`Provider::call`], for an operation that is harmless to repeat.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        let work = async move { Ok(work.await.map_err(Undone::into_harmless)) };
        self.carry_out(operation, Vec::new(), deadline, work).await?
    }

    /// The lane for a send: the first one if a message has an ordering key, else the one with the fewest calls.
    fn sends(&self, messages: &[Message]) -> Call<'_> {
        let (ordered, others) = (&self.inner.lanes[0], &self.inner.lanes[1..]);
        let has_keys = messages.iter().any(|message| message.ordering_key.is_some());
        let least_busy = others.iter().min_by_key(|lane| lane.calls.load(Ordering::Relaxed));
        Call::on(least_busy.filter(|_| !has_keys).unwrap_or(ordered))
    }

    /// Receives from one or several queues.
    async fn receive_from(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        match S::LOOKS_AT_SEVERAL {
            true => self.receive(Vec::new(), queues, options, deadline).await?.received,
            false => receive_several::receive(self, queues, options, deadline).await,
        }
    }

    fn ordered(&self) -> &Coalescer {
        &self.inner.lanes[0].coalescer
    }
}

#[async_trait]
impl<S: Store> MessagingService for Provider<S> {
    fn provider_name(&self) -> &'static str {
        S::PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        self.store().capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let (store, queue) = (self.store().clone(), queue.origin());
        let ensure = async move { store.ensure_queue(&queue, deadline).await };
        self.call("ensure queue", deadline, ensure).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.begin("send", deadline)?;
        let mut rows = {
            let call = self.sends(&messages);
            call.0.coalescer.send(queue, messages, deadline).await?
        };
        if rows.iter().any(Result::is_ok)
            && let Err(error) = self.store().sent(queue, deadline).await
        {
            let source = Some(Arc::new(error) as _);
            for row in rows.iter_mut() {
                if let Ok(id) = row {
                    let (ids, source) = (vec![*id], source.clone());
                    *row = Err(MessagingError::OutcomeUnknown { operation: "send", ids, source });
                }
            }
        }
        Ok(rows)
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        options.check(&self.capabilities().limits)?;
        self.receive(Vec::new(), std::slice::from_ref(queue), options, deadline).await?.received
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        self.ordered().settle(settlements, deadline).await
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        self.begin("settle", deadline)?;
        let unusable = options.check(&self.capabilities().limits).err();
        let fits = settlements.len() <= S::MOST_TOGETHER
            && (S::LOOKS_AT_SEVERAL || queues.len() == 1)
            && !crate::receive::settles_twice(&settlements);
        if !queues.is_empty() && unusable.is_none() && fits {
            return self.receive(settlements, queues, options, deadline).await;
        }
        let settled = if settlements.is_empty() { Vec::new() } else { self.settle(settlements, deadline).await? };
        // What is still leased makes room for nothing.
        let kept = settled.iter().filter(|row| row.as_ref().is_err_and(is_still_leased)).count();
        let max = options.max.saturating_sub(kept);
        let received = match unusable {
            Some(error) => Err(error),
            None if queues.is_empty() || max == 0 => Ok(Vec::new()),
            None => self.receive_from(queues, &ReceiveOptions { max, ..options.clone() }, deadline).await,
        };
        Ok(SettledAndReceived { settled, received })
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.begin("extend", deadline)?;
        receipt.check_queue(queue)?;
        check_visibility(extension, &self.capabilities().limits)?;
        self.ordered().extend(receipt.clone(), extension, deadline).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        self.capabilities().require(Feature::ReceiveById)?;
        options.check(&self.capabilities().limits)?;
        let (store, queue, options) = (self.store().clone(), queue.clone(), options.clone());
        let deliver = self.inner.deliver.clone();
        let claim = async move {
            let claimed = store.claim_by_id(&queue, id, &options, &deliver, deadline).await?;
            Ok(Looked { messages: claimed.into_iter().collect(), ..Looked::default() })
        };
        Ok(self.lease("receive", Vec::new(), deadline, claim).await?.messages.pop())
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.capabilities().require(Feature::WakeUp)?;
        self.store().wake_ups(queue, self.inner.under_way.closing(), deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let store = self.store().clone();
        self.call("health check", deadline, async move { store.health_check(deadline).await }).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.close();
        let mut closed = Ok(());
        for lane in &self.inner.lanes {
            closed = closed.and(lane.coalescer.close(deadline).await);
        }
        self.inner.under_way.finish(deadline).await?;
        self.store().close(deadline).await?;
        closed
    }
}
