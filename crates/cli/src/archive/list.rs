//! `postrider archive list` and `show`

use std::fmt;

use postrider::{
    ArchiveFilter, ArchiveQuery, ArchivedMessage, ArchivedState, Deadline, Headers, Key, MessageId, QueueAdmin,
    QueueName, Timestamp, archive,
};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::queues::must_exist;
use crate::table::{Column, Table};
use crate::text::{self, Body, one_line};
use crate::values::{self, Since};

/// Messages of one page, bodies included.
const PAGE: usize = 100;

/// List archived messages, the latest archived first
///
/// A search by header, key or state scans the queue's archive; --since bounds the scan.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// Only messages with this ordering key
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// Only messages with this header
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Option<(String, String)>,

    /// Only messages archived at or after WHEN: an age like 2h or 3d, or a time like 2026-03-01T09:30:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    since: Option<Since>,

    /// Only messages archived before WHEN: an age, or a time
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    until: Option<Since>,

    /// Only messages in this state: completed (acknowledged) or failed (purged dead letters)
    #[arg(long, value_parser = values::archived_state)]
    state: Option<ArchivedState>,

    /// Maximum number of messages
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::count, allow_negative_numbers = true)]
    max: usize,
}

/// Show an archived message with its full record
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// The message id
    #[arg(value_parser = values::id)]
    id: MessageId,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    state: ArchivedState,
    receive_count: u32,
    attempts_count: u32,
    enqueued_at: Timestamp,
    first_attempt_at: Option<Timestamp>,
    last_attempt_at: Option<Timestamp>,
    archived_at: Timestamp,
    last_error: Option<&'a str>,
    #[serde(flatten)]
    body: Body<'a>,
    content_type: &'a str,
    headers: &'a Headers,
    ordering_key: Option<&'a str>,
    priority: u8,
}

impl<'a> Row<'a> {
    fn of(message: &'a ArchivedMessage) -> Self {
        Self {
            id: message.id,
            queue: &message.queue,
            state: message.state,
            receive_count: message.deliveries_count,
            attempts_count: message.attempts_count,
            enqueued_at: message.enqueued_at,
            first_attempt_at: message.first_attempt_at,
            last_attempt_at: message.last_attempt_at,
            archived_at: message.archived_at,
            last_error: message.last_error.as_deref(),
            body: Body::of(&message.body),
            content_type: message.content_type.as_str(),
            headers: &message.headers,
            ordering_key: message.ordering_key.as_ref().map(|key| key.as_str()),
            priority: message.priority.get(),
        }
    }
}

pub(super) async fn list(global: &Global, command: List) -> Result<(), Failure> {
    let session = global.connect().await?;
    let List { queue, key, header, since, until, state, max } = command;
    let (since, until) = (since.map(Since::time), until.map(Since::time));
    let filter = ArchiveFilter { id: None, ordering_key: key, header, since, until, state };
    let (mut query, mut left, mut is_first) = (ArchiveQuery { filter, limit: PAGE, after: None }, max, true);
    loop {
        query.limit = left.min(PAGE);
        let page = session.provider.archived(&queue, &query, Deadline::default()).await?;
        left -= page.messages.len().min(left);
        if session.out.is_json() {
            session.out.rows(page.messages.iter().map(|message| (Row::of(message), "")))?;
        } else {
            session.out.text(&table(&page.messages).render_part(is_first))?;
        }
        is_first &= page.messages.is_empty();
        query.after = page.next;
        if left == 0 || query.after.is_none() {
            break;
        }
    }
    if is_first {
        must_exist(&session, &queue).await?;
    }
    session.close().await
}

fn table(messages: &[ArchivedMessage]) -> Table<6> {
    let mut table = Table::new([
        Column::Text("ID"),
        Column::Text("STATE"),
        Column::Number("ENDED"),
        Column::Number("DELIVERIES"),
        Column::Text("KEY"),
        Column::Text("BODY"),
    ]);
    let now = Timestamp::now();
    for message in messages {
        table.push([
            message.id.to_string(),
            message.state.to_string(),
            text::age(now.since(message.archived_at)),
            message.deliveries_count.to_string(),
            message.ordering_key.as_ref().map_or_else(|| "-".into(), |key| text::shortened(key.as_str(), 20)),
            text::body_cell(&message.body, 40),
        ]);
    }
    table
}

pub(super) async fn show(global: &Global, command: Show) -> Result<(), Failure> {
    let session = global.connect().await?;
    let message = archive::find(&session.provider, &command.queue, command.id, Deadline::default()).await?;
    session.out.row(&Row::of(&message), RecordText(&message))?;
    session.close().await
}

/// The record as text: one line per field, then headers and body.
struct RecordText<'a>(&'a ArchivedMessage);

impl fmt::Display for RecordText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.0;
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let text = |text: Option<&str>| text.map(str::to_owned);
        // The archive does not keep the cause of death: the last delivery of a purged dead letter is not an attempt.
        let attempts = match message.state {
            ArchivedState::Completed => "failed attempts",
            ArchivedState::Failed => "tried again",
        };
        let fields = [
            ("id", Some(message.id.to_string())),
            ("queue", Some(message.queue.to_string())),
            ("state", Some(message.state.to_string())),
            ("last error", text(message.last_error.as_deref())),
            ("deliveries", Some(message.deliveries_count.to_string())),
            (attempts, Some(message.attempts_count.to_string())),
            ("enqueued", time(Some(message.enqueued_at))),
            ("first attempt", time(message.first_attempt_at)),
            ("last attempt", time(message.last_attempt_at)),
            ("ended", time(Some(message.archived_at))),
            ("ordering key", text(message.ordering_key.as_ref().map(|key| key.as_str()))),
            ("priority", Some(message.priority.get().to_string())),
            ("content type", text(Some(message.content_type.as_str()))),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                f.write_str(&text::field(name, &value))?;
            }
        }
        for (name, value) in message.headers.iter() {
            writeln!(f, "{:<16} {name}={}", "header", one_line(value))?;
        }
        write!(f, "\n{}", text::body(&message.body))
    }
}
