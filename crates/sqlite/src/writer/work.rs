//! A call for the writer, and how its caller gets the answer.

use std::path::Path;

use postrider_core::task::{Created, Enqueued, OutboxBatch, Schedule, TaskId, TaskStanding, TaskState};
use postrider_core::{MessagingError, Nack, QueuedMessage, ReceiptHandle, RowResults, Settlement};
use postrider_provider::Looked;
use tokio::sync::oneshot;

use crate::error::{Failure, not_done, refusal_as_value};
use crate::session::Session;
use crate::tasks::UndeliveredTask;

/// Why a call was not done, or may not have been.
#[derive(Debug, Clone)]
pub(crate) enum WriteError {
    /// Nothing was done, because of something in this call.
    Rejected(MessagingError),
    /// Nothing was done, and this call is not at fault.
    NotDone(MessagingError),
    /// The outcome is unknown.
    Unknown(MessagingError),
}

/// The reply to a caller: the answer, or why there is none.
pub(crate) type Reply<T> = Result<Result<T, MessagingError>, WriteError>;

/// A call, as the writer uses it.
///
/// It may be run more than once: when the shared transaction was rolled back because of another call.
pub(crate) trait Work: Send {
    /// The name of the operation in errors.
    fn operation(&self) -> &'static str;

    /// Whether it need not run, because its caller has gone and it only leases.
    fn can_be_skipped(&self) -> bool;

    /// Runs it inside a transaction.
    fn run(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()>;

    /// Sends the answer after the commit. Returns the leases of an answer whose caller has gone.
    fn committed(self: Box<Self>) -> Vec<UndeliveredLease>;

    /// Sends the reason why it was not done.
    fn undone(self: Box<Self>, why: WriteError);
}

/// A lease whose caller has gone.
#[derive(Debug)]
pub(crate) enum UndeliveredLease {
    Message(ReceiptHandle),
    Task(UndeliveredTask),
}

impl UndeliveredLease {
    /// Releases the lease: the message or task was never received, so the delivery is not counted.
    pub(crate) fn release(&self, session: &mut Session<'_>) -> Result<(), Failure> {
        match self {
            Self::Message(receipt) => match session.settle(&Settlement::nack(receipt.clone(), Nack::Release)) {
                Err(Failure::Sql(error)) => Err(error.into()),
                Ok(()) | Err(Failure::Refused(_)) => Ok(()),
            },
            Self::Task(task) => Ok(task.release(session)?),
        }
    }
}

/// An answer, which may have leases in it.
pub(crate) trait Answer {
    /// The leases in the answer, to return them when its caller has gone.
    fn into_leases(self) -> Vec<UndeliveredLease>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

impl Answer for Looked {
    fn into_leases(self) -> Vec<UndeliveredLease> {
        self.messages.into_leases()
    }
}

impl Answer for Vec<QueuedMessage> {
    fn into_leases(self) -> Vec<UndeliveredLease> {
        self.into_iter().map(|message| UndeliveredLease::Message(message.into_receipt())).collect()
    }
}

/// A call made of a closure.
pub(crate) struct Call<T, F> {
    operation: &'static str,
    skips_without_caller: bool,
    step: F,
    answer: Option<Result<T, MessagingError>>,
    caller: oneshot::Sender<Reply<T>>,
}

impl<T, F> Call<T, F>
where
    T: Answer + Send + 'static,
    F: FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    /// The call, and the receiver of its reply.
    pub(crate) fn new(operation: &'static str, step: F) -> (Box<Self>, oneshot::Receiver<Reply<T>>) {
        let (caller, reply) = oneshot::channel();
        (Box::new(Self { operation, skips_without_caller: false, step, answer: None, caller }), reply)
    }

    /// Skips the call if its caller has gone before it runs.
    pub(crate) fn skip_without_caller(mut self: Box<Self>) -> Box<Self> {
        self.skips_without_caller = true;
        self
    }
}

impl<T, F> Work for Call<T, F>
where
    T: Answer + Send + 'static,
    F: FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn can_be_skipped(&self) -> bool {
        self.skips_without_caller && self.caller.is_closed()
    }

    fn run(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        // The leases of an earlier run were rolled back with its transaction.
        if let Some(Ok(stale)) = self.answer.take() {
            drop(stale.into_leases());
        }
        self.answer = Some(refusal_as_value((self.step)(session))?);
        Ok(())
    }

    fn committed(self: Box<Self>) -> Vec<UndeliveredLease> {
        let Some(answer) = self.answer else { return Vec::new() };
        match self.caller.send(Ok(answer)) {
            Ok(()) | Err(Err(_) | Ok(Err(_))) => Vec::new(),
            Err(Ok(Ok(answer))) => answer.into_leases(),
        }
    }

    fn undone(mut self: Box<Self>, why: WriteError) {
        if let Some(Ok(stale)) = self.answer.take() {
            drop(stale.into_leases());
        }
        // The caller may have gone.
        let _ = self.caller.send(Err(why));
    }
}

/// SQLite refused this call alone.
pub(crate) fn rejected(path: &Path, work: &dyn Work, error: rusqlite::Error) -> WriteError {
    WriteError::Rejected(not_done(path, work.operation(), error))
}

macro_rules! nothing_leased {
    ($($answer:ty),* $(,)?) => { $(impl Answer for $answer {})* };
}

nothing_leased!(
    (),
    u64,
    i64,
    crate::archive::Sweep,
    (u64, Option<i64>),
    postrider_core::coalescer::BatchReply,
    postrider_core::DeadLetter,
    (postrider_core::RedriveReport, Option<i64>),
    postrider_core::Begun,
    postrider_core::Standing,
    postrider_core::Put,
    Option<postrider_core::StateRecord>,
    RowResults<Created>,
    RowResults<TaskState>,
    RowResults<()>,
    Vec<TaskStanding>,
    Vec<TaskId>,
    Option<Vec<TaskId>>,
    Enqueued,
    OutboxBatch,
    Schedule,
    usize,
    u32,
    bool,
);
