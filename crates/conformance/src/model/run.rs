//! Runs one program on both sides.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use postrider_core::*;

use super::TimedHarness;
use super::program::{Span, Step};
use crate::probe::{list_dead_letters, soon};

const LONG: Duration = Duration::from_secs(24 * 3600);

/// Upper bound of receives per step: a store may return less than the model could.
const MAX_RECEIVES: usize = 5;

struct Comparison<'h, H: TimedHarness> {
    harness: &'h H,
    provider: H::Provider,
    model: MemoryProvider,
    clock: ManualClock,
    queue: QueueName,
    scratch: QueueName,
    /// All sent ids, in order.
    sent: Vec<MessageId>,
    /// All receipts: the provider's and the model's.
    receipts: Vec<(ReceiptHandle, ReceiptHandle)>,
}

/// Runs a program; the error is the first difference.
pub(super) async fn run<H: TimedHarness>(harness: &H, name: &str, program: &[Step]) -> Result<(), String> {
    let clock = ManualClock::default();
    let provider = harness.open().await.map_err(text)?;
    let store = MemoryStore::builder().clock(clock.clone()).limits(provider.capabilities().limits.clone()).build();
    let queue = QueueName::new(format!("{name}_q")).map_err(text)?;
    let scratch = QueueName::new(format!("{name}_s")).map_err(text)?;
    let model = store.open();
    provider.ensure_queue(&queue, soon()).await.map_err(text)?;
    model.ensure_queue(&queue, soon()).await.map_err(text)?;
    let mut comparison =
        Comparison { harness, provider, model, clock, queue, scratch, sent: Vec::new(), receipts: Vec::new() };
    let mut result = Ok(());
    for (number, step) in program.iter().enumerate() {
        result = comparison.step(step).await;
        if result.is_ok() {
            result = comparison.compare().await;
        }
        if let Err(difference) = result {
            result = Err(format!("step {number}, {step:?}: {difference}"));
            break;
        }
    }
    for queue in [&comparison.queue, &comparison.scratch] {
        comparison.provider.delete_queue(queue, soon()).await.map_err(text)?;
    }
    comparison.provider.close(soon()).await.map_err(text)?;
    result
}

fn text(error: MessagingError) -> String {
    format!("a call failed: {error}")
}

fn same<T: PartialEq + Debug>(what: &str, provider: &T, model: &T) -> Result<(), String> {
    if provider == model { Ok(()) } else { Err(format!("{what}: the provider has {provider:?}, the model {model:?}")) }
}

/// The kind of an answer. Texts and times may differ.
fn kind<T>(result: &Result<T, MessagingError>) -> &'static str {
    match result {
        Ok(_) => "done",
        Err(MessagingError::VisibilityExpired { .. }) => "VisibilityExpired",
        Err(MessagingError::MessageNotFound { .. }) => "MessageNotFound",
        Err(MessagingError::MessageLeased { .. }) => "MessageLeased",
        Err(MessagingError::InvalidInput { .. }) => "InvalidInput",
        Err(MessagingError::InvalidReceipt { .. }) => "InvalidReceipt",
        Err(_) => "another error",
    }
}

