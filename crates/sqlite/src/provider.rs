//! A connection to a file: passes calls to the writer and the readers and returns their answers.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::BoxFuture;
use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, Lanes};
use postrider_core::{
    Deadline, MessageId, MessagingError, QueueName, ReceiptHandle, ReturnLease, Timestamp, WakeUps, async_trait,
};
use postrider_provider::hints;
use tokio::sync::watch;

use crate::error::{Failure, refusal_as_value};
use crate::session::Session;
use crate::store::{Shared, SqliteStore};
use crate::writer::work::Answer;
use crate::writer::{Call, Command, Reply, WriteError, WriterHandle};
use crate::{PROVIDER, SqliteProvider};

/// A connection to a [`SqliteStore`]. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Connection {
    store: SqliteStore,
    /// `None` once closed. A lock, because close takes the handle while calls use it; a call holds it only to clone.
    writer: Arc<Mutex<Option<Arc<WriterHandle>>>>,
}

/// Finds the next time, after the given one, at which something becomes due.
pub(crate) type NextDue = Arc<dyn Fn(&rusqlite::Connection, Timestamp) -> rusqlite::Result<Timestamp> + Send + Sync>;

impl Connection {
    pub(crate) fn new(store: SqliteStore, writer: Arc<WriterHandle>) -> Self {
        Self { store, writer: Arc::new(Mutex::new(Some(writer))) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.store.shared
    }

    pub(crate) fn writer(&self) -> Result<Arc<WriterHandle>, MessagingError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.clone().ok_or_else(closed)
    }

    /// Batches the calls of this connection on the writer's thread; each batch is one transaction.
    pub(crate) fn coalescer(&self) -> Result<Coalescer, MessagingError> {
        let writer = self.writer()?;
        let config = CoalescerConfig { lanes: Lanes::Merged, ..CoalescerConfig::new(PROVIDER) };
        let (coalescer, drivers) = Coalescer::new(ToWriter { commands: writer.commands() }, config)?;
        writer.drive(drivers);
        Ok(coalescer)
    }

    pub(crate) fn return_leases(&self) -> Arc<dyn ReturnLease> {
        Arc::new(Returns { writer: self.writer().map(|writer| Arc::downgrade(&writer)).unwrap_or_default() })
    }

    /// Ends the writer, if this was its last connection.
    pub(crate) async fn end(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = writer.and_then(Arc::into_inner) {
            // The readers close first: of two connections that close at the same time neither would checkpoint the log.
            self.shared().readers.close();
            let unknown = || MessagingError::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None };
            deadline.limit(last.end()).await.ok_or_else(unknown)?;
        }
        Ok(())
    }

    /// Runs a step in the writer's next transaction, and waits for the answer.
    pub(crate) async fn write<T: Answer + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let (work, reply) = Call::new(operation, step);
        self.writer()?.send(Command::Work(work));
        answer(operation, Vec::new(), deadline.limit(reply).await)
    }

    /// [`Self::write`] for a step that only leases: it is skipped when its caller has gone.
    pub(crate) async fn lease<T: Answer + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let (work, reply) = Call::new(operation, step);
        let work = if ids.is_empty() { work.skip_without_caller() } else { work };
        self.writer()?.send(Command::Work(work));
        answer(operation, ids, deadline.limit(reply).await)
    }

    /// Runs a query in one read transaction.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.shared().readers.read(operation, deadline, query).await
    }

    /// Hints for changes in the queues of these names, and for the next time that `next` finds.
    pub(crate) fn hints(
        &self,
        names: &[QueueName],
        next: NextDue,
        closing: watch::Receiver<bool>,
    ) -> Result<WakeUps, MessagingError> {
        let listener = self.shared().context.wakes.listen(names);
        self.writer()?.send(Command::Listen);
        let (readers, clock) = (self.shared().readers.clone(), self.shared().context.options.clock.clone());
        Ok(hints(listener, clock, closing, move |after| -> BoxFuture<'static, Timestamp> {
            let (readers, next) = (readers.clone(), next.clone());
            Box::pin(async move {
                let query = move |connection: &rusqlite::Connection| Ok(next(connection, after)?);
                // Without an answer the next hint comes with a change, and the owner of the stream polls anyway.
                readers.read("subscribe", Deadline::default(), query).await.unwrap_or(Timestamp::MAX)
            })
        }))
    }
}

