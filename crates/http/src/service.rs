//! The contract, kept by requests.

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
use crate::receive::MOST_QUEUES;
use crate::transport::{Ask, MOST_ROWS};

/// The rows that may be asked for, and the answers of all the others, each at its place.
struct Sorted<T, A> {
    good: Vec<T>,
    answers: Vec<Option<Result<A, MessagingError>>>,
}

/// Refuses rows one by one before anything is sent: a value that has no words on the wire would spoil the request of all.
fn sort<T, A>(rows: Vec<T>, check: impl Fn(T) -> Result<T, MessagingError>) -> Sorted<T, A> {
    let mut sorted = Sorted { good: Vec::with_capacity(rows.len()), answers: Vec::with_capacity(rows.len()) };
    for row in rows {
        match check(row) {
            Ok(row) => {
                sorted.good.push(row);
                sorted.answers.push(None);
            }
            Err(error) => sorted.answers.push(Some(Err(error))),
        }
    }
    sorted
}

/// Puts the answers of the rows that were asked for between those of the others.
fn merge<A>(answers: Vec<Option<Result<A, MessagingError>>>, asked: RowResults<A>) -> RowResults<A> {
    let mut asked = asked.into_iter();
    let unknown = || MessagingError::OutcomeUnknown { operation: "the request", ids: Vec::new(), source: None };
    let row = |answer: Option<_>| answer.or_else(|| asked.next()).unwrap_or_else(|| Err(unknown()));
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
        let ask = Ask::bare(Method::PUT, format!("/v1/queues/{}", queue.origin()));
        let IgnoredAny = self.look("ensure queue", ask, deadline).await?;
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
        let Sorted { good, answers } = sort(messages, check);
        if good.is_empty() {
            return Ok(merge(answers, Vec::new()));
        }
        Ok(merge(answers, self.inner.coalescer.send(queue, good, deadline).await?))
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.begin("receive", deadline)?;
        options.check(&self.table().limits)?;
        self.wait_for(vec![queue.clone()], options, deadline).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.begin("settle", deadline)?;
        let Sorted { good, answers } = sort(settlements, |row| self.check_settlement(row));
        if good.is_empty() {
            return Ok(merge(answers, Vec::new()));
        }
        Ok(merge(answers, self.inner.coalescer.settle(good, deadline).await?))
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
        // What is no one request is two: settlements without a receive, a receive without settlements, and either of them
        // with more rows than a request takes.
        let is_one = (1..=MOST_ROWS).contains(&settlements.len())
            && (1..=MOST_QUEUES).contains(&queues.len())
            && options.max <= MOST_ROWS;
        if unusable.is_some() || !is_one {
            let settled = if settlements.is_empty() { Vec::new() } else { self.settle(settlements, deadline).await? };
            let received = match unusable {
                Some(error) => Err(error),
                None if queues.is_empty() => Ok(Vec::new()),
                None => self.wait_for(queues.to_vec(), options, deadline).await,
            };
            return Ok(SettledAndReceived { settled, received });
        }
        let Sorted { good, answers } = sort(settlements, |row| self.check_settlement(row));
        let SettledAndReceived { settled, received } = self.settle_and_look(good, queues, options, deadline).await?;
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
        let Health { ok } = self.look("health check", Ask::get("/v1/health"), deadline).await?;
        if ok {
            return Ok(());
        }
        Err(self.transport().unreachable("it says that it is not well"))
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
    fn refused_rows_keep_their_places() {
        let check = |row: u32| if row.is_multiple_of(2) { Ok(row) } else { Err(MessagingError::invalid("row", "odd")) };
        let Sorted { good, answers } = sort(vec![0, 1, 2, 3], check);
        assert_eq!(good, [0, 2]);
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
