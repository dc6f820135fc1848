//! How the archive is searched.

use mysql_async::Row;
use postrider_core::archive::{ArchivePosition, ArchiveStep, ArchiveWalk};
use postrider_core::{ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, Deadline, QueueName};
use postrider_provider::Undone;

use crate::literal::{self, fill};
use crate::rows::{self, Label};
use crate::sql::Sql;
use crate::store::Shared;

const SEARCH: &str = "search the archive";

impl Shared {
    /// A page of the messages of a queue that are kept after their end.
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
            let judged = |row: &Row| {
                let position = ArchivePosition { archived_at: rows::time(row, 0), row: rows::number(row, 1) };
                (position, rows::flag(row, 2))
            };
            if !walk.take(&rows.iter().map(judged).collect::<Vec<_>>()) {
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
        let origin = queue.origin();
        Ok(ArchivePage { messages: rows.iter().map(|row| archived(row, &origin)).collect(), next })
    }
}

/// The statement that reads the rows of a step, each with whether the filter includes it.
pub(crate) fn step(sql: &Sql, queue: &QueueName, filter: &ArchiveFilter, step: ArchiveStep) -> String {
    let name = |queue: &QueueName| literal::bytes(queue.as_str().as_bytes());
    let (queue, dead) = (name(&queue.origin()), name(&queue.dead_letters()));
    let (since, before) = (literal::time(step.since), literal::time(step.before.archived_at));
    let (row, limit) = (step.before.row.to_string(), step.limit.to_string());
    let key = literal::optional(filter.ordering_key.as_ref(), |key| literal::bytes(key.as_str().as_bytes()));
    let state = literal::optional(filter.state, |state| literal::text(state.as_str()));
    let header = filter.header.as_ref();
    // The walk has refused names that would need an escape.
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

fn archived(row: &Row, origin: &QueueName) -> ArchivedMessage {
    let label = Label::read_leniently(row, [0, 1, 2, 3, 4]);
    ArchivedMessage {
        id: label.id,
        queue: origin.clone(),
        state: if rows::flag(row, 5) { ArchivedState::Failed } else { ArchivedState::Completed },
        body: rows::body(row, 6),
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        priority: label.priority,
        deliveries_count: rows::count(row, 7),
        attempts_count: rows::count(row, 8),
        enqueued_at: rows::time(row, 9),
        first_attempt_at: rows::optional_time(row, 10),
        last_attempt_at: rows::optional_time(row, 11),
        archived_at: rows::time(row, 12),
        last_error: rows::optional_text(row, 13),
    }
}
