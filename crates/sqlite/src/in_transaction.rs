//! Sends, acks and idempotency records inside a transaction that the caller has open on the same file.

use postrider_core::{
    IdempotencyToken, Message, MessageId, MessagingError, QueueName, ReceiptHandle, Settlement, Standing,
};
use rusqlite::Transaction;

use crate::error::{Failure, not_done};
use crate::session::{Session, WriterCache};
use crate::store::SqliteStore;

impl SqliteStore {
    /// Sends a message inside the caller's own transaction: both are committed together.
    ///
    /// The same rules hold as for any send. Begin the transaction with
    /// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate) and keep it short: no other
    /// connection can write to the file until it ends. An error leaves the transaction as it was before the call, for
    /// the caller to commit or to roll back.
    pub fn send_in(
        &self,
        transaction: &Transaction<'_>,
        queue: &QueueName,
        message: &Message,
    ) -> Result<MessageId, MessagingError> {
        self.inside("send", transaction, |session| session.send(queue, message))
    }

    /// Acknowledges a message inside the caller's own transaction, together with the changes of its handler.
    pub fn ack_in(&self, transaction: &Transaction<'_>, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
        let settlement = Settlement::ack(receipt.clone());
        self.inside("ack", transaction, |session| session.settle(&settlement))
    }

    /// Completes an idempotency record inside the caller's own transaction, together with the changes of its handler:
    /// when the worker dies afterwards, the work is neither lost nor repeated.
    ///
    /// Returns an error if the lease has expired and another worker has begun the work: roll the transaction back, or
    /// the work is done twice.
    pub fn complete_in(&self, transaction: &Transaction<'_>, token: &IdempotencyToken) -> Result<(), MessagingError> {
        match self.inside("complete", transaction, |session| Ok(session.complete_work(token)?))? {
            Standing::Held => Ok(()),
            Standing::Lost => Err(MessagingError::invalid(
                "idempotency token",
                format!("its lease has expired and another worker has begun '{}'; roll back", token.key()),
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
            Failure::Refused(error) => error,
            Failure::Sql(error) => not_done(self.path(), operation, error),
        };
        let run = || -> Result<T, Failure> {
            transaction.execute_batch("savepoint postrider")?;
            let context = &self.shared.context;
            let mut cache = WriterCache::default();
            let mut session = Session::new(transaction, &context.rules, &mut cache, context.options.clock.now());
            let answer = step(&mut session)?;
            transaction.execute_batch("release postrider")?;
            Ok(answer)
        };
        let result = run();
        if result.is_err() {
            // If SQLite has ended the whole transaction by itself, there is nothing to roll back.
            let _ = transaction.execute_batch("rollback to postrider; release postrider");
        }
        result.map_err(failed)
    }

    /// Refuses a transaction on another file, which would send into a queue that no receiver of this store reads.
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
