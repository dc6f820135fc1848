//! Sends, acks and idempotency records inside a transaction of the caller on the same server.
//!
//! The caller's transaction may stay open for any time: the next claim after the commit promotes the keys that it
//! changed. Under `REPEATABLE READ`, the server's default, a locking read of a missing row locks the gap where it would
//! be, against every insert there. So rows that may be missing are read without locks, on a connection of the pool, and
//! only existing rows are locked.

use mysql_async::prelude::Queryable;
use mysql_async::{Row, Transaction};
use postrider_core::service::check_sendable;
use postrider_core::{
    ArchivePolicy, Deadline, IdempotencyToken, Message, MessageId, MessagingError, QueueName, ReceiptHandle,
};
use postrider_provider::{Phase, Undone};
use postrider_sql::Lease;

use crate::PROVIDER;
use crate::connection::{Answers, read_all};
use crate::dead_letters::end_lives;
use crate::error::{is_duplicate, undone};
use crate::lease::{Held, held};
use crate::literal::{self, fill};
use crate::rows;
use crate::send::{Expired, TRIES, UNCOMMITTED, dedup_holders, expired, send_values, unplace};
use crate::store::{MysqlStore, Shared};

impl MysqlStore {
    /// Sends a message inside the caller's transaction: it exists if and only if the transaction commits.
    ///
    /// The rules of every send hold. An error leaves the transaction as it was before the call, unless the server has
    /// rolled it back to resolve a deadlock; the caller commits it or rolls it back.
    pub async fn send_in(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &QueueName,
        message: &Message,
    ) -> Result<MessageId, MessagingError> {
        check_sendable(&self.shared.capabilities, queue, message)?;
        let mut inside = Inside::begin("send", transaction).await?;
        let sent = self.send_inside(&mut inside, queue, message).await;
        inside.end(sent).await
    }

    async fn send_inside(
        &self,
        inside: &mut Inside<'_, '_>,
        queue: &QueueName,
        message: &Message,
    ) -> Result<MessageId, MessagingError> {
        let sql = &self.shared.database.sql;
        let name = literal::bytes(queue.as_str().as_bytes());
        let listed = inside.query(fill(&sql.queues_exist, &[("names", &name)])).await?.concat();
        if listed.is_empty() && !self.shared.options.create_queues {
            return Err(MessagingError::QueueNotFound { queue: queue.clone() });
        }
        let ordering_key = message.ordering_key.as_ref().map(|key| key.as_str());
        let mut send = vec![fill(&sql.send, &[("rows", &send_values(queue, message, ordering_key.is_some()))])];
        if ordering_key.is_some() || listed.is_empty() {
            send.push(unplace(sql, queue, ordering_key));
        }
        let Some(dedup_key) = &message.dedup_key else {
            inside.query(send.join(";\n")).await?;
            return Ok(message.id);
        };
        for _ in 0..TRIES {
            let mut steps = Vec::new();
            match self.holder(inside, queue, dedup_key.as_str()).await? {
                Holder::None => {}
                Holder::Living(id) => return Ok(id),
                // Dead-lettered in another transaction, whatever becomes of the caller's.
                Holder::Expired(expired) => {
                    self.shared.dead_letter_expired(&[expired]).await.map_err(Undone::into_harmless)?;
                    continue;
                }
                Holder::OwnExpired((row, _, key)) => {
                    steps.extend(end_lives(sql, &[(row, "expired".to_owned(), None)]));
                    steps.push(unplace(sql, queue, key.as_deref()));
                }
            }
            steps.extend(send.iter().cloned());
            match read_all(&mut *inside.transaction, steps.join(";\n")).await {
                // Another transaction took the key, and its message is visible now.
                Err(error) if is_duplicate(&error) => {
                    inside.query("rollback to savepoint postrider".to_owned()).await?;
                }
                answers => return inside.told(answers).map(|_| message.id),
            }
        }
        Err(crate::error::busy("send", "the message that has the dedup key"))
    }

