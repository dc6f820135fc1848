//! `MessagingService` over HTTP.

use std::time::Duration;

use http::Method;
use postrider_core::receive_options::check_visibility;
use postrider_core::service::check_sendable;
use postrider_core::{
    Capabilities, Deadline, Feature, Message, MessageId, MessagingError, MessagingService, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, RowResults, SettledAndReceived, Settlement, WakeUps, async_trait,
};
use postrider_wire::capabilities::Health;
use serde::de::IgnoredAny;

use crate::PROVIDER;
use crate::events;
use crate::provider::HttpProvider;
use crate::receive::MAX_QUEUES;
use crate::transport::{MAX_ROWS, Request};

/// The valid rows, and the errors of the others at their index.
struct Checked<T, A> {
    valid: Vec<T>,
    answers: Vec<Option<Result<A, MessagingError>>>,
}

/// Checks rows one by one: an invalid value would fail the request of all.
fn check_rows<T, A>(rows: Vec<T>, check: impl Fn(T) -> Result<T, MessagingError>) -> Checked<T, A> {
    let mut checked = Checked { valid: Vec::with_capacity(rows.len()), answers: Vec::with_capacity(rows.len()) };
    for row in rows {
        match check(row) {
            Ok(row) => {
                checked.valid.push(row);
                checked.answers.push(None);
            }
            Err(error) => checked.answers.push(Some(Err(error))),
        }
    }
    checked
}

/// Fills in the results of the valid rows.
fn merge<A>(answers: Vec<Option<Result<A, MessagingError>>>, results: RowResults<A>) -> RowResults<A> {
    let mut results = results.into_iter();
    let unknown = || MessagingError::OutcomeUnknown { operation: "the request", ids: Vec::new(), source: None };
    let row = |answer: Option<_>| answer.or_else(|| results.next()).unwrap_or_else(|| Err(unknown()));
    answers.into_iter().map(row).collect()
}

impl HttpProvider {
    fn check_settlement(&self, settlement: Settlement) -> Result<Settlement, MessagingError> {
        settlement.receipt.check_provider(PROVIDER)?;
        settlement.checked(&self.table().limits)
    }
}

#[async_trait]
impl MessagingService for HttpProvider {
    fn provider_name(&self) -> &'static str {
        PROVIDER
    }

    fn capabilities(&self) -> &Capabilities {
        self.table()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let request = Request::bare(Method::PUT, format!("/v1/queues/{}", queue.origin()));
        let IgnoredAny = self.call("ensure queue", request, deadline).await?;
        Ok(())
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        self.begin("send", deadline)?;
        let check = |message: Message| check_sendable(self.table(), queue, &message).map(|()| message);
        let Checked { valid, answers } = check_rows(messages, check);
        if valid.is_empty() {
            return Ok(merge(answers, Vec::new()));
        }
        Ok(merge(answers, self.inner.coalescer.send(queue, valid, deadline).await?))
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        options.check(&self.table().limits)?;
        self.receive_from(vec![queue.clone()], options, deadline).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        let Checked { valid, answers } = check_rows(settlements, |row| self.check_settlement(row));
        if valid.is_empty() {
            return Ok(merge(answers, Vec::new()));
        }
        Ok(merge(answers, self.inner.coalescer.settle(valid, deadline).await?))
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        self.begin("settle", deadline)?;
        let unusable = options.check(&self.table().limits).err();
        // A combined request needs settlements and queues, and not more of either than one request may have.
        let is_combined = (1..=MAX_ROWS).contains(&settlements.len())
            && (1..=MAX_QUEUES).contains(&queues.len())
            && options.max <= MAX_ROWS;
        if unusable.is_some() || !is_combined {
            let settled = if settlements.is_empty() { Vec::new() } else { self.settle(settlements, deadline).await? };
            let received = match unusable {
                Some(error) => Err(error),
                None if queues.is_empty() => Ok(Vec::new()),
                None => self.receive_from(queues.to_vec(), options, deadline).await,
            };
            return Ok(SettledAndReceived { settled, received });
        }
        let Checked { valid, answers } = check_rows(settlements, |row| self.check_settlement(row));
        let SettledAndReceived { settled, received } =
            self.settle_and_receive_now(valid, queues, options, deadline).await?;
        Ok(SettledAndReceived { settled: merge(answers, settled), received })
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.begin("extend", deadline)?;
        receipt.check_provider(PROVIDER)?;
        receipt.check_queue(queue)?;
        check_visibility(extension, &self.table().limits)?;
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
        self.table().require(Feature::ReceiveById)?;
        options.check(&self.table().limits)?;
        self.receive_one(queue, id, options, deadline).await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.table().require(Feature::WakeUp)?;
        let path = format!("/v1/queues/{queue}/wake-ups");
        events::wake_ups(self.transport().clone(), path, self.inner.under_way.closing(), deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let Health { ok } = self.call("health check", Request::get("/v1/health"), deadline).await?;
        if ok {
            return Ok(());
        }
        Err(self.transport().unreachable("it reports that its store is unavailable"))
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.close();
        let closed = self.inner.coalescer.close(deadline).await;
        self.inner.under_way.finish(deadline).await?;
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rows_keep_their_order() {
        let check = |row: u32| if row.is_multiple_of(2) { Ok(row) } else { Err(MessagingError::invalid("row", "odd")) };
        let Checked { valid, answers } = check_rows(vec![0, 1, 2, 3], check);
        assert_eq!(valid, [0, 2]);
        let rows = merge(answers, vec![Ok('a'), Err(MessagingError::busy("later"))]);
        assert!(matches!(
            rows.as_slice(),
            [
                Ok('a'),
                Err(MessagingError::InvalidInput { .. }),
                Err(MessagingError::Busy { .. }),
                Err(MessagingError::InvalidInput { .. })
            ]
        ));
    }
}
