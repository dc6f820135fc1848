//! Search of the archive.

use mysql_async::Row;
use postrider_core::archive::{ArchivePosition, ArchiveStep, ArchiveWalk};
use postrider_core::{ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, Deadline, QueueName};
use postrider_provider::Undone;

use crate::literal::{self, fill};
use crate::rows::{self, Label, LabelColumns, columns, positions};
use crate::sql::Sql;
use crate::store::Shared;

const SEARCH: &str = "search the archive";

columns! {
    /// The columns of `archived_get.sql`, but for the label's.
    ArchivedColumns {
        is_failed, payload, deliveries_count, attempts_count, created_at, first_attempt_at, last_attempt_at, at, last_error,
    }
}

impl Shared {
    /// Returns a page of a queue's archived messages.
    pub(crate) async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, Undone> {
        let sql = &self.database.sql;
        let mut walk = ArchiveWalk::new(query)?;
        loop {
            let rows = self.ask(SEARCH, deadline, step(sql, queue, &query.filter, walk.step())).await?;
            let [at, id, is_included] = positions(&rows, ["at", "id", "is_included"]);
            let matched = |row: &Row| {
                let position = ArchivePosition { archived_at: rows::time(row, at), row: rows::number(row, id) };
                (position, rows::flag(row, is_included))
            };
            if !walk.take(&rows.iter().map(matched).collect::<Vec<_>>()) {
                break;
            }
        }
        let (found, next) = walk.finish();
        if found.is_empty() {
            return Ok(ArchivePage { messages: Vec::new(), next });
        }
        let positions = found.iter().map(|found| format!("({}, {})", literal::time(found.archived_at), found.row));
        let read = fill(&sql.archived_get, &[("positions", &literal::list(positions))]);
        let rows = self.ask(SEARCH, deadline, read).await?;
        let (origin, label, columns) = (queue.origin(), LabelColumns::of(&rows), ArchivedColumns::of(&rows));
        Ok(ArchivePage { messages: rows.iter().map(|row| archived(row, &origin, label, columns)).collect(), next })
    }
}

/// Returns the statement that reads the rows of a step, each with whether it matches the filter.
pub(crate) fn step(sql: &Sql, queue: &QueueName, filter: &ArchiveFilter, step: ArchiveStep) -> String {
    let name = |queue: &QueueName| literal::bytes(queue.as_str().as_bytes());
    let (queue, dead) = (name(&queue.origin()), name(&queue.dead_letters()));
    let (since, before) = (literal::time(step.since), literal::time(step.before.archived_at));
    let (row, limit) = (step.before.row.to_string(), step.limit.to_string());
    let key = literal::optional(filter.ordering_key.as_ref(), |key| literal::bytes(key.as_str().as_bytes()));
    let state = literal::optional(filter.state, |state| literal::text(state.as_str()));
    let header = filter.header.as_ref();
    // The walk refuses names that would need an escape.
    let path = literal::optional(header, |(name, _)| literal::text(&format!("$.\"{name}\"")));
    let value = literal::optional(header, |(_, value)| literal::bytes(value.as_bytes()));
    let id = literal::optional(filter.id, literal::id);
    let statement = if filter.id.is_some() { &sql.archived_by_id } else { &sql.archived_walk };
    let values = [
        ("queue", queue.as_str()),
        ("dead", dead.as_str()),
        ("since", since.as_str()),
        ("before", before.as_str()),
        ("row", row.as_str()),
        ("limit", limit.as_str()),
        ("key", key.as_str()),
        ("state", state.as_str()),
        ("path", path.as_str()),
        ("value", value.as_str()),
        ("message_id", id.as_str()),
    ];
    fill(statement, &values)
}

fn archived(row: &Row, origin: &QueueName, label: LabelColumns, columns: ArchivedColumns) -> ArchivedMessage {
    let label = Label::read_leniently(row, label);
    ArchivedMessage {
        id: label.id,
        queue: origin.clone(),
        state: if rows::flag(row, columns.is_failed) { ArchivedState::Failed } else { ArchivedState::Completed },
        body: rows::body(row, columns.payload),
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        priority: label.priority,
        deliveries_count: rows::count(row, columns.deliveries_count),
        attempts_count: rows::count(row, columns.attempts_count),
        enqueued_at: rows::time(row, columns.created_at),
        first_attempt_at: rows::optional_time(row, columns.first_attempt_at),
        last_attempt_at: rows::optional_time(row, columns.last_attempt_at),
        archived_at: rows::time(row, columns.at),
        last_error: rows::optional_text(row, columns.last_error),
    }
}
