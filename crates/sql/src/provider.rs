//! A connection: what callers use.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::{
    Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, ExtendRow,
};
use postrider_core::receive_options::check_visibility;
use postrider_core::{
    Capabilities, Deadline, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, ReturnLease, Returns, RowResults, SettledAndReceived, Settlement, UnderWay, WakeUps,
};

use crate::rounds::{Receipt, in_rounds, needs_rounds};
use crate::store::{Claimed, SqlStore};
use crate::undone::Undone;

/// So many settlements share a transaction with a claim; more go in batches before it.
const MOST_TOGETHER: usize = 1000;

/// A connection to a store, in the sense of the contract. Clones are the same connection and close together.
#[derive(Debug)]
pub struct SqlProvider<S> {
    pub(crate) inner: Arc<Inner<S>>,
}

impl<S> Clone for SqlProvider<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct Inner<S> {
    store: S,
    coalescer: Coalescer,
    returns: Arc<Returns>,
    pub(crate) under_way: UnderWay,
}

impl<S: SqlStore> SqlProvider<S> {
    /// One more connection. Connections of a store share what it has and are closed one by one.
    pub fn new(store: S) -> Result<Self, MessagingError> {
        let executor = Executor { store: store.clone() };
        let (coalescer, drivers) = Coalescer::new(executor, CoalescerConfig::new(S::PROVIDER))?;
        // A task, because callers who are not polled must not hold up the others.
        drivers.spawn();
        let giver = store.clone();
        let returns = Returns::new(move |receipts| {
            let store = giver.clone();
            async move { store.give_up(&receipts).await.map_err(Undone::into_harmless) }
        });
        Ok(Self { inner: Arc::new(Inner { store, coalescer, returns, under_way: UnderWay::new(S::PROVIDER) }) })
    }

    /// The store behind this connection, to open another.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// What every call asks before it does anything.
    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// Carries work out apart from its caller, who may leave at any time: a transaction that was begun is ended, and
    /// what was leased for nobody is given back.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let done = self.inner.under_way.carry_out(operation, ids.clone(), deadline, work).await?;
        done.map_err(|error| error.into_error(operation, ids))
    }

    /// Carries out what a store does beside messages, by the same rules: nothing begins on a connection that is closed,
    /// and what was begun is brought to its end when its caller has left.
    pub async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Undone>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        self.carry_out(operation, Vec::new(), deadline, work).await
    }

    pub(crate) fn deliver(&self) -> impl Fn(Claimed) -> QueuedMessage + Send + Sync + 'static {
        let returns: Arc<dyn ReturnLease> = self.inner.returns.clone();
        move |claimed| QueuedMessage::new(claimed.body, claimed.envelope, claimed.receipt, returns.clone())
    }
}

/// Carries the coalescer's batches out.
struct Executor<S> {
    store: S,
}

impl<S: SqlStore> BatchExecutor for Executor<S> {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let failed = Undone::into_batch_failure;
        // The lanes are apart, so a batch has rows of one kind.
        let mut reply = BatchReply::default();
        let store = &self.store;
        if !batch.extends.is_empty() {
            let receipt: Receipt<ExtendRow> = |row| &row.receipt;
            let extended =
                in_rounds("extend", &batch.extends, receipt, |rows| async move { store.extend(&rows).await });
            reply.extends = extended.await.map_err(failed)?;
        }
        if !batch.settles.is_empty() {
            let receipt: Receipt<Settlement> = |row| &row.receipt;
            let settled = in_rounds("settle", &batch.settles, receipt, |rows| async move { store.settle(&rows).await });
            reply.settles = settled.await.map_err(failed)?;
        }
        if !batch.sends.is_empty() {
            reply.sends = self.store.send(&batch.sends).await.map_err(failed)?;
        }
        Ok(reply)
    }
}

impl<S: SqlStore> MessagingService for SqlProvider<S> {
    fn provider_name(&self) -> &'static str {
        S::PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        self.store().capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("ensure_queue", deadline)?;
        let (store, queue) = (self.store().clone(), queue.origin());
        let ensure = async move { store.ensure_queue(&queue, deadline).await };
        self.carry_out("ensure_queue", Vec::new(), deadline, ensure).await
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
        self.claim_or_wait(std::slice::from_ref(queue), options, deadline).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        self.inner.coalescer.settle(settlements, deadline).await
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
        let is_simple = settlements.len() <= MOST_TOGETHER && !needs_rounds(&settlements, |row| &row.receipt);
        if !queues.is_empty() && unusable.is_none() && is_simple {
            return self.settle_and_claim(settlements, queues, options, deadline).await;
        }
        let settled = if settlements.is_empty() { Vec::new() } else { self.settle(settlements, deadline).await? };
        let received = match unusable {
            Some(error) => Err(error),
            None if queues.is_empty() => Ok(Vec::new()),
            None => self.claim_or_wait(queues, options, deadline).await,
        };
        Ok(SettledAndReceived { settled, received })
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
        let (store, queue, options, deliver) = (self.store().clone(), queue.clone(), options.clone(), self.deliver());
        self.carry_out("receive", Vec::new(), deadline, async move {
            Ok(store.claim_by_id(&queue, id, &options, deadline).await?.map(deliver))
        })
        .await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        Ok(self.wake_ups(queue))
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("health check", deadline)?;
        let store = self.store().clone();
        self.carry_out("health check", Vec::new(), deadline, async move { store.health_check(deadline).await }).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.close();
        let closed = self.inner.coalescer.close(deadline).await;
        self.inner.under_way.finish(deadline).await?;
        deadline.limit(self.store().flush(deadline)).await.unwrap_or_default();
        closed
    }
}
