//! A piece of work for the writer, and how its caller learns of the end.

use std::path::Path;

use postrider_core::task::{Created, Enqueued, OutboxBatch, Schedule, TaskId, TaskStanding, TaskState};
use postrider_core::{MessagingError, Nack, QueuedMessage, ReceiptHandle, RowResults, Settlement};
use postrider_provider::Looked;
use tokio::sync::oneshot;

use crate::error::{Failure, by_law, not_done};
use crate::session::Session;
use crate::tasks::UnheldTask;

/// Why a piece of work was not done, or may not have been.
#[derive(Debug, Clone)]
pub(crate) enum Undone {
    /// Nothing was done, because of something in this work.
    Rejected(MessagingError),
    /// Nothing was done, and this work is not at fault.
    NotDone(MessagingError),
    /// Nobody knows.
    Unknown(MessagingError),
}

/// What a caller gets: the answer of the law, or why there is none.
pub(crate) type Reply<T> = Result<Result<T, MessagingError>, Undone>;

/// A piece of work, as the writer sees it.
///
/// It may be run more than once: when the transaction that it shared was rolled back for a neighbour's sake.
pub(crate) trait Work: Send {
    /// The word for it in errors.
    fn operation(&self) -> &'static str;

    /// Whether it may be left out, because its caller has gone and nobody else would see its effect.
    fn is_withdrawn(&self) -> bool;

    /// Does it, inside a transaction.
    fn run(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()>;

    /// The transaction is durable: tells the caller. Answers the leases that could not be handed over.
    fn committed(self: Box<Self>) -> Vec<Unheld>;

    /// Tells the caller that it was not done.
    fn undone(self: Box<Self>, why: Undone);
}

/// A lease that was given to nobody.
#[derive(Debug)]
pub(crate) enum Unheld {
    Message(ReceiptHandle),
    Task(UnheldTask),
}

impl Unheld {
    /// Gives it back: it was never seen, so it is not counted.
    pub(crate) fn release(&self, session: &mut Session<'_>) -> Result<(), Failure> {
        match self {
            Self::Message(receipt) => match session.settle(&Settlement::nack(receipt.clone(), Nack::Release)) {
                Err(Failure::Sql(error)) => Err(error.into()),
                Ok(()) | Err(Failure::Law(_)) => Ok(()),
            },
            Self::Task(task) => Ok(task.release(session)?),
        }
    }
}

/// What to do with an answer whose caller has gone.
pub(crate) trait Unclaimed {
    /// The leases in it: they were given to nobody.
    fn into_leases(self) -> Vec<Unheld>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

impl Unclaimed for Looked {
    fn into_leases(self) -> Vec<Unheld> {
        self.messages.into_leases()
    }
}

impl Unclaimed for Vec<QueuedMessage> {
    fn into_leases(self) -> Vec<Unheld> {
        self.into_iter().map(|message| Unheld::Message(message.into_receipt())).collect()
    }
}

/// Work made of a closure.
pub(crate) struct Call<T, F> {
    operation: &'static str,
    withdraws: bool,
    step: F,
    answer: Option<Result<T, MessagingError>>,
    caller: oneshot::Sender<Reply<T>>,
}

impl<T, F> Call<T, F>
where
    T: Unclaimed + Send + 'static,
    F: FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    /// The work, and where its answer will come.
    pub(crate) fn new(operation: &'static str, step: F) -> (Box<Self>, oneshot::Receiver<Reply<T>>) {
        let (caller, reply) = oneshot::channel();
        (Box::new(Self { operation, withdraws: false, step, answer: None, caller }), reply)
    }

    /// Left out when its caller has gone before it began.
    pub(crate) fn withdraws(mut self: Box<Self>) -> Box<Self> {
        self.withdraws = true;
        self
    }
}

impl<T, F> Work for Call<T, F>
where
    T: Unclaimed + Send + 'static,
    F: FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn is_withdrawn(&self) -> bool {
        self.withdraws && self.caller.is_closed()
    }

    fn run(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        // What an earlier run of it leased was rolled back with everything else.
        if let Some(Ok(stale)) = self.answer.take() {
            drop(stale.into_leases());
        }
        self.answer = Some(by_law((self.step)(session))?);
        Ok(())
    }

    fn committed(self: Box<Self>) -> Vec<Unheld> {
        let Some(answer) = self.answer else { return Vec::new() };
        match self.caller.send(Ok(answer)) {
            Ok(()) | Err(Err(_) | Ok(Err(_))) => Vec::new(),
            Err(Ok(Ok(unclaimed))) => unclaimed.into_leases(),
        }
    }

    fn undone(mut self: Box<Self>, why: Undone) {
        if let Some(Ok(stale)) = self.answer.take() {
            drop(stale.into_leases());
        }
        // A caller that has gone does not want to know.
        let _ = self.caller.send(Err(why));
    }
}

/// SQLite refused this piece of work alone.
pub(crate) fn rejected(path: &Path, work: &dyn Work, error: rusqlite::Error) -> Undone {
    Undone::Rejected(not_done(path, work.operation(), error))
}

macro_rules! nothing_leased {
    ($($answer:ty),* $(,)?) => { $(impl Unclaimed for $answer {})* };
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