/// What the tasks and records in the same file use.
impl SqliteProvider {
    /// The store of this connection, to open another connection.
    pub fn store(&self) -> &SqliteStore {
        &self.connection().store
    }

    fn connection(&self) -> &Connection {
        postrider_provider::Provider::store(self)
    }

    pub(crate) fn shared(&self) -> &Shared {
        self.connection().shared()
    }

    pub(crate) async fn write<T: Answer + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.connection().write(operation, deadline, step).await
    }

    pub(crate) async fn lease<T: Answer + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        step: impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.connection().lease(operation, ids, deadline, step).await
    }

    pub(crate) fn hints(&self, names: &[QueueName], next: NextDue) -> Result<WakeUps, MessagingError> {
        self.connection().hints(names, next, self.closing())
    }

    /// Removes archived messages that are older than the retention, and returns how many. The writer also does this by
    /// itself, a chunk at a time.
    pub async fn sweep_archive(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("sweep the archive", deadline)?;
        let retention = self.shared().context.options.archive_retention;
        let (mut removed, mut after) = (0, 0);
        loop {
            let sweep = self.write("sweep the archive", deadline, move |session| {
                Ok(session.sweep_archive(retention, SWEPT, after)?)
            });
            let sweep = sweep.await?;
            removed += sweep.removed;
            let Some(next) = sweep.next else { return Ok(removed) };
            after = next;
        }
    }
}

/// Archived messages removed in one transaction of a sweep.
const SWEPT: usize = 500;

fn closed() -> MessagingError {
    MessagingError::Closed { provider: PROVIDER }
}

/// The result of a call, from the writer's reply.
fn answer<T>(
    operation: &'static str,
    ids: Vec<MessageId>,
    reply: Option<Result<Reply<T>, tokio::sync::oneshot::error::RecvError>>,
) -> Result<T, MessagingError> {
    match reply {
        Some(Ok(Ok(answer))) => answer,
        Some(Ok(Err(WriteError::Rejected(error) | WriteError::NotDone(error)))) => Err(error),
        Some(Ok(Err(WriteError::Unknown(error)))) => {
            Err(MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) })
        }
        Some(Err(_)) | None => Err(MessagingError::OutcomeUnknown { operation, ids, source: None }),
    }
}

/// Sends the coalescer's batches to the writer.
struct ToWriter {
    commands: std::sync::mpsc::Sender<Command>,
}

#[async_trait]
impl BatchExecutor for ToWriter {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let batch = batch.clone();
        let (work, reply) = Call::new("write", move |session: &mut Session<'_>| run_batch(session, &batch));
        // The send cannot fail: the writer itself polls this future.
        let _ = self.commands.send(Command::Work(work));
        match reply.await {
            Ok(Ok(Ok(reply))) => Ok(reply),
            Ok(Ok(Err(error)) | Err(WriteError::Rejected(error))) => Err(BatchFailure::Rejected(error)),
            Ok(Err(WriteError::NotDone(error))) => Err(BatchFailure::NotDone(error)),
            Ok(Err(WriteError::Unknown(error))) => Err(BatchFailure::Unknown(error)),
            Err(_) => Err(BatchFailure::Unknown(closed())),
        }
    }
}

fn run_batch(session: &mut Session<'_>, batch: &Batch) -> Result<BatchReply, Failure> {
    let mut reply = BatchReply::default();
    for row in &batch.extends {
        let extended = refusal_as_value(session.extend(&row.receipt, row.extension))?;
        reply.extends.push(extended.map(|()| row.receipt.clone()));
    }
    for settlement in &batch.settles {
        reply.settles.push(refusal_as_value(session.settle(settlement))?);
    }
    for row in &batch.sends {
        reply.sends.push(refusal_as_value(session.send(&row.queue, &row.message))?);
    }
    Ok(reply)
}

/// Returns the leases of dropped messages, without waiting.
#[derive(Debug)]
struct Returns {
    /// Weak: messages that are still held do not keep a file open that every connection has closed.
    writer: Weak<WriterHandle>,
}

impl ReturnLease for Returns {
    fn return_lease(&self, receipt: ReceiptHandle) {
        let Some(writer) = self.writer.upgrade() else { return };
        let (work, _) = Call::new("return", move |session: &mut Session<'_>| match session.give_up(&receipt) {
            Err(Failure::Sql(error)) => Err(error.into()),
            Ok(()) | Err(Failure::Refused(_)) => Ok(()),
        });
        writer.send(Command::Work(work));
    }
}
