//! `postrider dlq groups`

use postrider::dead_letter::groups::{DeadLetterGroup, DeadLetterGroups, LargestGroups};
use postrider::{DeadLetterQuery, DeadLetters, Deadline, MessageId, QueueName, Timestamp};
use serde::Serialize;

use super::selection::PAGE;
use crate::args::Global;
use crate::failure::Failure;
use crate::queues::must_exist;
use crate::table::{Column, Table};
use crate::text::{self, counted};
use crate::values;

/// Number of groups with their own row.
const MAX_GROUPS: usize = 20;

/// Count dead letters by reason and kind of error, the largest group first
///
/// Errors that differ only in numbers, ids, quoted values, paths and times are of one kind. The 20 largest groups are
/// listed and the rest is summed up. --fingerprint of 'list', 'redrive' and 'purge' takes a KIND.
#[derive(Debug, clap::Args)]
pub(super) struct Groups {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,
}

/// One line of `--json`. The last line sums up the groups beyond the largest, if any.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Group {
        queue: &'a QueueName,
        reason: &'a str,
        fingerprint: &'a str,
        error: Option<&'a str>,
        count: u64,
        first_dead_at: Timestamp,
        last_dead_at: Timestamp,
        example_id: MessageId,
    },
    Rest {
        queue: &'a QueueName,
        more_kinds: u64,
        more_count: u64,
    },
}

pub(super) async fn run(global: &Global, command: Groups) -> Result<(), Failure> {
    let session = global.connect().await?;
    let mut counted = DeadLetterGroups::default();
    let mut query = DeadLetterQuery { limit: PAGE, ..DeadLetterQuery::default() };
    loop {
        let provider = &session.provider;
        let page = provider.list_dead_letter_summaries(&command.queue, &query, Deadline::default()).await?;
        page.summaries.into_iter().for_each(|summary| counted.add(summary));
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => break,
        }
    }
    let found = counted.largest(MAX_GROUPS);
    if found.groups.is_empty() {
        must_exist(&session, &command.queue).await?;
    }
    if session.out.is_json() {
        session.out.rows(rows(&command.queue.origin(), &found).into_iter().map(|row| (row, "")))?;
    } else {
        session.out.text(&table(&found))?;
    }
    session.close().await
}

fn rows<'a>(queue: &'a QueueName, found: &'a LargestGroups) -> Vec<Row<'a>> {
    let row = |group: &'a DeadLetterGroup| Row::Group {
        queue,
        reason: group.reason.as_str(),
        fingerprint: &group.fingerprint,
        error: group.error.as_deref(),
        count: group.count,
        first_dead_at: group.first_dead_at,
        last_dead_at: group.last_dead_at,
        example_id: group.example_id,
    };
    let (more_kinds, more_count) = (found.more_kinds, found.more_count);
    let rest = (more_kinds > 0).then_some(Row::Rest { queue, more_kinds, more_count });
    found.groups.iter().map(row).chain(rest).collect()
}

fn table(found: &LargestGroups) -> String {
    let mut table = Table::new([
        Column::Number("COUNT"),
        Column::Number("FIRST"),
        Column::Number("LAST"),
        Column::Text("REASON"),
        Column::Text("NEWEST"),
        Column::Text("KIND"),
    ]);
    let now = Timestamp::now();
    for group in &found.groups {
        table.push([
            group.count.to_string(),
            text::age(now.since(group.first_dead_at)),
            text::age(now.since(group.last_dead_at)),
            text::shortened(group.reason.as_str(), 20),
            group.example_id.to_string(),
            // In full, because --fingerprint takes it.
            group.fingerprint.clone(),
        ]);
    }
    let rest = match found.more_kinds {
        0 => String::new(),
        kinds => format!("{} more of {}\n", found.more_count, counted(kinds, "other kind", "other kinds")),
    };
    table.render() + &rest
}
