//! `postrider dlq list` and `show`

use postrider::dead_letter::filter::DeadLetterFilter;
use postrider::dead_letter::fingerprint::ErrorSummary;
use postrider::{DeadLetter, DeadLetterQuery, DeadLetters, Deadline, Headers, MessageId, QueueName, Timestamp};
use serde::Serialize;

use super::record::{Record, RecordText};
use super::selection::{Filter, PAGE, note_none_found};
use crate::args::Global;
use crate::failure::Failure;
use crate::queues::must_exist;
use crate::table::{Column, Table};
use crate::text::{self, Body};
use crate::values;

/// List dead letters, the longest dead first
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// Maximum number of dead letters [default: all]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true)]
    max: Option<usize>,

    #[command(flatten)]
    filter: Filter,
}

/// Show a dead letter with its full record
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// The message id
    #[arg(value_parser = values::id)]
    id: MessageId,
}

/// One line of `list --json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    reason: &'a str,
    error: Option<&'a str>,
    receive_count: u32,
    dead_at: Timestamp,
    #[serde(flatten)]
    body: Body<'a>,
    headers: &'a Headers,
}

impl<'a> Row<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        Self {
            id: letter.id,
            queue: &letter.origin,
            reason: letter.reason.as_str(),
            error: letter.error.as_deref(),
            receive_count: letter.deliveries_count,
            dead_at: letter.dead_at,
            body: Body::of(&letter.body),
            headers: &letter.headers,
        }
    }
}

pub(super) async fn list(global: &Global, command: List) -> Result<(), Failure> {
    let session = global.connect().await?;
    let mut left = command.max.unwrap_or(usize::MAX);
    let filter = DeadLetterFilter::from(command.filter);
    let mut query = DeadLetterQuery { selection: filter.selection(), limit: PAGE, after: None };
    let mut is_first = true;
    while left > 0 {
        if filter.is_selection() {
            query.limit = left.min(PAGE);
        }
        let mut page = session.provider.list_dead_letters(&command.queue, &query, Deadline::default()).await?;
        page.letters.retain(|letter| filter.includes(letter));
        page.letters.truncate(left);
        left -= page.letters.len();
        if session.out.is_json() {
            session.out.rows(page.letters.iter().map(|letter| (Row::of(letter), "")))?;
        } else {
            session.out.text(&table(&page.letters).render_part(is_first))?;
        }
        is_first &= page.letters.is_empty();
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => break,
        }
    }
    if is_first {
        must_exist(&session, &command.queue).await?;
        note_none_found(&command.queue, &filter);
    }
    session.close().await
}

fn table(letters: &[DeadLetter]) -> Table<6> {
    let mut table = Table::new([
        Column::Text("ID"),
        Column::Number("DEAD FOR"),
        Column::Number("DELIVERIES"),
        Column::Text("REASON"),
        Column::Text("ERROR"),
        Column::Text("BODY"),
    ]);
    let now = Timestamp::now();
    for letter in letters {
        table.push([
            letter.id.to_string(),
            text::age(now.since(letter.dead_at)),
            letter.deliveries_count.to_string(),
            text::shortened(letter.reason.as_str(), 20),
            letter.error.as_deref().map_or_else(|| "-".into(), error_cell),
            text::body_cell(&letter.body, 30),
        ]);
    }
    table
}

/// The exit code and the most informative line: the beginning of an error is mostly just its exit code.
fn error_cell(error: &str) -> String {
    let ErrorSummary { ending, line } = ErrorSummary::of(error);
    let parts: Vec<_> = ending.into_iter().chain((!line.is_empty()).then_some(line)).collect();
    text::shortened(&parts.join(": "), 50)
}

pub(super) async fn show(global: &Global, command: Show) -> Result<(), Failure> {
    let session = global.connect().await?;
    let letter = session.provider.get_dead_letter(&command.queue, command.id, Deadline::default()).await?;
    session.out.row(&Record::of(&letter), RecordText(&letter))?;
    session.close().await
}
