//! Read access to tasks.

use postgres_types::ToSql;
use postrider_core::task::{
    AttemptOutcome, MOST_ENDED_COUNTED, PayloadRevision, Task, TaskAttempt, TaskCount, TaskCursor, TaskFilter, TaskId,
    TaskInfo, TaskPage, TaskQuery, TaskState, TaskType, TypePattern,
};
use postrider_core::{Deadline, Measured, MessagingError};
use postrider_provider::Undone;
use tokio_postgres::Row;

use super::Tasks;
use super::rows::{self, InfoColumns};
use crate::rows::{Time, body, count, optional_time, time};

const LIST: &str = "list tasks";

/// Upper bound of rows that one page reads.
const MAX_SEEN: i64 = 10_000;

/// The columns of a filter.
struct Columns<'f> {
    states: Option<Vec<&'static str>>,
    types: Option<Vec<&'f str>>,
    within: Option<Vec<String>>,
    tags: Option<&'f [String]>,
    schedule: Option<&'f str>,
    dead_reason: Option<&'static str>,
    error_contains: Option<&'f str>,
    created_since: Option<Time>,
    created_before: Option<Time>,
}

impl<'f> Columns<'f> {
    fn of(filter: &'f TaskFilter) -> Self {
        let some = |is_empty: bool| (!is_empty).then_some(());
        Self {
            states: some(filter.states.is_empty()).map(|()| filter.states.iter().map(|state| state.as_str()).collect()),
            types: some(filter.types.is_empty()).map(|()| filter.types.iter().map(TaskType::as_str).collect()),
            within: filter.within.as_ref().map(|all| all.iter().map(TypePattern::as_like).collect()),
            tags: some(filter.tags.is_empty()).map(|()| &*filter.tags),
            schedule: filter.schedule.as_deref(),
            dead_reason: filter.dead_reason.map(|reason| reason.as_str()),
            error_contains: filter.error_contains.as_deref(),
            created_since: filter.created_since.map(Time),
            created_before: filter.created_before.map(Time),
        }
    }
}

/// Whether a filter contains a text that no column can hold, so that it matches nothing.
fn matches_nothing(filter: &TaskFilter) -> bool {
    let texts = filter.tags.iter().chain(&filter.schedule).chain(&filter.error_contains);
    texts.into_iter().any(|text| text.contains('\0'))
}

/// The rows of one walk of a page, newest first, and the row down to which it has read.
struct Walk {
    found: Vec<(i64, Option<TaskInfo>)>,
    /// Every row from here on was read.
    end: i64,
}

impl Tasks {
    pub(super) async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, Undone> {
        let found = self.ask("read a task", deadline, &self.sql().task_get, vec![id.as_uuid()]).await?;
        Ok(found.first().and_then(rows::task))
    }

    pub(super) async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, Undone> {
        let found = self.ask("read attempts", deadline, &self.sql().task_attempts, vec![id.as_uuid()]).await?;
        let mut attempts: Vec<TaskAttempt> = found.iter().map(attempt).collect();
        attempts.sort_by_key(|attempt| (attempt.replay, attempt.attempt));
        Ok(attempts)
    }

    pub(super) async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, Undone> {
        let found = self.ask("read revisions", deadline, &self.sql().task_revisions, vec![id.as_uuid()]).await?;
        let revision = |row: &Row| PayloadRevision {
            revision: count(row, "revision"),
            payload: body(row, "payload"),
            replaced_at: time(row, "replaced_at"),
        };
        Ok(found.iter().map(revision).collect())
    }

    pub(super) async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, Undone> {
        let before: i64 = match &query.after {
            None => i64::MAX,
            Some(cursor) => cursor.0.parse().map_err(|_| MessagingError::invalid_cursor(&cursor.0))?,
        };
        if matches_nothing(&query.filter) {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        }
        let columns = Columns::of(&query.filter);
        let mut ended = query.filter.states.clone();
        ended.sort_unstable();
        ended.dedup();
        let mut walks = Vec::new();
        if !ended.is_empty() && ended.iter().all(|state| matches!(state, TaskState::Dead | TaskState::Canceled)) {
            for state in ended {
                walks.push(self.walk(&columns, Some(state), before, query.limit, deadline).await?);
            }
        } else {
            walks.push(self.walk(&columns, None, before, query.limit, deadline).await?);
        }
        Ok(page(walks, query.limit))
    }

