//! `postrider peek`

use postrider::{Deadline, Headers, MessageId, PeekedMessage, QueueAdmin, QueueName, State, Timestamp};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::queues::must_exist;
use crate::table::{Column, Table};
use crate::text::{self, Body};
use crate::values;

const BODY_WIDTH: usize = 40;

/// Show messages in send order without leasing them
///
/// On a broker (amqp:, sqs:) this receives the messages and returns them: for that moment no other receiver gets them, it
/// counts as a delivery, and messages with ordering keys are listed last.
#[derive(Debug, clap::Args)]
pub(crate) struct Peek {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// Maximum number of messages
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::count, allow_negative_numbers = true)]
    max: usize,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    state: State,
    #[serde(flatten)]
    body: Body<'a>,
    content_type: &'a str,
    headers: &'a Headers,
    ordering_key: Option<&'a str>,
    priority: u8,
    receive_count: u32,
    attempts_count: u32,
    enqueued_at: Timestamp,
    next_attempt_at: Timestamp,
    last_error: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(queue: &'a QueueName, message: &'a PeekedMessage) -> Self {
        Self {
            id: message.id,
            queue,
            state: message.state.into(),
            body: Body::of(&message.body),
            content_type: message.content_type.as_str(),
            headers: &message.headers,
            ordering_key: message.ordering_key.as_ref().map(|key| key.as_str()),
            priority: message.priority.get(),
            receive_count: message.deliveries_count,
            attempts_count: message.attempts_count,
            enqueued_at: message.enqueued_at,
            next_attempt_at: message.next_attempt_at,
            last_error: message.last_error.as_deref(),
        }
    }
}

pub(crate) async fn run(global: &Global, command: Peek) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queue = &command.queue;
    let messages = session.provider.peek(queue, command.max, Deadline::default()).await?;
    if messages.is_empty() {
        must_exist(&session, queue).await?;
    }
    if session.out.is_json() {
        session.out.rows(messages.iter().map(|message| (Row::of(queue, message), "")))?;
    } else {
        session.out.text(&table(&messages))?;
    }
    session.close().await
}

/// The time until the message can be received: until it is due or, if leased, until its lease ends.
fn due(message: &PeekedMessage, now: Timestamp) -> String {
    let wait = message.next_attempt_at.since(now);
    if wait.is_zero() { "now".to_owned() } else { format!("in {}", text::until(wait)) }
}

fn table(messages: &[PeekedMessage]) -> String {
    let mut table = Table::new([
        Column::Text("ID"),
        Column::Text("STATE"),
        Column::Number("AGE"),
        Column::Text("DUE"),
        Column::Number("DELIVERIES"),
        Column::Text("KEY"),
        Column::Text("BODY"),
    ]);
    let now = Timestamp::now();
    for message in messages {
        table.push([
            message.id.to_string(),
            State::from(message.state).to_string(),
            text::age(now.since(message.enqueued_at)),
            due(message, now),
            message.deliveries_count.to_string(),
            message.ordering_key.as_ref().map_or_else(|| "-".into(), |key| text::shortened(key.as_str(), 20)),
            text::body_cell(&message.body, BODY_WIDTH),
        ]);
    }
    table.render()
}
