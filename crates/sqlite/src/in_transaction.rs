//! Sends, acks and records of done work inside a transaction that the caller has open on the same file.

use postrider_core::{
    IdempotencyToken, Message, MessageId, MessagingError, QueueName, ReceiptHandle, Settlement, Standing,
};
use rusqlite::Transaction;

use crate::error::{Failure, not_done};
use crate::session::{Memory, Session};
use crate::store::SqliteStore;

impl SqliteStore {
    /// Sends a message inside the caller's own transaction: it is there if and only if the caller's changes are.
    ///
    /// The same rules hold as for any send. Begin the transaction with
    /// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate) and keep it short: nobody else can
    /// write to the file until it ends. An error leaves the transaction as it was before the call, for the caller to
    /// commit or to roll back.
    pub fn send_in(
        &self,
        transaction: &Transaction<'_>,
        queue: &QueueName,
        message: &Message,
    ) -> Result<MessageId, MessagingError> {
        self.inside("send", transaction, |session| session.send(queue, message))
    }

    /// Acknowledges a message inside the caller's own transaction: what its handler changed there and the ack are one.
    pub fn ack_in(&self, transaction: &Transaction<'_>, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
        let settlement = Settlement::ack(receipt.clone());
        self.inside("ack", transaction, |session| session.settle(&settlement))
    }

    /// Writes down, inside the caller's own transaction, that work is done: what a handler changed there and the record
    /// are one, and a worker that dies afterwards has its work neither lost nor done again.
    ///
    /// When somebody else has begun the work since, it is an error: roll the transaction back, or the work is done twice.
    pub fn complete_in(&self, transaction: &Transaction<'_>, token: &IdempotencyToken) -> Result<(), MessagingError> {
        match self.inside("complete", transaction, |session| Ok(session.complete_work(token)?))? {
            Standing::Held => Ok(()),
            Standing::Lost => Err(MessagingError::invalid(
                "idempotency token",
                format!("the lease has run out and somebody else has begun '{}' since; roll back", token.key()),
            )),
        }
    }

    pub(crate) fn inside<T>(
        &self,
        operation: &'static str,
        transaction: &Transaction<'_>,
        step: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
    ) -> Result<T, MessagingError> {
        self.check_file(transaction)?;
        let failed = |failure| match failure {
            Failure::Law(error) => error,
            Failure::Sql(error) => not_done(self.path(), operation, error),
        };
        let run = || -> Result<T, Failure> {
            transaction.execute_batch("savepoint postrider")?;
            let desk = &self.shared.desk;
            let mut memory = Memory::default();
            let mut session = Session::new(transaction, &desk.rules, &mut memory, desk.options.clock.now());
            let answer = step(&mut session)?;
            transaction.execute_batch("release postrider")?;
            Ok(answer)
        };
        let result = run();
        if result.is_err() {
            // When SQLite has ended the whole transaction by itself there is nothing left to take back.
            let _ = transaction.execute_batch("rollback to postrider; release postrider");
        }
        result.map_err(failed)
    }

    /// A transaction on another file would send into a void, or into somebody else's queue.
    fn check_file(&self, transaction: &Transaction<'_>) -> Result<(), MessagingError> {
        let theirs = transaction.path().and_then(|path| std::fs::canonicalize(path).ok());
        if theirs.as_deref() != Some(self.path()) {
            return Err(MessagingError::invalid(
                "transaction",
                format!("it is not on '{}'; open a connection to that file", self.path().display()),
            ));
        }
        Ok(())
    }
}
