//! Search of the archives of a queue and of its dead letters.

use std::cmp::Reverse;

use postgres_types::ToSql;
use postrider_core::archive::{ArchivePosition, ArchiveStep, ArchiveWalk};
use postrider_core::{
    ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, Deadline, Priority, QueueName,
};
use postrider_pg::columns::{Time, positions, time};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::Undone;

use crate::codec::derived_id;
use crate::names;
use crate::rows::{Stored, StoredColumns};
use crate::store::Shared;

const SEARCH: &str = "search the archive";

/// Returns the number of a row among those of both archives, which have equal numbers.
fn number(queue: &QueueName, msg_id: i64) -> i64 {
    msg_id.saturating_mul(2).saturating_add(i64::from(queue.holds_dead_letters()))
}

impl Shared {
    /// Returns a page of a queue's archived messages.
    pub(crate) async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, Undone> {
        names::check(queue)?;
        let queues = [queue.origin(), queue.dead_letters()];
        let mut walk = ArchiveWalk::new(query)?;
        loop {
            let mut rows = Vec::new();
            for queue in &queues {
                rows.extend(self.archive_step(queue, &query.filter, walk.step(), deadline).await?);
            }
            rows.sort_unstable_by_key(|(position, _)| Reverse(*position));
            rows.truncate(walk.step().limit);
            if !walk.take(&rows) {
                break;
            }
        }
        let (found, next) = walk.finish();
        let mut messages = Vec::with_capacity(found.len());
        for queue in &queues {
            let of_queue = found.iter().filter(|found| number(queue, found.row / 2) == found.row);
            let rows: Vec<i64> = of_queue.map(|found| found.row / 2).collect();
            if !rows.is_empty() {
                messages.extend(self.read_archive(queue, rows, deadline).await?);
            }
        }
        messages.sort_unstable_by_key(|(position, _)| Reverse(*position));
        Ok(ArchivePage { messages: messages.into_iter().map(|(_, message)| message).collect(), next })
    }

    /// Returns the rows of a step in one archive, each with whether it matches the filter.
    async fn archive_step(
        &self,
        queue: &QueueName,
        filter: &ArchiveFilter,
        step: ArchiveStep,
        deadline: Deadline,
    ) -> Result<Vec<(ArchivePosition, bool)>, Undone> {
        let sql = self.database.sql.of(queue);
        let (since, before) = (Time(step.since), Time(step.before.archived_at));
        // The first number in this archive at or after the position.
        let row =
            step.before.row.div_euclid(2) + i64::from(number(queue, step.before.row.div_euclid(2)) < step.before.row);
        let limit = i64::try_from(step.limit).unwrap_or(i64::MAX);
        let (key, state) =
            (filter.ordering_key.as_ref().map(|key| key.as_str()), filter.state.map(ArchivedState::as_str));
        let (name, value) = filter.header.as_ref().map(|(name, value)| (name.as_str(), value.as_str())).unzip();
        let look = || async {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&since, &before, &row, &limit, &key, &state, &name, &value];
            self.ask(SEARCH, deadline, &sql.archived_walk, parameters).await
        };
        let rows = self.if_exists(queue, deadline, look).await?.unwrap_or_default();
        let [archived_at, msg_id, message_id, is_included] =
            positions(&rows, ["archived_at", "msg_id", "message_id", "is_included"]);
        let matched = |row: &Row| {
            let msg_id: i64 = row.get(msg_id);
            let stored_id = row.get::<_, Option<&str>>(message_id).and_then(|id| id.parse().ok());
            let has_id = filter.id.is_none_or(|id| stored_id.unwrap_or_else(|| derived_id(queue, msg_id)) == id);
            let position = ArchivePosition { archived_at: time(row, archived_at), row: number(queue, msg_id) };
            (position, has_id && row.get(is_included))
        };
        Ok(rows.iter().map(matched).collect())
    }

    async fn read_archive(
        &self,
        queue: &QueueName,
        rows: Vec<i64>,
        deadline: Deadline,
    ) -> Result<Vec<(ArchivePosition, ArchivedMessage)>, Undone> {
        let sql = self.database.sql.of(queue);
        let read = || async { self.ask(SEARCH, deadline, &sql.archived_get, vec![&rows]).await };
        let rows = self.if_exists(queue, deadline, read).await?.unwrap_or_default();
        let (stored, end) = (StoredColumns::of(&rows), EndColumns::of(&rows));
        Ok(rows.iter().map(|row| archived(queue, row, stored, end)).collect())
    }
}

postrider_pg::columns! {
    /// The columns of an archived message's end.
    EndColumns { archived_at, is_failed }
}

fn archived(
    queue: &QueueName,
    row: &Row,
    stored: StoredColumns,
    end: EndColumns,
) -> (ArchivePosition, ArchivedMessage) {
    let stored = Stored::read(queue, row, stored);
    let (archived_at, deliveries_count) = (time(row, end.archived_at), stored.deliveries());
    let position = ArchivePosition { archived_at, row: number(queue, stored.msg_id) };
    let Stored { enqueued_at, last_read_at, decoded, .. } = stored;
    let mut message = ArchivedMessage {
        id: decoded.id,
        queue: queue.origin(),
        state: if row.get(end.is_failed) { ArchivedState::Failed } else { ArchivedState::Completed },
        body: decoded.body,
        content_type: decoded.content_type,
        headers: decoded.headers,
        ordering_key: decoded.ordering_key,
        priority: Priority::default(),
        deliveries_count,
        attempts_count: decoded.attempts,
        enqueued_at,
        first_attempt_at: decoded.first_read_at.or(last_read_at),
        last_attempt_at: last_read_at,
        archived_at,
        last_error: decoded.error,
    };
    // A dead letter is archived with the counts and times of its death.
    if message.state == ArchivedState::Failed
        && let Some(death) = decoded.death
    {
        message.deliveries_count = death.deliveries;
        message.attempts_count = death.attempts;
        message.enqueued_at = death.enqueued_at.unwrap_or(enqueued_at);
        message.first_attempt_at = death.first_read_at;
        message.last_attempt_at = death.last_read_at;
        message.last_error = death.error;
    }
    (position, message)
}
