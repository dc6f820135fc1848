//! `postrider receive`

use std::fmt::Write;
use std::num::NonZeroU32;
use std::time::Duration;

use postrider::{
    Bytes, Deadline, Envelope, Feature, Headers, MessageId, MessagingService, Nack, QueueName, QueuedMessage,
    ReceiptHandle, Settlement, Support, Timestamp,
};
use serde::Serialize;

use crate::args::Global;
use crate::failure::{Failure, explained};
use crate::output::note;
use crate::queues::note_if_unreceivable;
use crate::session::Session;
use crate::text::{self, Body, one_line};
use crate::values;

/// Receive messages and lease them
///
/// No other receiver gets a message until its lease ends. Settle it by its printed receipt with 'ack', 'nack' or 'release',
/// or pass --ack. On a broker (amqp:) only --ack settles: otherwise the messages go back to the queue at the end.
///
/// Each receive counts as a delivery, unless 'release' takes it back; 'peek' shows messages without leasing them. An empty
/// queue is no failure. 'QUEUE_dlq' holds the dead letters of QUEUE.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Receive {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// Maximum number of messages, at most common.messaging.max_batch_size (100)
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::count, allow_negative_numbers = true)]
    max: usize,

    /// Dead-letter a message, instead of printing it, after N deliveries [default: 3, or as configured]
    #[arg(long, value_name = "N", value_parser = values::deliveries, allow_negative_numbers = true)]
    max_deliveries: Option<NonZeroU32>,

    /// Length of the lease, like 500ms, 5s, 2m, 1h30m or 3d [default: 30s, or as configured]
    #[arg(long, value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    visibility: Option<Duration>,

    /// Maximum wait for the first message, like 500ms, 5s, 2m, 1h30m or 3d
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, default_value = "0s")]
    wait: Duration,

    /// Acknowledge the messages after printing them
    #[arg(long)]
    ack: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider receive orders --wait 5s
  postrider receive orders --ack
  postrider --json receive orders --max 10 | jq -r .receipt | xargs postrider ack";

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    receipt: &'a ReceiptHandle,
    #[serde(flatten)]
    body: Body<'a>,
    content_type: &'a str,
    headers: &'a Headers,
    ordering_key: Option<&'a str>,
    priority: u8,
    receive_count: u32,
    attempts_count: u32,
    enqueued_at: Timestamp,
    lease_expires_at: Timestamp,
}

impl<'a> Row<'a> {
    fn of(body: &'a Bytes, envelope: &'a Envelope, receipt: &'a ReceiptHandle) -> Self {
        Self {
            id: envelope.id,
            queue: &envelope.queue,
            receipt,
            body: Body::of(body),
            content_type: envelope.content_type.as_str(),
            headers: &envelope.headers,
            ordering_key: envelope.ordering_key.as_ref().map(|key| key.as_str()),
            priority: envelope.priority.get(),
            receive_count: envelope.receive_count,
            attempts_count: envelope.attempts_count,
            enqueued_at: envelope.enqueued_at,
            lease_expires_at: envelope.lease_expires_at,
        }
    }
}

pub(crate) async fn run(global: &Global, command: Receive) -> Result<(), Failure> {
    let session = global.connect().await?;
    let mut options = session.config.common().messaging.receive_options_for(command.max)?.wait(command.wait);
    if let Some(visibility) = command.visibility {
        options.visibility = visibility;
    }
    if let Some(max) = command.max_deliveries {
        options.max_receive_count = max.get();
    }
    // Noted before the wait, which would otherwise look like an empty queue.
    if !command.wait.is_zero() {
        note_if_unreceivable(&session, &command.queue).await?;
    }
    let deadline = Deadline::after(command.wait.saturating_add(Deadline::DEFAULT));
    let messages = session.provider.receive_messages(&command.queue, &options, deadline).await?;
    if messages.is_empty() && command.wait.is_zero() {
        note_if_unreceivable(&session, &command.queue).await?;
    }

    let not_portable = match session.provider.capabilities().support(Feature::PortableReceipts) {
        Support::Refused { why } if !command.ack => Some(why.clone()),
        _ => None,
    };
    let mut printed = Vec::new();
    let mut messages = messages.into_iter();
    let mut result = Ok(());
    for message in messages.by_ref() {
        let (id, (shown, receipt)) = (message.id(), print(&session, message, command.ack || not_portable.is_some()));
        if let Err(failure) = shown {
            // The user did not get the receipts, so the messages are released.
            let unprinted = std::iter::once(receipt).chain(messages.by_ref().map(QueuedMessage::into_receipt));
            release(&session, unprinted.collect()).await;
            result = Err(failure);
            break;
        }
        printed.push((id, receipt));
    }
    if let Some(why) = not_portable.filter(|_| !printed.is_empty()) {
        note(format!("no other process can use the receipts, so the messages go back to the queue now: {why}"));
    }
    if command.ack && !printed.is_empty() {
        result = acknowledge(&session, printed).await.and(result);
    }
    let closed = session.close().await;
    result.and(closed)
}

/// Prints a message. Its text omits the receipt if it is `spent` when this process ends.
fn print(session: &Session, message: QueuedMessage, spent: bool) -> (Result<(), Failure>, ReceiptHandle) {
    let (body, envelope, receipt) = message.into_parts();
    let row = Row::of(&body, &envelope, &receipt);
    let shown =
        session.out.row(&row, MessageText { body: &body, envelope: &envelope, receipt: (!spent).then_some(&receipt) });
    (shown, receipt)
}

async fn release(session: &Session, receipts: Vec<ReceiptHandle>) {
    let releases = receipts.into_iter().map(|receipt| Settlement::nack(receipt, Nack::Release)).collect();
    // A message that could not be released returns when its lease ends.
    let _ = session.provider.settle(releases, Deadline::default()).await;
}

async fn acknowledge(session: &Session, printed: Vec<(MessageId, ReceiptHandle)>) -> Result<(), Failure> {
    let (ids, receipts): (Vec<_>, Vec<_>) = printed.into_iter().unzip();
    let acks = receipts.into_iter().map(Settlement::ack).collect();
    let rows = session.provider.settle(acks, Deadline::default()).await?;
    let mut result = Ok(());
    for (id, row) in ids.into_iter().zip(rows) {
        if let Err(error) = row {
            note(format!("message {id} was printed but not acknowledged: {}", explained(&error)));
            result = Err(Failure::Reported);
        }
    }
    result
}

struct MessageText<'a> {
    body: &'a Bytes,
    envelope: &'a Envelope,
    receipt: Option<&'a ReceiptHandle>,
}

impl std::fmt::Display for MessageText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Envelope { id, receive_count, enqueued_at, ordering_key, headers, .. } = self.envelope;
        let age = text::age(Timestamp::now().since(*enqueued_at));
        write!(f, "{id}  delivery {receive_count}, sent {age} ago")?;
        if let Some(key) = ordering_key {
            write!(f, ", key {}", one_line(key.as_str()))?;
        }
        let mut details = String::new();
        for (name, value) in headers.iter() {
            writeln!(details, "{name}: {}", one_line(value))?;
        }
        if let Some(receipt) = self.receipt {
            writeln!(details, "receipt: {receipt}")?;
        }
        details.push_str(&text::body(self.body));
        for line in details.lines() {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}
