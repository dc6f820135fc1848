//! Providers that break one rule each, so that nobody can doubt that the suite can fail.
//!
//! [`Broken`] wraps a provider that keeps the law and spoils one thing on the way through. The suite, run on it, must
//! report the test that [`Fault::caught_by`] names as broken.

mod fault;
mod notes;
mod simulated_store;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::service::check_sendable;
use postrider_core::*;

use crate::harness::ClockShift;
use crate::probe::list_dead_letters;
pub use fault::Fault;
use notes::Notes;
pub use simulated_store::SimulatedStore;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A provider that breaks one rule; none when it has no fault.
#[derive(Debug)]
pub struct Broken<P> {
    inner: P,
    fault: Option<Fault>,
    refused: Option<Feature>,
    /// Shared by all connections, as a broken store would be.
    notes: Arc<Notes>,
    capabilities: Capabilities,
    shift: Option<ClockShift>,
}

impl<P: Provider> Broken<P> {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether there is nothing to spoil and nothing to refuse, row by row.
    fn is_lawful(&self) -> bool {
        self.fault.is_none() && self.refused.is_none()
    }

    /// Fails when the feature is the one that this store does without.
    fn offer(&self, feature: Feature) -> Result<(), MessagingError> {
        if self.refused == Some(feature) { self.capabilities.require(feature) } else { Ok(()) }
    }

    /// A duration as it reaches the store.
    fn spoil_duration(&self, duration: Duration) -> Duration {
        let spoiled = match (self.fault, self.shift) {
            (Some(Fault::CutsToSeconds), _) => Duration::from_secs(duration.as_secs()),
            (Some(Fault::TrustsWorkerClock), Some(ClockShift::Ahead(by))) => duration + by,
            (Some(Fault::TrustsWorkerClock), Some(ClockShift::Behind(by))) => duration.saturating_sub(by),
            _ => duration,
        };
        if duration.is_zero() { duration } else { spoiled.max(Duration::from_micros(1)) }
    }

    fn spoil_deadline(&self, deadline: Deadline) -> Deadline {
        if self.has(Fault::IgnoresDeadlines) { Deadline::never() } else { deadline }
    }

    fn spoil_options(&self, options: &ReceiveOptions) -> ReceiveOptions {
        let mut options = options.clone();
        options.visibility = match self.fault {
            Some(Fault::NeverExpires) if options.visibility < DAY => DAY,
            _ if options.visibility > DAY => options.visibility,
            _ => self.spoil_duration(options.visibility),
        };
        if matches!(self.fault, Some(Fault::ForgetsCount | Fault::IgnoresLimit)) && options.max_receive_count > 0 {
            options.max_receive_count = u32::MAX;
        }
        if self.has(Fault::HandsOutTooMany) && options.max > 0 {
            options.max += 1;
        }
        options
    }

    fn spoil_message(&self, mut message: Message) -> Message {
        match self.fault {
            Some(Fault::LosesHeaders) => message.headers = Headers::new(),
            Some(Fault::IgnoresDedupKey) => message.dedup_key = None,
            Some(Fault::DeliversEarly | Fault::AcceptsWhatItRefuses) => message.delay = Duration::ZERO,
            Some(Fault::DeliversExpired) => message.expires = None,
            Some(Fault::LosesOrder | Fault::OrdersByIds) => self.notes.take_key(&mut message),
            Some(Fault::HoldsKeysOfTheExpired) if message.expires.is_some() && message.ordering_key.is_some() => {
                message.expires = None;
                message.delay = DAY;
            }
            _ => message.delay = self.spoil_duration(message.delay),
        }
        message
    }

    fn spoil_delivery(&self, mut message: QueuedMessage) -> QueuedMessage {
        self.notes.delivered(&message);
        match self.fault {
            Some(Fault::ForgetsCount) => message.envelope.receive_count = 1,
            Some(Fault::LosesOrder | Fault::OrdersByIds) => self.notes.give_key_back(&mut message),
            _ => {}
        }
        message
    }

