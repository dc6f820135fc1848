//! Providers that break one rule each: they show that the suite can fail.
//!
//! [`Broken`] wraps a provider that keeps the law and spoils one thing on the way through. The suite, run on it, must
//! report the test that [`Fault::caught_by`] names as broken.

mod fault;
mod notes;
mod simulated_store;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::service::check_sendable;
use postrider_core::*;

use crate::harness::ClockShift;
use crate::probe::list_dead_letters;
pub use fault::Fault;
use notes::Notes;
pub use simulated_store::SimulatedStore;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A provider that breaks the rule of its fault; without a fault it keeps the law.
#[derive(Debug)]
pub struct Broken<P> {
    inner: P,
    fault: Option<Fault>,
    refused: Option<Feature>,
    /// Shared by all connections of the store.
    notes: Arc<Notes>,
    capabilities: Capabilities,
    shift: Option<ClockShift>,
    /// The leases that were extended on this connection.
    extended: Mutex<HashSet<LeaseToken>>,
}

impl<P: Provider> Broken<P> {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether no row has to be changed or refused.
    fn is_lawful(&self) -> bool {
        self.fault.is_none() && self.refused.is_none()
    }

    /// Fails when this store refuses the feature.
    fn offer(&self, feature: Feature) -> Result<(), MessagingError> {
        if self.refused == Some(feature) { self.capabilities.require(feature) } else { Ok(()) }
    }