    /// Returns the holder of a dedup key, as the caller's transaction sees it: committed changes, and its own.
    async fn holder(
        &self,
        inside: &mut Inside<'_, '_>,
        queue: &QueueName,
        dedup_key: &str,
    ) -> Result<Holder, MessagingError> {
        let look = dedup_holders(&self.shared.database.sql.dedup_holders, &[(queue.as_str(), dedup_key)]);
        let both = format!("{UNCOMMITTED};\n{look};\n{look}");
        let mut answers = self.shared.look("send", both).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default().into_iter().next();
        let (latest, committed) = (next(), next());
        let number = |row: &Option<Row>| row.as_ref().map(|row| rows::number(row, "id"));
        if let Some(row) = committed.as_ref().filter(|_| number(&latest) == number(&committed)) {
            return Ok(Holder::committed(row));
        }
        if latest.is_none() && committed.is_none() {
            return Ok(Holder::None);
        }
        // An open transaction has added or removed the holder. If it is not this one: a send with an added key must
        // wait for its end, and a removed holder is live until then.
        let seen = inside.query(look).await?.concat().into_iter().next();
        Ok(match &seen {
            Some(row) if number(&seen) == number(&latest) => Holder::own(row),
            Some(row) if number(&seen) == number(&committed) => Holder::committed(row),
            _ => Holder::None,
        })
    }

    /// Acks a message inside the caller's transaction, atomically with the changes of its handler.
    pub async fn ack_in(
        &self,
        transaction: &mut Transaction<'_>,
        receipt: &ReceiptHandle,
    ) -> Result<(), MessagingError> {
        let lease = Lease::read(receipt, PROVIDER)?;
        let mut inside = Inside::begin("ack", transaction).await?;
        let acked = self.ack_inside(&mut inside, &lease).await;
        inside.end(acked).await
    }

    async fn ack_inside(&self, inside: &mut Inside<'_, '_>, lease: &Lease) -> Result<(), MessagingError> {
        let (sql, receipt) = (&self.shared.database.sql, &lease.receipt);
        let ids = lease.row.to_string();
        let is_held = |found: Answers| found.concat().first().map(Held::read).filter(|held| held.is_by(lease));
        // Uncommitted changes too, so that a message that this transaction has acked before is gone.
        let look = format!("{UNCOMMITTED};\n{}", held(sql, &ids, ""));
        is_held(self.shared.look("ack", look).await?).ok_or_else(|| receipt.expired())?;
        let locked = inside.query(held(sql, &ids, "for update")).await?;
        let held = is_held(locked).ok_or_else(|| receipt.expired())?;
        let is_dead = receipt.queue().holds_dead_letters();
        let mut steps = Vec::new();
        match self.shared.options.archive {
            ArchivePolicy::All => steps.push(fill(&sql.archive, &[("these", &literal::these(&ids))])),
            ArchivePolicy::Failed | ArchivePolicy::None if held.attempts_count > 0 || is_dead => {
                let origin = literal::bytes(receipt.queue().origin().as_str().as_bytes());
                let message = [("queue", origin.as_str()), ("message_id", &literal::id(receipt.message_id()))];
                let noted = self.shared.look("ack", fill(&sql.attempts, &message)).await?.concat();
                if !noted.is_empty() {
                    let noted = literal::list(noted.iter().map(|row| rows::number(row, "attempt")));
                    let forget = fill(&fill(&sql.forget_some_attempts, &message), &[("attempts", &noted)]);
                    steps.push(forget);
                }
            }
            ArchivePolicy::Failed | ArchivePolicy::None => {}
        }
        if is_dead {
            steps.push(fill(&sql.forget_dead, &[("ids", &ids)]));
        }
        steps.push(fill(&sql.remove, &[("these", &literal::these(&ids))]));
        if held.ordering_key.is_some() && !is_dead {
            steps.push(unplace(sql, receipt.queue(), held.ordering_key.as_deref()));
        }
        inside.query(steps.join(";\n")).await.map(drop)
    }