    /// What reaches the store of a settlement; `None` when nothing does.
    fn spoil_settlement(&self, mut settlement: Settlement) -> Option<Settlement> {
        let Settlement { receipt, disposition } = &mut settlement;
        match (self.fault, &mut *disposition) {
            (Some(Fault::IgnoresToken), _) => self.notes.newest_receipt(receipt),
            (Some(Fault::RetriesAtOnce), Disposition::Nack(Nack::Retry { after, .. })) => *after = Duration::ZERO,
            (Some(Fault::IgnoresRetries), Disposition::Nack(Nack::Retry { .. }))
            | (Some(Fault::IgnoresReleases), Disposition::Nack(Nack::Release)) => return None,
            (Some(Fault::ChargesReleases), Disposition::Nack(nack @ Nack::Release)) => {
                *nack = Nack::retry_after(Duration::ZERO);
            }
            (Some(Fault::RetriesBadBytes), Disposition::Nack(nack @ Nack::DeadLetter { .. })) => {
                *nack = Nack::retry_after(DAY);
            }
            (Some(Fault::DropsDeadLetters), Disposition::Nack(Nack::DeadLetter { .. })) => {
                *disposition = Disposition::Ack;
            }
            (Some(Fault::ForgetsErrors), Disposition::Nack(Nack::DeadLetter { error, .. })) => *error = None,
            (_, Disposition::Nack(Nack::Retry { after, .. })) if *after < DAY => *after = self.spoil_duration(*after),
            _ => {}
        }
        Some(settlement)
    }

    async fn settle_one(&self, settlement: Settlement, deadline: Deadline) -> Result<(), MessagingError> {
        let Some(settlement) = self.spoil_settlement(settlement) else { return Ok(()) };
        let resend = self.resend_after(&settlement);
        let receipt = settlement.receipt.clone();
        let settlement = match &resend {
            Some(_) if self.has(Fault::RetriesLosePlace) => Settlement::ack(settlement.receipt),
            _ => settlement,
        };
        let rows = self.inner.settle(vec![settlement], deadline).await?;
        let mut result = rows.into_iter().next().unwrap_or(Ok(()));
        if let (Ok(()), Some(message)) = (&result, resend) {
            self.inner.send_message(receipt.queue(), message, deadline).await?;
        }
        if matches!(result, Err(MessagingError::VisibilityExpired { .. })) {
            result = self.accept_late(&receipt, result, deadline).await?;
        }
        if result.is_ok() {
            self.notes.settled(&receipt);
        }
        result
    }

    /// The copy that a broken provider sends after a settle.
    fn resend_after(&self, settlement: &Settlement) -> Option<Message> {
        let copy = self.notes.copy_of(&settlement.receipt)?;
        match (self.fault, &settlement.disposition) {
            (Some(Fault::RetriesLosePlace), Disposition::Nack(Nack::Retry { after, .. })) => Some(copy.delay(*after)),
            (Some(Fault::CopiesDeadLetters), Disposition::Nack(Nack::DeadLetter { .. })) => Some(copy),
            _ => None,
        }
    }

    async fn accept_late(
        &self,
        receipt: &ReceiptHandle,
        result: Result<(), MessagingError>,
        deadline: Deadline,
    ) -> Result<Result<(), MessagingError>, MessagingError> {
        if self.has(Fault::AcksTwice) && self.notes.was_settled(receipt) {
            return Ok(Ok(()));
        }
        if self.has(Fault::AcceptsExpiredLeases) {
            let options = ReceiveOptions::default().max_receive_count(u32::MAX);
            let again = self.inner.receive_by_id(receipt.queue(), receipt.message_id(), &options, deadline).await?;
            if let Some(message) = again {
                self.inner.ack_message(receipt.queue(), message, deadline).await?;
                return Ok(Ok(()));
            }
        }
        Ok(result)
    }

    async fn redrive(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let mut redrive = redrive.clone();
        if self.has(Fault::IgnoresDryRun) {
            redrive.dry_run = false;
        }
        if !matches!(self.fault, Some(Fault::RenamesOnRedrive | Fault::RedrivesTwins)) {
            return self.inner.redrive_dead_letters(queue, &redrive, deadline).await;
        }
        let mut report = RedriveReport::default();
        for letter in list_dead_letters(&self.inner, queue).await? {
            self.inner.purge_dead_letters(queue, &DeadLetterSelection::Ids(vec![letter.id]), deadline).await?;
            let message = match self.fault {
                Some(Fault::RedrivesTwins) => Message::new(letter.body).id(letter.id),
                _ => Message::new(letter.body),
            };
            self.inner.send_message(queue, message, deadline).await?;
            report.redriven.push(letter.id);
        }
        Ok(report)
    }
}

