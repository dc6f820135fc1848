//! A provider whose failures a test scripts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::*;

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// It fails before anything is done, and can be repeated.
    Fail,
    /// It takes effect, and the answer is lost.
    LoseAnswer,
    /// It never answers, whatever its deadline.
    Hang,
    /// It panics.
    Panic,
}

/// The kind of a call, and the number of earlier calls of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Receive(usize),
    Settle(usize),
    Extend(usize),
}

type Script = Arc<dyn Fn(Call) -> Verdict + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Scripted<P = MemoryProvider> {
    pub(crate) inner: P,
    script: Script,
    capabilities: Arc<Capabilities>,
    /// Upper bound of messages in one receive.
    max_received: usize,
    pub(crate) counts: Arc<CallCounts>,
}

#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) receives: AtomicUsize,
    /// A message whose settlements all fail.
    pub(crate) bad_row: Mutex<Option<MessageId>>,
    pub(crate) settles: AtomicUsize,
    pub(crate) extends: AtomicUsize,
    /// The largest requested number of messages, and the largest settle.
    pub(crate) max_requested: AtomicUsize,
    pub(crate) max_settled: AtomicUsize,
    /// The largest number of leased messages at the end of a receive.
    pub(crate) max_leased: AtomicUsize,
    /// The delivery limits of the receives.
    pub(crate) receive_limits: Mutex<Vec<u32>>,
    /// One of the granted leases.
    pub(crate) some_lease: Mutex<Option<ReceiptHandle>>,
}

impl<P: Provider> Scripted<P> {
    pub(crate) fn new(inner: P, script: impl Fn(Call) -> Verdict + Send + Sync + 'static) -> Self {
        let capabilities = Arc::new(inner.capabilities().clone());
        Self { inner, script: Arc::new(script), capabilities, max_received: usize::MAX, counts: Arc::default() }
    }

    pub(crate) fn counting(inner: P) -> Self {
        Self::new(inner, |_| Verdict::Pass)
    }

    pub(crate) fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = Arc::new(capabilities);
        self
    }

    pub(crate) fn returning_at_most(mut self, max_received: usize) -> Self {
        self.max_received = max_received;
        self
    }

    pub(crate) fn receives(&self) -> usize {
        self.counts.receives.load(Ordering::SeqCst)
    }

    async fn call<T>(
        &self,
        call: Call,
        ids: Vec<MessageId>,
        work: impl Future<Output = Result<T, MessagingError>>,
    ) -> Result<T, MessagingError> {
        match (self.script)(call) {
            Verdict::Pass => work.await,
            Verdict::Fail => {
                Err(MessagingError::Connection { provider: "scripted", detail: "cut".into(), source: None })
            }
            Verdict::LoseAnswer => {
                work.await?;
                Err(MessagingError::OutcomeUnknown { operation: "scripted", ids, source: None })
            }
            Verdict::Hang => std::future::pending().await,
            Verdict::Panic => panic!("a bug in the store"),
        }
    }
}

#[async_trait]
impl<P: Provider> MessagingService for Scripted<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.ensure_queue(queue, deadline).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.inner.send_batch(queue, messages, deadline).await
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let number = self.counts.receives.fetch_add(1, Ordering::SeqCst);
        self.counts.max_requested.fetch_max(options.max, Ordering::SeqCst);
        self.counts.receive_limits.lock().unwrap().push(options.max_receive_count);
        let mut options = options.clone();
        options.max = options.max.min(self.max_received);
        let received =
            self.call(Call::Receive(number), vec![], self.inner.receive_messages(queue, &options, deadline)).await;
        if let Some(message) = received.iter().flatten().next() {
            *self.counts.some_lease.lock().unwrap() = Some(message.receipt().clone());
        }
        let stats = self.inner.queue_stats(queue, Deadline::default()).await?;
        let Measured::Exact(leased) = stats.in_flight else { panic!("{stats:?}") };
        self.counts.max_leased.fetch_max(usize::try_from(leased).unwrap(), Ordering::SeqCst);
        received
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let number = self.counts.settles.fetch_add(1, Ordering::SeqCst);
        self.counts.max_settled.fetch_max(settlements.len(), Ordering::SeqCst);
        let ids = settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        let bad = *self.counts.bad_row.lock().unwrap();
        if let Some(at) = settlements.iter().position(|settlement| bad == Some(settlement.receipt.message_id())) {
            let mut settlements = settlements;
            settlements.remove(at);
            let mut rows = self.inner.settle(settlements, deadline).await?;
            rows.insert(
                at,
                Err(MessagingError::Connection { provider: "scripted", detail: "not this row".into(), source: None }),
            );
            return Ok(rows);
        }
        self.call(Call::Settle(number), ids, self.inner.settle(settlements, deadline)).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let number = self.counts.extends.fetch_add(1, Ordering::SeqCst);
        let call = self.inner.extend_visibility(queue, receipt, extension, deadline);
        self.call(Call::Extend(number), vec![receipt.message_id()], call).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.inner.receive_by_id(queue, id, options, deadline).await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.inner.subscribe(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}