    pub(super) async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, Undone> {
        let most = i64::from(MOST_ENDED_COUNTED);
        let found = self.ask("count tasks", deadline, &self.sql().task_counts, vec![&most]).await?;
        let counted = |row: &Row| {
            let count = row.get::<_, i64>("count").max(0).unsigned_abs();
            let count = if row.get("has_more") { Measured::Approximate(count) } else { Measured::Exact(count) };
            // Skip types that are invalid: another program wrote them.
            let task_type = TaskType::new(row.get::<_, &str>("task_type")).ok()?;
            Some(TaskCount { task_type, state: rows::state(row, "state"), count })
        };
        Ok(found.iter().filter_map(counted).collect())
    }

    /// Walks all tasks, or those of one state, from the newest before a row.
    async fn walk(
        &self,
        columns: &Columns<'_>,
        ended: Option<TaskState>,
        before: i64,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Walk, Undone> {
        let (sql, last, limit) = (self.sql(), MAX_SEEN - 1, i64::try_from(limit).unwrap_or(i64::MAX));
        let state = ended.map(TaskState::as_str);
        let found = match &state {
            None => self.ask(LIST, deadline, &sql.task_list_end, vec![&before, &last]).await?,
            Some(state) => self.ask(LIST, deadline, &sql.task_list_ended_end, vec![&before, &last, state]).await?,
        };
        let end = found.first().map_or(i64::MIN, |row| row.get("id"));
        let (statement, states): (&str, &(dyn ToSql + Sync)) = match &state {
            None => (&sql.task_list, &columns.states),
            Some(state) => (&sql.task_list_ended, state),
        };
        let parameters: Vec<&(dyn ToSql + Sync)> = vec![
            &before,
            &end,
            states,
            &columns.types,
            &columns.tags,
            &columns.schedule,
            &columns.dead_reason,
            &columns.error_contains,
            &columns.created_since,
            &columns.created_before,
            &limit,
            &columns.within,
        ];
        let found = self.ask(LIST, deadline, statement, parameters).await?;
        let columns = InfoColumns::of(&found);
        let info = |row: &Row| (row.get(columns.id), rows::info(row, columns));
        let found: Vec<(i64, Option<TaskInfo>)> = found.iter().map(info).collect();
        // A full page ends with its last row.
        let end = if found.len() as i64 >= limit { found.last().map_or(end, |(row, _)| *row) } else { end };
        Ok(Walk { found, end })
    }
}

/// Merges walks, down to the row that all of them have reached.
fn page(walks: Vec<Walk>, limit: usize) -> TaskPage {
    let end = walks.iter().map(|walk| walk.end).max().unwrap_or(i64::MIN);
    let mut found: Vec<(i64, Option<TaskInfo>)> = walks.into_iter().flat_map(|walk| walk.found).collect();
    found.sort_by_key(|(row, _)| std::cmp::Reverse(*row));
    found.retain(|(row, _)| *row >= end);
    let is_full = found.len() >= limit;
    found.truncate(limit);
    let next = match found.last() {
        Some((row, _)) if is_full => Some(*row),
        _ => (end > i64::MIN).then_some(end),
    };
    TaskPage {
        tasks: found.into_iter().filter_map(|(_, task)| task).collect(),
        next: next.map(|row| TaskCursor(row.to_string())),
    }
}

fn attempt(row: &Row) -> TaskAttempt {
    TaskAttempt {
        attempt: count(row, "attempt"),
        replay: count(row, "replay"),
        worker: row.get::<_, Option<String>>("worker_id").unwrap_or_default(),
        started_at: time(row, "started_at"),
        ended_at: optional_time(row, "ended_at"),
        // Another program may have written another word.
        outcome: AttemptOutcome::from_name(row.get("outcome")).unwrap_or(AttemptOutcome::Failed),
        error: row.get("error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(found: &[i64], end: i64) -> Walk {
        Walk { found: found.iter().map(|row| (*row, None)).collect(), end }
    }

    fn next(walks: Vec<Walk>, limit: usize) -> Option<String> {
        page(walks, limit).next.map(|cursor| cursor.0)
    }

    #[test]
    fn a_page_ends_where_its_shortest_walk_ends() {
        const ALL: i64 = i64::MIN;
        assert_eq!(next(vec![walk(&[9, 7], ALL)], 5), None);
        assert_eq!(next(vec![walk(&[9, 7], 3)], 5), Some("3".into()), "more rows may follow");
        assert_eq!(next(vec![walk(&[9, 7], 7)], 2), Some("7".into()));
        // The second walk has not read below 8: it may have tasks there that come before 5.
        assert_eq!(next(vec![walk(&[9, 5], ALL), walk(&[8], 8)], 5), Some("8".into()));
        assert_eq!(next(vec![walk(&[9, 5], ALL), walk(&[8, 6], ALL)], 2), Some("8".into()), "cut at the limit");
        assert_eq!(next(vec![walk(&[], ALL), walk(&[], ALL)], 2), None);
    }
}
