//! The selection of tasks on the command line.

use postrider::task::{DeadReason, ScheduleStore, TaskFilter, TaskInfo, TaskQuery};
use postrider::{Deadline, TaskType};

use super::session::TaskSession;
use crate::failure::Failure;
use crate::values::{self, Since};

/// Upper bound of a page of tasks.
const PAGE: usize = 1000;

/// Conditions on tasks; all given ones must match.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Filters {
    /// Only tasks of this type; repeatable, to match any of the types
    #[arg(long = "type", value_name = "TYPE", value_parser = values::task_type)]
    types: Vec<TaskType>,

    /// Only tasks with this tag; repeatable, to match all of the tags
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// Only tasks that this schedule created
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,

    /// Only tasks that died for this reason
    #[arg(long, value_parser = values::dead_reason)]
    reason: Option<DeadReason>,

    /// Only tasks whose last error contains this text; upper and lower case differ, unlike in the dashboard
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only tasks created at or after WHEN: an age like 2h or 3d, or a time like 2026-03-01T09:30:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    since: Option<Since>,
}

impl Filters {
    /// Whether no condition is given.
    pub(super) fn are_empty(&self) -> bool {
        let Self { types, tags, schedule, reason, error, since } = self;
        let nothing = schedule.is_none() && reason.is_none() && error.is_none() && since.is_none();
        types.is_empty() && tags.is_empty() && nothing
    }

    /// The filter for the store. An age counts from the store's clock.
    pub(super) async fn filter(self, session: &TaskSession) -> Result<TaskFilter, Failure> {
        let created_since = match self.since {
            Some(Since::At(time)) => Some(time),
            Some(Since::Ago(time)) => Some(session.store.store_time(Deadline::default()).await?.saturating_sub(time)),
            None => None,
        };
        Ok(TaskFilter {
            types: self.types,
            tags: self.tags,
            schedule: self.schedule,
            dead_reason: self.reason,
            error_contains: self.error,
            created_since,
            ..TaskFilter::default()
        })
    }
}

/// Tasks, newest first, page by page.
pub(super) struct Pages<'a> {
    session: &'a TaskSession,
    /// `None` after the last page.
    query: Option<TaskQuery>,
}

impl<'a> Pages<'a> {
    pub(super) fn of(session: &'a TaskSession, filter: TaskFilter) -> Self {
        Self { session, query: Some(TaskQuery { filter, ..TaskQuery::default() }) }
    }

    /// Returns at most `max` more tasks; `None` at the end. A page may be empty and not the last.
    pub(super) async fn next(&mut self, max: usize) -> Result<Option<Vec<TaskInfo>>, Failure> {
        let Some(mut query) = self.query.take() else { return Ok(None) };
        query.limit = max.clamp(1, PAGE);
        let page = self.session.client().list(&query, Deadline::default()).await?;
        self.query = page.next.map(|next| TaskQuery { after: Some(next), ..query });
        Ok(Some(page.tasks))
    }
}