impl<P: Provider> MessagingService for Broken<P> {
    fn provider_name(&self) -> &'static str {
        self.inner.provider_name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.ensure_queue(queue, deadline).await
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let deadline = self.spoil_deadline(deadline);
        if self.is_lawful() {
            return self.inner.send_batch(queue, messages, deadline).await;
        }
        if self.has(Fault::FailsWholeBatches) {
            for message in &messages {
                message.check(&self.capabilities.limits)?;
            }
        }
        let mut rows = Vec::new();
        for message in messages {
            let id = message.id;
            if self.has(Fault::LosesSends) && self.notes.every_second_send() {
                rows.push(Ok(id));
                continue;
            }
            if self.refused.is_some()
                && let Err(refused) = check_sendable(&self.capabilities, queue, &message)
            {
                rows.push(Err(refused));
                continue;
            }
            let message = self.spoil_message(message);
            rows.extend(self.inner.send_batch(queue, vec![message], deadline).await?);
        }
        Ok(rows)
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let deadline = self.spoil_deadline(deadline);
        let spoiled = self.spoil_options(options);
        if self.has(Fault::LeasesTwice)
            && let Some(message) = self.notes.leased_copy(queue)
        {
            return Ok(vec![message]);
        }
        if self.has(Fault::OrdersByIds)
            && let Some(id) = self.inner.peek(queue, 1000, deadline).await?.iter().map(|peeked| peeked.id).min()
        {
            let message = self.inner.receive_by_id(queue, id, &spoiled, deadline).await?;
            if let Some(message) = message {
                return Ok(vec![self.spoil_delivery(message)]);
            }
        }
        if self.has(Fault::ClosesWithoutWaking) {
            // The wait is not told of the close.
            let received = self.inner.receive_messages(queue, &spoiled.clone().wait(Duration::ZERO), deadline).await?;
            if received.is_empty() && !options.wait.is_zero() {
                deadline.at_most(options.wait).limit(std::future::pending::<()>()).await;
            }
            return Ok(received);
        }
        let received = self.inner.receive_messages(queue, &spoiled, deadline).await?;
        Ok(received.into_iter().map(|message| self.spoil_delivery(message)).collect())
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        if self.is_lawful() {
            return self.inner.settle(settlements, deadline).await;
        }
        let mut rows: RowResults<()> = Vec::new();
        let mut first_answers = HashMap::new();
        for settlement in settlements {
            let token = settlement.receipt.token();
            if self.has(Fault::AnswersRowsAlike)
                && let Some(row) = first_answers.get(&token)
            {
                let answer: &Result<(), MessagingError> = &rows[*row];
                rows.push(answer.clone());
                continue;
            }
            first_answers.insert(token, rows.len());
            match self.settle_one(settlement, deadline).await {
                Err(error @ MessagingError::Closed { .. }) => return Err(error),
                row => rows.push(row),
            }
        }
        Ok(rows)
    }

    async fn ack_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        let settlement = Settlement::ack(receipt);
        if !self.has(Fault::IgnoresQueue) {
            settlement.receipt.check_queue(queue)?;
        }
        self.settle_one(settlement, deadline).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        let mut receipt = receipt.clone();
        let extension = match self.fault {
            Some(Fault::ExtendsNothing) => return Ok(()),
            Some(Fault::IgnoresToken) => {
                self.notes.newest_receipt(&mut receipt);
                extension
            }
            Some(Fault::AddsExtensions) if extension < DAY => extension + DAY,
            _ if extension < DAY => self.spoil_duration(extension),
            _ => extension,
        };
        self.inner.extend_visibility(queue, &receipt, extension, deadline).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.offer(Feature::ReceiveById)?;
        let mut options = self.spoil_options(options);
        if self.has(Fault::IgnoresLimitById) {
            options.max_receive_count = u32::MAX;
        }
        let received = self.inner.receive_by_id(queue, id, &options, deadline).await?;
        Ok(received.map(|message| self.spoil_delivery(message)))
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.offer(Feature::WakeUp)?;
        self.inner.subscribe(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        if self.has(Fault::ClosesNothing) {
            return Ok(());
        }
        self.inner.close(deadline).await
    }
}

crate::forward_admin!(Broken, pause: |this, queue, deadline| async {
    this.offer(Feature::Pause)?;
    if this.has(Fault::PausesNothing) {
        return Ok(());
    }
    this.inner.pause(queue, deadline).await
}, attempts: |this, queue, id, deadline| async {
    this.offer(Feature::AttemptHistory)?;
    let mut attempts = this.inner.message_attempts(queue, id, deadline).await?;
    match this.fault {
        Some(Fault::TellsTheLastAttempt) => drop(attempts.drain(..attempts.len().saturating_sub(1))),
        Some(Fault::TellsAttemptsBackwards) => attempts.reverse(),
        Some(Fault::ForgetsFailures) if attempts.len() > 3 => attempts.truncate(3),
        _ => {}
    }
    Ok(attempts)
});
crate::forward_dead_letters!(Broken, redrive: |this, queue, redrive, deadline| this.redrive(queue, redrive, deadline));