    /// Completes an idempotency record inside the caller's transaction, atomically with the changes of the handler: a
    /// worker that dies afterwards neither loses the work nor repeats it.
    ///
    /// Fails if another worker has begun the work since; roll the transaction back then, or the work is done twice.
    pub async fn complete_in(
        &self,
        transaction: &mut Transaction<'_>,
        token: &IdempotencyToken,
    ) -> Result<(), MessagingError> {
        let sql = &self.shared.database.sql;
        let (name, lease) = (literal::bytes(token.key().as_str().as_bytes()), token.lease().to_string());
        let values = [("name", name.as_str()), ("lease", lease.as_str())];
        let text = format!("{};\n{}", fill(&sql.idempotency_held, &values), fill(&sql.idempotency_complete, &values));
        let found = self.shared.look("complete", fill(&sql.idempotency_find, &values)).await?.concat();
        let mut is_held = found.first().is_some_and(|row| rows::number(row, "lease_token") == token.lease());
        if is_held {
            let mut inside = Inside::begin("complete", transaction).await?;
            let held = inside.query(text).await.map(|answers| !answers.concat().is_empty());
            is_held = inside.end(held).await?;
        }
        match is_held {
            true => Ok(()),
            false => Err(MessagingError::invalid(
                "idempotency token",
                format!("its lease has expired and another worker has begun '{}'; roll back", token.key()),
            )),
        }
    }
}

/// The holder of a dedup key.
enum Holder {
    None,
    Living(MessageId),
    /// An expired message.
    Expired(Expired),
    /// An expired message that only the caller's transaction sees.
    OwnExpired(Expired),
}

impl Holder {
    fn committed(row: &Row) -> Self {
        if rows::flag(row, "has_expired") {
            Self::Expired(expired(row))
        } else {
            Self::Living(rows::message_id(row, "message_id"))
        }
    }

    fn own(row: &Row) -> Self {
        if rows::flag(row, "has_expired") {
            Self::OwnExpired(expired(row))
        } else {
            Self::Living(rows::message_id(row, "message_id"))
        }
    }
}

impl Shared {
    /// Reads on a connection of the pool.
    async fn look(&self, operation: &'static str, text: String) -> Result<Answers, MessagingError> {
        let mut session = self.database.session(operation, Deadline::default()).await?;
        session.ask(text).await.map_err(Undone::into_harmless)
    }
}

/// A savepoint in a caller's transaction.
struct Inside<'t, 'c> {
    transaction: &'t mut Transaction<'c>,
    operation: &'static str,
}

impl<'t, 'c> Inside<'t, 'c> {
    async fn begin(operation: &'static str, transaction: &'t mut Transaction<'c>) -> Result<Self, MessagingError> {
        let mut inside = Self { transaction, operation };
        inside.query("savepoint postrider".to_owned()).await?;
        Ok(inside)
    }

    async fn query(&mut self, text: String) -> Result<Answers, MessagingError> {
        let answers = read_all(&mut *self.transaction, text).await;
        self.told(answers)
    }

    fn told(&self, answers: Result<Answers, mysql_async::Error>) -> Result<Answers, MessagingError> {
        answers.map_err(|error| undone(self.operation, Phase::BeforeCommit, error)).map_err(Undone::into_harmless)
    }

    async fn end<T>(self, result: Result<T, MessagingError>) -> Result<T, MessagingError> {
        let end = match result.is_ok() {
            true => "release savepoint postrider",
            false => "rollback to savepoint postrider; release savepoint postrider",
        };
        // If the server has ended the whole transaction there is nothing to roll back.
        let ended = self.transaction.query_drop(end).await;
        let value = result?;
        ended.map_err(|error| undone(self.operation, Phase::BeforeCommit, error).into_harmless())?;
        Ok(value)
    }
}
