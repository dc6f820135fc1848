//! The operations on messages.

use std::sync::PoisonError;
use std::time::Duration;

use postrider_core::{
    Capabilities, DeadLetters, Deadline, Expiry, Feature, Message, MessageId, MessagingError, MessagingService,
    QueueAdmin, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
    WakeUps, async_trait,
};

use super::{Call, Recorded, failure, lease_outcome, outcome};
use crate::history::{BodyHash, Dropped, ExtendCall, LeaseOutcome, Outcome, ReceiveCall, SendCall, SettleCall};

#[async_trait]
impl<P: MessagingService + QueueAdmin + DeadLetters> MessagingService for Recorded<P> {
    fn provider_name(&self) -> &'static str {
        self.provider.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.provider.capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.ensure_queue(queue, deadline).await
    }

    async fn ensure_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.ensure_queues(queues, deadline).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let batch = messages.first().map(|first| first.id);
        let rows = messages.iter().zip(0..);
        let rows = rows.map(|(message, row)| send_row(queue, message, row, batch.unwrap_or(message.id)));
        let mut call = self.begin(rows.collect());
        let answer = self.provider.send_batch(queue, messages, deadline).await;
        match &answer {
            Ok(rows) => {
                for (row, answer) in call.rows.iter_mut().zip(rows) {
                    row.outcome = outcome(answer.as_ref().copied());
                }
            }
            Err(error) => call.rows.iter_mut().for_each(|row| row.outcome = failure(error)),
        }
        answer
    }

    async fn send_message(
        &self,
        queue: &QueueName,
        message: Message,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        let mut call = self.begin(vec![send_row(queue, &message, 0, message.id)]);
        let answer = self.provider.send_message(queue, message, deadline).await;
        call.rows[0].outcome = outcome(answer.as_ref().copied());
        answer
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let mut call = self.begin(vec![receive_row(queue, options)]);
        let answer = self.provider.receive_messages(queue, options, deadline).await;
        self.received(&mut call, answer)
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        let mut call = self.begin(settlements.iter().map(settle_row).collect());
        let answer = self.provider.settle(settlements, deadline).await;
        settled(&mut call, answer.as_deref());
        answer
    }

    async fn settle_message(
        &self,
        queue: &QueueName,
        settlement: Settlement,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        let mut call = self.begin(vec![settle_row(&settlement)]);
        let answer = self.provider.settle_message(queue, settlement, deadline).await;
        call.rows[0].outcome = lease_outcome(answer.as_ref().copied());
        answer
    }

    async fn ack_messages(
        &self,
        queue: &QueueName,
        receipts: Vec<ReceiptHandle>,
        deadline: Deadline,
    ) -> Result<RowResults<()>, MessagingError> {
        let rows = receipts.iter().map(|receipt| settle_row(&Settlement::ack(receipt.clone())));
        let mut call = self.begin(rows.collect());
        let answer = self.provider.ack_messages(queue, receipts, deadline).await;
        settled(&mut call, answer.as_deref());
        answer
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let mut settles = self.begin(settlements.iter().map(settle_row).collect());
        let mut receives = self.begin(receive_rows(queues, options));
        let answer = self.provider.settle_and_receive(settlements, queues, options, deadline).await;
        match answer {
            Ok(SettledAndReceived { settled: rows, received }) => {
                settled(&mut settles, Ok(&rows));
                Ok(SettledAndReceived { settled: rows, received: self.received(&mut receives, received) })
            }
            Err(error) => {
                settled(&mut settles, Err(&error));
                receives.rows.iter_mut().for_each(|row| row.outcome = failure(&error));
                Err(error)
            }
        }
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let mut call = self.begin(vec![ExtendCall {
            queue: receipt.queue().clone(),
            id: receipt.message_id(),
            token: receipt.token(),
            extension,
            outcome: LeaseOutcome::Unknown,
        }]);
        let answer = self.provider.extend_visibility(queue, receipt, extension, deadline).await;
        call.rows[0].outcome = lease_outcome(answer.as_ref().map(drop));
        answer
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        let mut call = self.begin(vec![receive_row(queue, options)]);
        let answer = self.provider.receive_by_id(queue, id, options, deadline).await;
        let received = self.received(&mut call, answer.map(|one| one.into_iter().collect()))?;
        Ok(received.into_iter().next())
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.provider.subscribe(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let given_back = std::mem::take(&mut *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner));
        // Recorded first: from here on the leases may end.
        self.history.record_call(self.worker, self.history.now(), given_back.into_iter().map(Into::into));
        self.provider.close(deadline).await
    }
}

