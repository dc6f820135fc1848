//! Sends, acks and records of done work inside a transaction that the caller has open on the same server.
//!
//! The caller's transaction may stay open for as long as it likes, and nobody else waits for it: what is sent with an
//! ordering key, or acknowledged, is put in order by the next claim after the commit. Only two kinds wait: senders of the
//! same *dedup* key, since whether theirs is the second message is not known before, and whoever settles the message that
//! had the key already.

use mysql_async::Transaction;
use mysql_async::prelude::Queryable;
use postrider_core::service::check_sendable;
use postrider_core::{IdempotencyToken, Message, MessageId, MessagingError, QueueName, ReceiptHandle};
use postrider_sql::{Phase, Undone};

use crate::connection::{Answers, read_all};
use crate::error::undone;
use crate::literal::{self, fill};
use crate::options::ArchivePolicy;
use crate::rows;
use crate::send::{send_values, unplace};
use crate::settle::{Held, Lease, end_lives};
use crate::store::MysqlStore;

impl MysqlStore {
    /// Sends a message inside the caller's own transaction: it is there if and only if the caller's changes are.
    ///
    /// The same rules hold as for any send. An error leaves the transaction as it was before the call, for the caller to
    /// commit or to roll back, unless the server has rolled it back to resolve a deadlock.
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
        let mut steps = Vec::new();
        if let Some(dedup_key) = &message.dedup_key {
            let key = literal::bytes(dedup_key.as_str().as_bytes());
            let look = fill(&sql.dedup_now, &[("queue", &name), ("dedup_key", &key)]);
            for row in &inside.query(look).await?.concat() {
                if !rows::flag(row, 3) {
                    return Ok(rows::message_id(row, 0));
                }
                steps.extend(end_lives(sql, &[(rows::number(row, 1), "expired".to_owned(), None)]));
                steps.push(unplace(sql, queue, rows::optional_text(row, 2).as_deref()));
            }
        }
        let ordering_key = message.ordering_key.as_ref().map(|key| key.as_str());
        steps.push(fill(&sql.send, &[("rows", &send_values(queue, message, ordering_key.is_some()))]));
        if ordering_key.is_some() || listed.is_empty() {
            steps.push(unplace(sql, queue, ordering_key));
        }
        inside.query(steps.join(";\n")).await?;
        Ok(message.id)
    }

    /// Acknowledges a message inside the caller's own transaction: what its handler changed there and the ack are one.
    pub async fn ack_in(
        &self,
        transaction: &mut Transaction<'_>,
        receipt: &ReceiptHandle,
    ) -> Result<(), MessagingError> {
        let lease = Lease::read(receipt)?;
        let mut inside = Inside::begin("ack", transaction).await?;
        let acked = self.ack_inside(&mut inside, &lease).await;
        inside.end(acked).await
    }

    async fn ack_inside(&self, inside: &mut Inside<'_, '_>, lease: &Lease) -> Result<(), MessagingError> {
        let (sql, receipt) = (&self.shared.database.sql, &lease.receipt);
        let ids = lease.row.to_string();
        let found = inside.query(fill(&sql.held, &[("ids", &ids)])).await?.concat();
        let held = found.first().map(Held::read).filter(|held| held.is_by(lease)).ok_or_else(|| receipt.expired())?;
        let mut steps = Vec::new();
        match self.shared.options.archive {
            ArchivePolicy::All => steps.push(fill(&sql.archive, &[("these", &literal::these(&ids))])),
            ArchivePolicy::Failed | ArchivePolicy::None => {
                steps.push(fill(&sql.forget_attempts, &[("message_ids", &literal::id(receipt.message_id()))]));
            }
        }
        if receipt.queue().holds_dead_letters() {
            steps.push(fill(&sql.forget_dead, &[("ids", &ids)]));
        }
        steps.push(fill(&sql.remove, &[("these", &literal::these(&ids))]));
        if held.ordering_key.is_some() && !receipt.queue().holds_dead_letters() {
            steps.push(unplace(sql, receipt.queue(), held.ordering_key.as_deref()));
        }
        inside.query(steps.join(";\n")).await.map(drop)
    }

    /// Writes down, inside the caller's own transaction, that work is done: what a handler changed there and the record
    /// are one, and a worker that dies afterwards has its work neither lost nor done again.
    ///
    /// When somebody else has begun the work since, it is an error: roll the transaction back, or the work is done twice.
    pub async fn complete_in(
        &self,
        transaction: &mut Transaction<'_>,
        token: &IdempotencyToken,
    ) -> Result<(), MessagingError> {
        let sql = &self.shared.database.sql;
        let (name, lease) = (literal::bytes(token.key().as_str().as_bytes()), token.lease().to_string());
        let values = [("name", name.as_str()), ("lease", lease.as_str())];
        let text = format!("{};\n{}", fill(&sql.idempotency_held, &values), fill(&sql.idempotency_complete, &values));
        let mut inside = Inside::begin("complete", transaction).await?;
        let held = inside.query(text).await.map(|answers| !answers.concat().is_empty());
        match inside.end(held).await? {
            true => Ok(()),
            false => Err(MessagingError::invalid(
                "idempotency token",
                format!("the lease has run out and somebody else has begun '{}' since; roll back", token.key()),
            )),
        }
    }
}

/// A part of a caller's transaction that is done whole or not at all.
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
        answers.map_err(|error| undone(self.operation, Phase::BeforeCommit, error)).map_err(Undone::into_harmless)
    }

    async fn end<T>(self, result: Result<T, MessagingError>) -> Result<T, MessagingError> {
        let end = match result.is_ok() {
            true => "release savepoint postrider",
            false => "rollback to savepoint postrider; release savepoint postrider",
        };
        // When the server has ended the whole transaction by itself there is nothing left to take back.
        let ended = self.transaction.query_drop(end).await;
        let value = result?;
        ended.map_err(|error| undone(self.operation, Phase::BeforeCommit, error).into_harmless())?;
        Ok(value)
    }
}
