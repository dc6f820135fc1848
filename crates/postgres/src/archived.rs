//! Search of the archive.

use postgres_types::ToSql;
use postrider_core::archive::{ArchivePosition, ArchiveStep, ArchiveWalk};
use postrider_core::{ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, Deadline, QueueName};
use postrider_provider::Undone;
use tokio_postgres::Row;

use crate::rows::{self, Label, LabelColumns, Time, positions};
use crate::store::Shared;

const SEARCH: &str = "search the archive";

postrider_pg::columns! {
    /// The columns of `archived_get.sql`, but for the label's.
    ArchivedColumns {
        is_failed, payload, deliveries_count, attempts_count, created_at, first_attempt_at, last_attempt_at, archived_at,
        last_error,
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
        let (origin, dead) = (queue.origin(), queue.dead_letters());
        let mut walk = ArchiveWalk::new(query)?;
        while walk.take(&self.archive_step([&origin, &dead], &query.filter, walk.step(), deadline).await?) {}
        let (found, next) = walk.finish();
        if found.is_empty() {
            return Ok(ArchivePage { messages: Vec::new(), next });
        }
        let (ends, ids): (Vec<Time>, Vec<i64>) =
            found.iter().map(|position| (Time(position.archived_at), position.row)).unzip();
        let (name, dead_name) = (origin.as_str(), dead.as_str());
        let parameters: Vec<&(dyn ToSql + Sync)> = vec![&name, &dead_name, &ends, &ids];
        let rows = self.ask(SEARCH, deadline, &self.database.sql.archived_get, parameters).await?;
        let (label, columns) = (LabelColumns::of(&rows), ArchivedColumns::of(&rows));
        Ok(ArchivePage { messages: rows.iter().map(|row| read(row, &origin, label, columns)).collect(), next })
    }

    /// Returns the rows of a step, each with whether it matches the filter.
    async fn archive_step(
        &self,
        queues: [&QueueName; 2],
        filter: &ArchiveFilter,
        step: ArchiveStep,
        deadline: Deadline,
    ) -> Result<Vec<(ArchivePosition, bool)>, Undone> {
        let [origin, dead] = queues.map(QueueName::as_str);
        let (since, before) = (Time(step.since), Time(step.before.archived_at));
        let limit = i64::try_from(step.limit).unwrap_or(i64::MAX);
        let (key, state) =
            (filter.ordering_key.as_ref().map(|key| key.as_str()), filter.state.map(ArchivedState::as_str));
        let (name, value) = filter.header.as_ref().map(|(name, value)| (name.as_str(), value.as_str())).unzip();
        let id = filter.id.map(|id| *id.as_uuid());
        let sql = &self.database.sql;
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
            vec![&origin, &dead, &since, &before, &step.before.row, &limit, &key, &state, &name, &value];
        let statement = match &id {
            Some(id) => {
                parameters.push(id);
                &sql.archived_by_id
            }
            None => &sql.archived_walk,
        };
        let rows = self.ask(SEARCH, deadline, statement, parameters).await?;
        let [archived_at, id, is_included] = positions(&rows, ["archived_at", "id", "is_included"]);
        let matched = |row: &Row| {
            (ArchivePosition { archived_at: rows::time(row, archived_at), row: row.get(id) }, row.get(is_included))
        };
        Ok(rows.iter().map(matched).collect())
    }
}

fn read(row: &Row, origin: &QueueName, label: LabelColumns, columns: ArchivedColumns) -> ArchivedMessage {
    let label = Label::read_leniently(row, label);
    ArchivedMessage {
        id: label.id,
        queue: origin.clone(),
        state: if row.get(columns.is_failed) { ArchivedState::Failed } else { ArchivedState::Completed },
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
        archived_at: rows::time(row, columns.archived_at),
        last_error: row.get(columns.last_error),
    }
}
