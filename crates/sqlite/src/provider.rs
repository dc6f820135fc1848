//! A connection: what callers use.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, Lanes};
use postrider_core::receive_options::check_visibility;
use postrider_core::{
    Capabilities, Deadline, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, ReturnLease, RowResults, SettledAndReceived, Settlement, WakeUps,
};
use tokio::sync::watch;

use crate::PROVIDER;
use crate::claim::Claimed;
use crate::error::{Failure, by_law};
use crate::look;
use crate::session::Session;
use crate::store::{Shared, SqliteStore};
use crate::writer::work::Unclaimed;
use crate::writer::{Call, Note, Reply, Undone, WriterHandle};

/// So many settlements share a transaction with a claim; more go in batches before it.
const MOST_TOGETHER: usize = 1000;

/// A connection to a [`SqliteStore`]. Clones are the same connection and close together.
#[derive(Debug, Clone)]
pub struct SqliteProvider {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: SqliteStore,
    coalescer: Coalescer,
    returns: Arc<Returns>,
    /// `None` once closed. A lock, because close takes it away while calls use it; it is held for a clone.
    writer: Mutex<Option<Arc<WriterHandle>>>,
    /// A watch channel, because close must reach calls that already wait as well as those that come later.
    pub(crate) closed: watch::Sender<bool>,
}

impl SqliteProvider {
    pub(crate) fn new(store: SqliteStore, writer: Arc<WriterHandle>) -> Result<Self, MessagingError> {
        let config = CoalescerConfig { lanes: Lanes::Merged, ..CoalescerConfig::new(PROVIDER) };
        let (coalescer, drivers) = Coalescer::new(ToWriter { inbox: writer.inbox() }, config)?;
        writer.drive(drivers);
        let returns = Arc::new(Returns { writer: Arc::downgrade(&writer) });
        let closed = watch::Sender::new(false);
        Ok(Self { inner: Arc::new(Inner { store, coalescer, returns, writer: Mutex::new(Some(writer)), closed }) })
    }

    /// The store behind this connection, to open another.
    pub fn store(&self) -> &SqliteStore {
        &self.inner.store
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.store.shared
    }

    /// What every call asks before it does anything.
    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        if *self.inner.closed.borrow() {
            return Err(closed());
        }
        deadline.check(operation)
    }

    pub(crate) fn writer(&self) -> Result<Arc<WriterHandle>, MessagingError> {
        let writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.clone().ok_or_else(closed)
    }

    /// Has the writer do something in its next transaction, and waits for the answer.
    pub(crate) async fn write<T: Unclaimed + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let (work, reply) = Call::new(operation, step);
        self.writer()?.tell(Note::Work(work));
        answer(operation, Vec::new(), deadline.limit(reply).await)
    }

    /// [`Self::write`], for work that hands out leases: it is left out when nobody waits for it any more.
    pub(crate) async fn lease<T: Unclaimed + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let (work, reply) = Call::new(operation, step);
        let work = if ids.is_empty() { work.withdraws() } else { work };
        self.writer()?.tell(Note::Work(work));
        answer(operation, ids, deadline.limit(reply).await)
    }

    pub(crate) fn deliver(&self) -> impl Fn(Claimed) -> QueuedMessage + Send + Sync + 'static {
        let returns: Arc<dyn ReturnLease> = self.inner.returns.clone();
        move |claimed| QueuedMessage::new(claimed.body, claimed.envelope, claimed.receipt, returns.clone())
    }
}

fn closed() -> MessagingError {
    MessagingError::Closed { provider: PROVIDER }
}

/// What a call answers, from what the writer said.
fn answer<T>(
    operation: &'static str,
    ids: Vec<MessageId>,
    reply: Option<Result<Reply<T>, tokio::sync::oneshot::error::RecvError>>,
) -> Result<T, MessagingError> {
    match reply {
        Some(Ok(Ok(answer))) => answer,
        Some(Ok(Err(Undone::Rejected(error) | Undone::NotDone(error)))) => Err(error),
        Some(Ok(Err(Undone::Unknown(error)))) => {
            Err(MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) })
        }
        Some(Err(_)) | None => Err(MessagingError::OutcomeUnknown { operation, ids, source: None }),
    }
}

