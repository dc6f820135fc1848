//! A connection: what callers use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, Lanes};
use postrider_core::receive_options::check_visibility;
use postrider_core::{
    Capabilities, Deadline, Feature, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, ReturnLease, Returns, RowResults, Settlement, UnderWay, WakeUps,
};

use crate::broker::{Broker, Claimed};
use crate::patience::Patience;

/// So often is something begun that may be done twice.
const TRIES: usize = 4;

/// How long it waits in between: a connection that was lost is not always known to be at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection to a broker, in the sense of the contract. Clones are the same connection and close together.
#[derive(Debug)]
pub struct BrokerProvider<B> {
    inner: Arc<Inner<B>>,
}

impl<B> Clone for BrokerProvider<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct Inner<B> {
    broker: B,
    coalescer: Coalescer,
    /// Messages without keys go out by whoever is free, so that the broker is not idle while a batch waits for its answer.
    senders: Vec<Sender>,
    returns: Arc<Returns>,
    under_way: UnderWay,
}

/// One of several ways for batches of messages.
#[derive(Debug)]
struct Sender {
    coalescer: Coalescer,
    /// How many calls it has.
    calls: AtomicUsize,
}

/// A call at a sender, until it ends.
struct Call<'a> {
    coalescer: &'a Coalescer,
    calls: Option<&'a AtomicUsize>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.calls {
            calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<B: Broker> BrokerProvider<B> {
    /// What callers use of a connection to a broker.
    pub fn new(broker: B) -> Result<Self, MessagingError> {
        let coalescer = |lanes| {
            let config = CoalescerConfig { lanes, ..broker.batches() };
            let (coalescer, drivers) = Coalescer::new(Executor { broker: broker.clone() }, config)?;
            // A task, because callers who are not polled must not hold up the others.
            drivers.spawn();
            Ok::<_, MessagingError>(coalescer)
        };
        // It has sends only, and needs one driver.
        let sender = |_| Ok(Sender { coalescer: coalescer(Lanes::Merged)?, calls: AtomicUsize::new(0) });
        let senders = (1..broker.senders()).map(sender).collect::<Result<Vec<_>, MessagingError>>()?;
        let coalescer = coalescer(Lanes::Separate)?;
        let giver = broker.clone();
        let returns = Returns::new(move |receipts| {
            let broker = giver.clone();
            async move { broker.give_up(&receipts).await }
        });
        let under_way = UnderWay::new(B::PROVIDER);
        Ok(Self { inner: Arc::new(Inner { broker, coalescer, senders, returns, under_way }) })
    }

    /// Who sends these messages: the first who is free, or has the fewest calls. Those with keys go one way, in the order
    /// in which they came.
    fn sender(&self, messages: &[Message]) -> Call<'_> {
        let Inner { coalescer, senders, .. } = &*self.inner;
        let has_keys = messages.iter().any(|message| message.ordering_key.is_some());
        let calls = |sender: &&Sender| sender.calls.load(Ordering::Relaxed);
        let free = || senders.iter().find(|sender| calls(sender) == 0).or_else(|| senders.iter().min_by_key(calls));
        match free().filter(|_| !has_keys) {
            Some(Sender { coalescer, calls }) => {
                calls.fetch_add(1, Ordering::Relaxed);
                Call { coalescer, calls: Some(calls) }
            }
            None => Call { coalescer, calls: None },
        }
    }

    /// The connection behind this.
    pub fn broker(&self) -> &B {
        &self.inner.broker
    }

    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// Carries something out apart from its caller, who may leave at any time.
    pub(crate) fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = Result<T, MessagingError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, MessagingError>> + Send {
        // Boxed before anything else: it is large, and every future around this one would be as large.
        let work = Box::pin(work);
        async move {
            self.begin(operation, deadline)?;
            self.inner.under_way.carry_out(operation, ids, deadline, work).await?
        }
    }

    /// The same for what may be done twice: when the connection was lost meanwhile it is begun again on the next one.
    pub(crate) async fn repeat<T: Send + 'static, Fut>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl Fn(B) -> Fut + Send + 'static,
    ) -> Result<T, MessagingError>
    where
        Fut: Future<Output = Result<T, MessagingError>> + Send,
    {
        let broker = self.broker().clone();
        let persist = async move {
            for _ in 1..TRIES {
                match Box::pin(work(broker.clone())).await {
                    Err(MessagingError::Connection { .. }) if !deadline.has_passed() => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    done => return done,
                }
            }
            Box::pin(work(broker)).await
        };
        self.carry_out(operation, Vec::new(), deadline, persist).await
    }

    fn deliver(&self) -> impl Fn(Claimed) -> QueuedMessage + Send + Sync + 'static {
        let returns: Arc<dyn ReturnLease> = self.inner.returns.clone();
        move |claimed| QueuedMessage::new(claimed.body, claimed.envelope, claimed.receipt, returns.clone())
    }
}