impl<P: MessagingService> Recorded<P> {
    /// Fills in the deliveries, each in the row of its queue.
    fn received(
        &self,
        call: &mut Call<ReceiveCall>,
        answer: Result<Vec<QueuedMessage>, MessagingError>,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let messages = match answer {
            Ok(messages) => messages,
            Err(error) => {
                call.rows.iter_mut().for_each(|row| row.outcome = failure(&error));
                return Err(error);
            }
        };
        call.rows.iter_mut().for_each(|row| row.outcome = Outcome::Done(Vec::new()));
        let watched = messages.into_iter().map(|message| {
            if !self.provider.capabilities().offers(Feature::PortableReceipts) {
                let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
                unsettled.push(Dropped::from(message.receipt()));
            }
            let (delivery, message) = self.watch_drop(message);
            let row_index = call.rows.iter().position(|row| row.queue == message.envelope.queue);
            // A message of a queue that was not named is the provider's fault; it is kept in the first row.
            if let Some(row) = call.rows.get_mut(row_index.unwrap_or(0))
                && let Outcome::Done(deliveries) = &mut row.outcome
            {
                deliveries.push(delivery);
            }
            message
        });
        Ok(watched.collect())
    }
}

fn send_row(queue: &QueueName, message: &Message, row: u32, batch: MessageId) -> SendCall {
    let (expires_in, expires_at) = match message.expires {
        Some(Expiry::In(lifetime)) => (Some(lifetime), None),
        Some(Expiry::At(time)) => (None, Some(time)),
        None => (None, None),
    };
    SendCall {
        queue: queue.clone(),
        id: message.id,
        ordering_key: message.ordering_key.as_ref().map(ToString::to_string),
        dedup_key: message.dedup_key.as_ref().map(ToString::to_string),
        delay: message.delay,
        expires_in,
        expires_at,
        body_hash: BodyHash::of(&message.body),
        row,
        batch,
        outcome: Outcome::Unknown,
    }
}

fn receive_row(queue: &QueueName, options: &ReceiveOptions) -> ReceiveCall {
    ReceiveCall {
        queue: queue.clone(),
        visibility: options.visibility,
        max_receive_count: options.max_receive_count,
        outcome: Outcome::Unknown,
    }
}

/// One row per queue, also when the caller named one twice.
fn receive_rows(queues: &[QueueName], options: &ReceiveOptions) -> Vec<ReceiveCall> {
    let mut rows: Vec<ReceiveCall> = Vec::with_capacity(queues.len());
    for queue in queues {
        if !rows.iter().any(|row| row.queue == *queue) {
            rows.push(receive_row(queue, options));
        }
    }
    rows
}

fn settle_row(settlement: &Settlement) -> SettleCall {
    let receipt = &settlement.receipt;
    SettleCall {
        queue: receipt.queue().clone(),
        id: receipt.message_id(),
        token: receipt.token(),
        disposition: settlement.disposition.clone(),
        outcome: LeaseOutcome::Unknown,
    }
}

/// Fills in the outcomes of settlements. A row without an answer stays unknown.
fn settled(call: &mut Call<SettleCall>, answer: Result<&[Result<(), MessagingError>], &MessagingError>) {
    match answer {
        Ok(rows) => {
            for (row, answer) in call.rows.iter_mut().zip(rows) {
                row.outcome = lease_outcome(answer.as_ref().copied());
            }
        }
        Err(error) => {
            call.rows.iter_mut().for_each(|row| row.outcome = lease_outcome(Err(error)));
        }
    }
}
