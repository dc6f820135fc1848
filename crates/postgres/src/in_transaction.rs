//! Sends, acks and idempotency records inside a transaction of the caller on the same database.
//!
//! The caller's transaction may stay open for any time. A message sent with an ordering key, and the key of an acked
//! message, are promoted by the next claim after the commit. Only two statements of this crate meet the transaction:
//! one that needs the acked row, and a send with the same *dedup* key. They wait a moment and then fail with a
//! retryable error, without the rest of their batch. Another caller's own send with the same dedup key waits until the
//! transaction ends.

use postgres_types::ToSql;
use postrider_core::service::check_sendable;
use postrider_core::{
    ArchivePolicy, Expiry, IdempotencyToken, Message, MessageId, MessagingError, QueueName, ReceiptHandle,
};
use tokio_postgres::Transaction;
use uuid::Uuid;

use postrider_pg::undone;
use postrider_provider::Phase;
use postrider_sql::Lease;

use crate::PROVIDER;
use crate::rows::{Time, content_type_column, headers_column, micros};
use crate::store::PostgresStore;

impl PostgresStore {
    /// Sends a message inside the caller's transaction: it exists if and only if the transaction commits.
    ///
    /// The rules of every send hold. An error leaves the transaction as it was before the call; the caller commits it
    /// or rolls it back.
    pub async fn send_in(
        &self,
        transaction: &mut Transaction<'_>,
        queue: &QueueName,
        message: &Message,
    ) -> Result<MessageId, MessagingError> {
        check_sendable(&self.shared.capabilities, queue, message)?;
        let database = &self.shared.database;
        let (expires_at, lifetime) = match message.expires {
            None => (None, None),
            Some(Expiry::At(time)) => (Some(Time(time)), None),
            Some(Expiry::In(lifetime)) => (None, Some(micros(lifetime))),
        };
        let (name, body, headers) = (queue.as_str(), &*message.body, headers_column(&message.headers));
        let ordering_key = message.ordering_key.as_ref().map(|key| key.as_str());
        let dedup_key = message.dedup_key.as_ref().map(|key| key.as_str());
        let (priority, delay) = (i32::from(message.priority.get()), micros(message.delay));
        let content_type = content_type_column(&message.content_type);
        let create = self.shared.options.create_queues;
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &name,
            &body,
            &headers,
            &ordering_key,
            &dedup_key,
            &priority,
            &delay,
            &expires_at,
            &lifetime,
            &content_type,
            message.id.as_uuid(),
            &create,
        ];
        let rows = inside("send", transaction, &database.sql.send_in, &parameters).await?;
        let id = rows.first().map(|row| MessageId::from_uuid(row.get::<_, Uuid>("message_id")));
        id.ok_or_else(|| MessagingError::QueueNotFound { queue: queue.clone() })
    }

    /// Acks a message inside the caller's transaction, atomically with the changes of its handler.
    pub async fn ack_in(
        &self,
        transaction: &mut Transaction<'_>,
        receipt: &ReceiptHandle,
    ) -> Result<(), MessagingError> {
        let lease = Lease::read(receipt, PROVIDER)?;
        let database = &self.shared.database;
        let (queue, channel) = (receipt.queue().as_str(), database.sql.schema.channel());
        let keeps = self.shared.options.archive == ArchivePolicy::All;
        let id = receipt.message_id();
        let parameters: [&(dyn ToSql + Sync); 6] = [&lease.row, &lease.token, id.as_uuid(), &queue, &keeps, &channel];
        let rows = inside("ack", transaction, &database.sql.ack_in, &parameters).await?;
        if rows.is_empty() { Err(receipt.expired()) } else { Ok(()) }
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
        let (key, lease) = (token.key().as_str(), token.lease());
        let statement = &self.shared.database.sql.idempotency_complete;
        let rows = inside("complete", transaction, statement, &[&key, &lease]).await?;
        if rows.is_empty() {
            return Err(MessagingError::invalid(
                "idempotency token",
                format!("its lease has expired and another worker has begun '{}'; roll back", token.key()),
            ));
        }
        Ok(())
    }
}

/// Runs one statement in a savepoint, so that its failure does not abort the caller's transaction.
pub(crate) async fn inside(
    operation: &'static str,
    transaction: &mut Transaction<'_>,
    statement: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>, MessagingError> {
    let failed = |error| undone(PROVIDER, operation, Phase::BeforeCommit, error).into_harmless();
    let savepoint = transaction.transaction().await.map_err(failed)?;
    let rows = savepoint.query(statement, parameters).await.map_err(failed)?;
    savepoint.commit().await.map_err(failed)?;
    Ok(rows)
}