/// Hands the coalescer's batches to the writer.
struct ToWriter {
    inbox: std::sync::mpsc::Sender<Note>,
}

impl BatchExecutor for ToWriter {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let batch = batch.clone();
        let (work, reply) = Call::new("write", move |session: &mut Session<'_>| carry_out(session, &batch));
        // The writer polls this, so it is there to hear it.
        let _ = self.inbox.send(Note::Work(work));
        match reply.await {
            Ok(Ok(Ok(reply))) => Ok(reply),
            Ok(Ok(Err(error)) | Err(Undone::Rejected(error))) => Err(BatchFailure::Rejected(error)),
            Ok(Err(Undone::NotDone(error))) => Err(BatchFailure::NotDone(error)),
            Ok(Err(Undone::Unknown(error))) => Err(BatchFailure::Unknown(error)),
            Err(_) => Err(BatchFailure::Unknown(closed())),
        }
    }
}

fn carry_out(session: &mut Session<'_>, batch: &Batch) -> Result<BatchReply, Failure> {
    let mut reply = BatchReply::default();
    for row in &batch.extends {
        reply.extends.push(by_law(session.extend(&row.receipt, row.extension))?);
    }
    for settlement in &batch.settles {
        reply.settles.push(by_law(session.settle(settlement))?);
    }
    for row in &batch.sends {
        reply.sends.push(by_law(session.send(&row.queue, &row.message))?);
    }
    Ok(reply)
}

/// Takes back the leases of messages that were dropped, without waiting for it.
#[derive(Debug)]
struct Returns {
    /// Weak: messages that are still held do not keep a file open that everybody else has closed.
    writer: Weak<WriterHandle>,
}

impl ReturnLease for Returns {
    fn return_lease(&self, receipt: ReceiptHandle) {
        let Some(writer) = self.writer.upgrade() else { return };
        let (work, _) = Call::new("return", move |session: &mut Session<'_>| match session.give_up(&receipt) {
            Err(Failure::Sql(error)) => Err(error.into()),
            Ok(()) | Err(Failure::Law(_)) => Ok(()),
        });
        writer.tell(Note::Work(work));
    }
}

impl MessagingService for SqliteProvider {
    fn provider_name(&self) -> &'static str {
        PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        &self.shared().desk.rules.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("ensure_queue", deadline)?;
        let queue = queue.origin();
        self.write("ensure_queue", deadline, move |session| Ok(session.ensure_queue(&queue)?)).await
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
        if !queues.is_empty() && unusable.is_none() && settlements.len() <= MOST_TOGETHER {
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
        // Looked for by a reader, because there is no index for it, and the writer must not walk a queue.
        let name = queue.clone();
        let find = move |connection: &rusqlite::Connection| Ok(look::find(connection, &name, id)?);
        let rows = self.shared().readers.read("receive", deadline, find).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let (queue, options, deliver) = (queue.clone(), options.clone(), self.deliver());
        let claim = move |session: &mut Session<'_>| {
            let claimed = session.claim_by_id(&queue, id, &rows, &options)?;
            Ok(claimed.map(&deliver).into_iter().collect::<Vec<_>>())
        };
        Ok(self.lease("receive", Vec::new(), deadline, claim).await?.pop())
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.wake_ups(queue)
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("health check", deadline)?;
        // An empty transaction: the lock can be had and the file can be read.
        self.write("health check", deadline, |session| Ok(session.last_id().map(|_| ())?)).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.closed.send_replace(true);
        let closed = self.inner.coalescer.close(deadline).await;
        let writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = writer.and_then(Arc::into_inner) {
            // Before the writer: of two that close at the same time neither would work the log into the file.
            self.shared().readers.close();
            let unknown = || MessagingError::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None };
            deadline.limit(last.end()).await.ok_or_else(unknown)?;
        }
        closed
    }
}