    /// The duration that reaches the store.
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
            Some(Fault::DropsItsOwnHeaders) => {
                let names: Vec<String> = message.headers.iter().map(|(name, _)| name.to_owned()).collect();
                for name in names.iter().filter(|name| name.starts_with("x-")) {
                    message.headers.remove(name);
                }
            }
            Some(Fault::IgnoresDedupKey) => message.dedup_key = None,
            Some(Fault::DeliversEarly | Fault::AcceptsWhatItRefuses) => message.delay = Duration::ZERO,
            Some(Fault::DeliversExpired) => message.expires = None,
            Some(Fault::LosesOrder | Fault::OrdersByIds) => self.notes.hide_key(&mut message),
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
            Some(Fault::LosesOrder | Fault::OrdersByIds) => self.notes.restore_key(&mut message),
            _ => {}
        }
        message
    }

    fn extended_here(&self) -> MutexGuard<'_, HashSet<LeaseToken>> {
        self.extended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settlement that reaches the store; `None` when it is swallowed.
    fn spoil_settlement(&self, mut settlement: Settlement) -> Option<Settlement> {
        let Settlement { receipt, disposition, worker } = &mut settlement;
        match (self.fault, &mut *disposition) {
            (Some(Fault::CreditsAnotherWorker), _) => *worker = Some("another".into()),
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
        if self.has(Fault::FailsOnOddTexts)
            && let Disposition::Nack(
                Nack::Retry { error: Some(error), .. } | Nack::DeadLetter { error: Some(error), .. },
            ) = &settlement.disposition
            && error.contains('\0')
        {
            return Err(MessagingError::Provider {
                provider: self.provider_name(),
                operation: "settle",
                source: Arc::new(std::io::Error::other("invalid byte sequence for encoding \"UTF8\": 0x00")),
                retryable: false,
            });
        }
        let Some(settlement) = self.spoil_settlement(settlement) else { return Ok(()) };
        let resend = self.resend_after(&settlement);
        let receipt = settlement.receipt.clone();
        if self.has(Fault::KeepsExtensionsToItself)
            && self.notes.is_past_its_first_end(&receipt)
            && !self.extended_here().contains(&receipt.token())
        {
            return Err(receipt.expired());
        }
        let settlement = match &resend {
            Some(_) if !self.has(Fault::CopiesDeadLetters) => Settlement::ack(settlement.receipt),
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
            (Some(Fault::LooksLosePlace), Disposition::Nack(Nack::Retry { after, .. }))
                if self.notes.was_peeked_at(settlement.receipt.queue()) =>
            {
                Some(copy.delay(*after))
            }
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

    async fn list(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        if !self.has(Fault::ListsByPosition) {
            return self.inner.list_dead_letters(queue, query, deadline).await;
        }
        let mut letters = list_dead_letters(&self.inner, queue).await?;
        letters.retain(|letter| query.selection.includes(letter.id, &letter.reason));
        if self.notes.is_even_call() {
            letters.reverse();
        }
        let passed = query.after.as_ref().map_or(0, |cursor| cursor.0.parse().unwrap_or_default());
        let behind = passed + query.limit;
        let next = (letters.len() > behind).then(|| DeadLetterCursor(behind.to_string()));
        Ok(DeadLetterPage { letters: letters.into_iter().skip(passed).take(query.limit).collect(), next })
    }

    async fn find(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        if !self.has(Fault::FindsByBeginnings) {
            return self.inner.find_dead_letters(queue, selection, error, deadline).await;
        }
        let mut letters = list_dead_letters(&self.inner, queue).await?;
        letters.retain(|letter| {
            let is_meant = error.is_none_or(|error| letter.error.as_ref().is_some_and(|kept| kept.starts_with(error)));
            is_meant && selection.includes(letter.id, &letter.reason)
        });
        Ok(letters.into_iter().map(|letter| letter.id).collect())
    }

    async fn summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        let mut page: DeadLetterSummaryPage = self.list(queue, query, deadline).await?.into();
        if self.has(Fault::SummarizesWithoutErrors) {
            page.summaries.iter_mut().for_each(|summary| summary.error = None);
        }
        Ok(page)
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
            let report = self.inner.redrive_dead_letters(queue, &redrive, deadline).await?;
            if self.has(Fault::TakesTheDeadForCopies) {
                // Time for some of them to be dead-lettered again.
                tokio::time::sleep(Duration::from_millis(100)).await;
                let again = DeadLetterSelection::Ids(report.redriven.clone());
                self.inner.purge_dead_letters(queue, &again, deadline).await?;
            }
            return Ok(report);
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

#[async_trait]
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
            if self.has(Fault::LosesSends) && self.notes.is_even_call() {
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
            // The wait does not end with the close.
            let received = self.inner.receive_messages(queue, &spoiled.clone().wait(Duration::ZERO), deadline).await?;
            if received.is_empty() && !options.wait.is_zero() {
                deadline.at_most(options.wait).limit(std::future::pending::<()>()).await;
            }
            return Ok(received);
        }
        let received = self.inner.receive_messages(queue, &spoiled, deadline).await?;
        received.iter().for_each(|message| self.notes.granted(message.receipt(), spoiled.visibility));
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

    async fn settle_message(
        &self,
        queue: &QueueName,
        settlement: Settlement,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
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
    ) -> Result<ReceiptHandle, MessagingError> {
        let mut receipt = receipt.clone();
        let extension = match self.fault {
            Some(Fault::ExtendsNothing) => return Ok(receipt),
            Some(Fault::IgnoresToken) => {
                self.notes.newest_receipt(&mut receipt);
                extension
            }
            Some(Fault::AddsExtensions) if extension < DAY => extension + DAY,
            _ if extension < DAY => self.spoil_duration(extension),
            _ => extension,
        };
        let next = self.inner.extend_visibility(queue, &receipt, extension, deadline).await?;
        self.extended_here().insert(next.token());
        Ok(next)
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
    let last = if this.has(Fault::KeepsFailuresById) { this.notes.last_queue(id) } else { None };
    let mut attempts = this.inner.message_attempts(last.as_ref().unwrap_or(queue), id, deadline).await?;
    match this.fault {
        Some(Fault::TellsTheLastAttempt) => drop(attempts.drain(..attempts.len().saturating_sub(1))),
        Some(Fault::TellsAttemptsBackwards) => attempts.reverse(),
        Some(Fault::ForgetsFailures) if attempts.len() > 3 => attempts.truncate(3),
        _ => {}
    }
    Ok(attempts)
}, peek: |this, queue, limit, deadline| async {
    this.notes.peeked_at(queue);
    this.inner.peek(queue, limit, deadline).await
}, page: |this, queue, query, deadline| async {
    this.offer(Feature::WaitingMessages)?;
    let skipped = usize::from(this.has(Fault::SkipsBetweenPeekedPages));
    let mut page = this.inner.peek_page(queue, &PeekQuery { limit: query.limit + skipped, ..query.clone() }, deadline).await?;
    page.messages.truncate(query.limit);
    Ok(page)
}, archived: |this, queue, query, deadline| async {
    this.offer(Feature::Archive)?;
    let mut spoiled = query.clone();
    match this.fault {
        Some(Fault::IgnoresArchiveFilters) => spoiled.filter = ArchiveFilter::default(),
        Some(Fault::SkipsBetweenArchivePages) if query.filter == ArchiveFilter::default() => spoiled.limit += 1,
        _ => {}
    }
    let mut page = this.inner.archived(queue, &spoiled, deadline).await?;
    page.messages.truncate(query.limit);
    match this.fault {
        Some(Fault::KeepsNothing) => page.messages.clear(),
        Some(Fault::DeletesWithoutRecord) => page.messages.retain(|message| message.state != ArchivedState::Failed),
        Some(Fault::ForgetsArchivedCounts) => page.messages.iter_mut().for_each(|message| message.attempts_count = 0),
        Some(Fault::ListsOldestEndsFirst) => page.messages.reverse(),
        _ => {}
    }
    Ok(page)
}, again: |this, queue, id, deadline| async {
    this.offer(Feature::Archive)?;
    if this.has(Fault::SendsTheSameAgain) {
        let mut message = postrider_core::archive::find(&this.inner, queue, id, deadline).await?.again()?;
        message.id = id;
        return this.inner.send_message(queue, message, deadline).await;
    }
    this.inner.send_again(queue, id, deadline).await
}, now: |this, queue, id, deadline| async {
    this.offer(Feature::WaitingMessages)?;
    if this.has(Fault::DeliversNothingNow) {
        return Ok(());
    }
    this.inner.deliver_now(queue, id, deadline).await
}, dead_letter: |this, queue, id, reason, error, deadline| async {
    this.offer(Feature::WaitingMessages)?;
    let error = if this.has(Fault::ForgetsErrorsByHand) { None } else { error };
    match this.inner.dead_letter_waiting(queue, id, reason, error, deadline).await {
        Err(MessagingError::MessageLeased { .. }) if this.has(Fault::PassesLeasesBy) => Ok(()),
        done => done,
    }
});
crate::forward_dead_letters!(
    Broken,
    list: |this, queue, query, deadline| this.list(queue, query, deadline),
    find: |this, queue, selection, error, deadline| this.find(queue, selection, error, deadline),
    summaries: |this, queue, query, deadline| this.summaries(queue, query, deadline),
    edit: |this, queue, id, edit, deadline| async {
        let mut edit = edit;
        if !this.has(Fault::EditsBlindly) {
            return this.inner.edit_dead_letter(queue, id, edit, deadline).await;
        }
        let mut content_type = this.inner.get_dead_letter(queue, id, deadline).await?.content_type;
        content_type = edit.content_type.replace(ContentType::OCTET_STREAM).unwrap_or(content_type);
        let letter = this.inner.edit_dead_letter(queue, id, edit, deadline).await?;
        Ok(DeadLetter { content_type, ..letter })
    },
    redrive: |this, queue, redrive, deadline| this.redrive(queue, redrive, deadline),
    purge: |this, queue, selection, deadline| async {
        let purged = this.inner.purge_dead_letters(queue, selection, deadline).await?;
        if this.has(Fault::PurgesMoreThanItCounts) {
            // Time for further messages to be dead-lettered.
            tokio::time::sleep(Duration::from_millis(100)).await;
            this.inner.purge_dead_letters(queue, selection, deadline).await?;
        }
        Ok(purged)
    }
);