impl<H: TimedHarness> Comparison<'_, H> {
    fn span(&self, span: Span) -> Duration {
        match span {
            Span::Short => self.harness.short(),
            Span::Long => LONG,
        }
    }

    fn offers(&self, feature: Feature) -> bool {
        self.provider.capabilities().offers(feature)
    }

    fn receipt(&self, number: u8) -> Option<(ReceiptHandle, ReceiptHandle)> {
        self.receipts.get(usize::from(number) % self.receipts.len().max(1)).cloned()
    }

    fn message(&self, number: u8) -> Option<MessageId> {
        self.sent.get(usize::from(number) % self.sent.len().max(1)).copied()
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Send { key, dedup, priority, delay, expires } => {
                let message = self.compose(*key, *dedup, *priority, *delay, *expires).map_err(text)?;
                self.send(message).await
            }
            Step::Receive { max, lease, limit } => {
                let options = ReceiveOptions::batch(usize::from(*max))
                    .visibility(self.span(*lease))
                    .max_receive_count(u32::from(*limit));
                self.receive(&self.queue.clone(), &options).await
            }
            Step::ReceiveDead { max, lease } => {
                let options = ReceiveOptions::batch(usize::from(*max)).visibility(self.span(*lease));
                self.receive(&self.queue.dead_letters(), &options).await
            }
            Step::ReceiveById { message, lease } => {
                let options = ReceiveOptions::default().visibility(self.span(*lease)).max_receive_count(1000);
                match self.message(*message) {
                    Some(id) if self.offers(Feature::ReceiveById) => self.receive_by_id(id, &options).await,
                    _ => Ok(()),
                }
            }
            Step::Ack { receipt } => self.settle(*receipt, Disposition::Ack).await,
            Step::Retry { receipt, after } => {
                let after = after.map_or(Duration::ZERO, |after| self.span(after));
                self.settle(*receipt, Disposition::Nack(Nack::retry_after(after).with_error("failed"))).await
            }
            Step::Release { receipt } if self.offers(Feature::FreeRelease) => {
                self.settle(*receipt, Disposition::Nack(Nack::Release)).await
            }
            Step::Release { .. } => Ok(()),
            Step::DeadLetter { receipt } => {
                self.settle(*receipt, Disposition::Nack(Nack::dead_letter("rejected").with_error("bad"))).await
            }
            Step::Extend { receipt, lease } => {
                let Some((ours, models)) = self.receipt(*receipt) else { return Ok(()) };
                let span = self.span(*lease);
                let provider = self.provider.extend_visibility(ours.queue(), &ours, span, soon()).await;
                let model = self.model.extend_visibility(models.queue(), &models, span, soon()).await;
                same("the extend", &kind(&provider), &kind(&model))
            }
            Step::Elapse => {
                let short = self.harness.short();
                self.clock.advance(short);
                self.harness.elapse(short, &self.scratch).await.map_err(text)
            }
            Step::EditDead { message } => {
                let Some(id) = self.message(*message) else { return Ok(()) };
                let edit = DeadLetterEdit { body: Some("edited".into()), ..DeadLetterEdit::default() };
                let provider = self.provider.edit_dead_letter(&self.queue, id, edit.clone(), soon()).await;
                let model = self.model.edit_dead_letter(&self.queue, id, edit, soon()).await;
                same("the edit", &kind(&provider), &kind(&model))
            }
            Step::Redrive { message, dry_run } => {
                let selection = match message.map(|message| self.message(message)) {
                    None => DeadLetterSelection::All,
                    Some(Some(id)) => DeadLetterSelection::Ids(vec![id]),
                    Some(None) => return Ok(()),
                };
                let redrive = Redrive { selection, to: None, dry_run: *dry_run };
                let provider = self.provider.redrive_dead_letters(&self.queue, &redrive, soon()).await;
                let model = self.model.redrive_dead_letters(&self.queue, &redrive, soon()).await;
                same("the redrive", &provider.map_err(text)?, &model.map_err(text)?)
            }
            Step::PurgeDead { message } => {
                let Some(id) = self.message(*message) else { return Ok(()) };
                let selection = DeadLetterSelection::Ids(vec![id]);
                let provider = self.provider.purge_dead_letters(&self.queue, &selection, soon()).await;
                let model = self.model.purge_dead_letters(&self.queue, &selection, soon()).await;
                same("the number purged", &provider.map_err(text)?, &model.map_err(text)?)
            }
            Step::Purge => {
                let provider = self.provider.purge(&self.queue, soon()).await.map_err(text)?;
                same("the number purged", &provider, &self.model.purge(&self.queue, soon()).await.map_err(text)?)
            }
            Step::Pause if self.offers(Feature::Pause) => {
                self.provider.pause(&self.queue, soon()).await.map_err(text)?;
                self.model.pause(&self.queue, soon()).await.map_err(text)
            }
            Step::Pause => Ok(()),
            Step::Resume => {
                self.model.resume(&self.queue, soon()).await.map_err(text)?;
                if !self.offers(Feature::Pause) {
                    return Ok(());
                }
                self.provider.resume(&self.queue, soon()).await.map_err(text)
            }
        }
    }

    fn compose(
        &self,
        key: Option<u8>,
        dedup: Option<u8>,
        priority: u8,
        delay: Option<Span>,
        expires: Option<Span>,
    ) -> Result<Message, MessagingError> {
        let mut message = Message::new(format!("message {}", self.sent.len()));
        if let Some(key) = key.filter(|_| self.offers(Feature::OrderByKey)) {
            message = message.ordering_key(format!("key {key}"))?;
        }
        if let Some(dedup) = dedup.filter(|_| self.offers(Feature::Dedup)) {
            message = message.dedup_key(format!("dedup {dedup}"))?;
        }
        if self.offers(Feature::Priority) {
            message = message.priority(Priority::new(priority)?);
        }
        if let Some(delay) = delay.filter(|_| self.offers(Feature::Delay)) {
            message = message.delay(self.span(delay));
        }
        if let Some(expires) = expires.filter(|_| self.offers(Feature::Expiry)) {
            message = message.expires_in(self.span(expires));
        }
        Ok(message)
    }

    async fn send(&mut self, message: Message) -> Result<(), String> {
        let provider = self.provider.send_message(&self.queue, message.clone(), soon()).await.map_err(text)?;
        let model = self.model.send_message(&self.queue, message, soon()).await.map_err(text)?;
        same("the answered id", &provider, &model)?;
        if !self.sent.contains(&provider) {
            self.sent.push(provider);
        }
        Ok(())
    }

    async fn receive(&mut self, queue: &QueueName, options: &ReceiveOptions) -> Result<(), String> {
        let mut left = options.max;
        for look in 1..=MAX_RECEIVES {
            let options = ReceiveOptions { max: left, ..options.clone() };
            let received = self.provider.receive_messages(queue, &options, soon()).await.map_err(text)?;
            left -= received.len().min(left);
            self.follow_dead_letters(&options).await?;
            for message in received {
                self.follow(queue, message, &options).await?;
            }
            if left == 0 {
                return Ok(());
            }
            // The provider has checked everything due; what the model still finds was withheld.
            match self.receivable_in_model(queue, &options).await? {
                Some(id) if look == MAX_RECEIVES => return Err(format!("the provider withholds {id}")),
                Some(_) => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// A message that the model would return now. It is released unchanged.
    async fn receivable_in_model(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
    ) -> Result<Option<MessageId>, String> {
        let options = ReceiveOptions { max: 1, ..options.clone() };
        let found = self.model.receive_messages(queue, &options, soon()).await.map_err(text)?.pop();
        let Some(message) = found else { return Ok(None) };
        let id = message.id();
        self.model.nack_message(queue, message, Nack::Release, soon()).await.map_err(text)?;
        Ok(Some(id))
    }

    /// The model leases what the provider leased.
    async fn follow(
        &mut self,
        queue: &QueueName,
        message: QueuedMessage,
        options: &ReceiveOptions,
    ) -> Result<(), String> {
        let id = message.id();
        let followed = self.model.receive_by_id(queue, id, options, soon()).await.map_err(text)?;
        let Some(followed) = followed else {
            return Err(format!("the provider delivered {id}, which may not be received now"));
        };
        same("the body", &message.message, &followed.message)?;
        let (ours, models) = (&message.envelope, &followed.envelope);
        same("the delivery", &ours.receive_count, &models.receive_count)?;
        same("the failures", &ours.attempts_count, &models.attempts_count)?;
        same("the ordering key", &ours.ordering_key, &models.ordering_key)?;
        same("the priority", &ours.priority, &models.priority)?;
        self.receipts.push((message.into_receipt(), followed.into_receipt()));
        Ok(())
    }

    /// Dead-letters on reading in the model what the provider has dead-lettered on reading.
    async fn follow_dead_letters(&mut self, options: &ReceiveOptions) -> Result<(), String> {
        let dead_in_model: HashSet<_> =
            list_dead_letters(&self.model, &self.queue).await.map_err(text)?.iter().map(|letter| letter.id).collect();
        for letter in list_dead_letters(&self.provider, &self.queue).await.map_err(text)? {
            if !dead_in_model.contains(&letter.id) {
                let read = self.model.receive_by_id(&self.queue, letter.id, options, soon()).await.map_err(text)?;
                if read.is_some() {
                    return Err(format!(
                        "{} was dead-lettered on reading although it may still be delivered",
                        letter.id
                    ));
                }
            }
        }
        Ok(())
    }

    async fn receive_by_id(&mut self, id: MessageId, options: &ReceiveOptions) -> Result<(), String> {
        let received = self.provider.receive_by_id(&self.queue, id, options, soon()).await.map_err(text)?;
        self.follow_dead_letters(options).await?;
        match received {
            Some(message) => self.follow(&self.queue.clone(), message, options).await,
            None => {
                let model = self.model.receive_by_id(&self.queue, id, options, soon()).await.map_err(text)?;
                same("whether it may be received by its id", &false, &model.is_some())
            }
        }
    }

    async fn settle(&mut self, receipt: u8, disposition: Disposition) -> Result<(), String> {
        let Some((ours, models)) = self.receipt(receipt) else { return Ok(()) };
        let rows = |receipt| vec![Settlement::new(receipt, disposition.clone())];
        let provider = self.provider.settle(rows(ours), soon()).await.map_err(text)?;
        let model = self.model.settle(rows(models), soon()).await.map_err(text)?;
        let kinds = |rows: &[Result<(), MessagingError>]| rows.iter().map(kind).collect::<Vec<_>>();
        same("the settle", &kinds(&provider), &kinds(&model))
    }

    /// Compares stats and dead letters after every step.
    async fn compare(&self) -> Result<(), String> {
        let ours = self.provider.queue_stats(&self.queue, soon()).await.map_err(text)?;
        let models = self.model.queue_stats(&self.queue, soon()).await.map_err(text)?;
        let numbers = [
            ("ready", ours.ready, models.ready),
            ("in flight", ours.in_flight, models.in_flight),
            ("delayed", ours.delayed, models.delayed),
            ("dead", ours.dead, models.dead),
        ];
        for (what, ours, models) in numbers {
            if matches!(ours, Measured::Exact(_)) {
                same(&format!("the number of messages {what}"), &ours, &models)?;
            }
        }
        let summary = |letters: Vec<DeadLetter>| {
            let mut letters: Vec<_> = letters
                .into_iter()
                .map(|letter| {
                    let DeadLetter { id, body, reason, error, deliveries_count, attempts_count, revision, .. } = letter;
                    (id, body, reason.to_string(), error, deliveries_count, attempts_count, revision)
                })
                .collect();
            letters.sort();
            letters
        };
        let ours = list_dead_letters(&self.provider, &self.queue).await.map_err(text)?;
        let models = list_dead_letters(&self.model, &self.queue).await.map_err(text)?;
        same("the dead letters", &summary(ours), &summary(models))
    }
}