/// Carries the coalescer's batches out.
struct Executor<B> {
    broker: B,
}

impl<B: Broker> BatchExecutor for Executor<B> {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        // The lanes are apart, so a batch has rows of one kind.
        let mut reply = BatchReply::default();
        if !batch.extends.is_empty() {
            reply.extends = self.broker.extend(&batch.extends).await?;
        }
        if !batch.settles.is_empty() {
            reply.settles = self.broker.settle(&batch.settles).await?;
        }
        if !batch.sends.is_empty() {
            reply.sends = self.broker.send(&batch.sends).await?;
        }
        Ok(reply)
    }
}

impl<B: Broker> MessagingService for BrokerProvider<B> {
    fn provider_name(&self) -> &'static str {
        B::PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        self.broker().capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let queue = queue.origin();
        let ensure = move |broker: B| {
            let queue = queue.clone();
            async move { broker.ensure_queue(&queue, deadline).await }
        };
        self.repeat("ensure_queue", deadline, ensure).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.begin("send", deadline)?;
        let mut rows = {
            let call = self.sender(&messages);
            call.coalescer.send(queue, messages, deadline).await?
        };
        if rows.iter().any(Result::is_ok)
            && let Err(error) = self.broker().sent(queue, deadline).await
        {
            let source = Some(Arc::new(error) as _);
            for row in rows.iter_mut() {
                if let Ok(id) = row {
                    *row = Err(MessagingError::OutcomeUnknown {
                        operation: "send",
                        ids: vec![*id],
                        source: source.clone(),
                    });
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
        options.check(&self.capabilities().limits)?;
        let (caller, patience) = Patience::new(options.wait, deadline, self.inner.under_way.closing());
        let (broker, queue, options, deliver) = (self.broker().clone(), queue.clone(), options.clone(), self.deliver());
        let receive = async move {
            let claimed = Box::pin(broker.receive(&queue, &options, deadline, patience)).await?;
            // Here and not by the caller, who may have left: what nobody takes is dropped, and so given back.
            Ok(claimed.into_iter().map(deliver).collect())
        };
        let received = self.carry_out("receive", Vec::new(), deadline, receive).await;
        drop(caller);
        received
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        self.inner.coalescer.settle(settlements, deadline).await
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
        _: &QueueName,
        _: MessageId,
        _: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        // No broker hands out a message by its name.
        self.capabilities().require(Feature::ReceiveById)?;
        Ok(None)
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.capabilities().require(Feature::WakeUp)?;
        self.broker().wake_ups(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.repeat("health check", deadline, move |broker| async move { broker.health_check(deadline).await }).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.close();
        let mut closed = self.inner.coalescer.close(deadline).await;
        for sender in &self.inner.senders {
            closed = closed.and(sender.coalescer.close(deadline).await);
        }
        self.inner.under_way.finish(deadline).await?;
        self.broker().close(deadline).await?;
        closed
    }
}
