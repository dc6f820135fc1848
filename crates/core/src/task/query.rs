//! Which tasks are meant.

use serde::{Deserialize, Serialize};

use super::names::TaskType;
use super::record::TaskInfo;
use super::state::{DeadReason, TaskState};
use crate::clock::Timestamp;
use crate::error::MessagingError;

/// Which tasks are meant: those of which everything holds that is said. What is empty or `None` says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    /// In one of these states.
    pub states: Vec<TaskState>,
    /// Of one of these types.
    pub types: Vec<TaskType>,
    /// With all of these tags.
    pub tags: Vec<String>,
    /// Made by this schedule.
    pub schedule: Option<String>,
    /// That died for this reason.
    pub dead_reason: Option<DeadReason>,
    /// Whose last error has this text in it.
    pub error_contains: Option<String>,
    /// Made at this time or later.
    pub created_since: Option<Timestamp>,
    /// Made before this time.
    pub created_before: Option<Timestamp>,
}

impl TaskFilter {
    /// Whether a task is meant. Stores that cannot ask their tables all of it ask here.
    pub fn includes(&self, task: &TaskInfo) -> bool {
        (self.states.is_empty() || self.states.contains(&task.state))
            && (self.types.is_empty() || self.types.contains(&task.task_type))
            && self.tags.iter().all(|tag| task.tags.contains(tag))
            && self.schedule.as_ref().is_none_or(|schedule| task.schedule.as_ref() == Some(schedule))
            && self.dead_reason.is_none_or(|reason| task.dead_reason == Some(reason))
            && self
                .error_contains
                .as_ref()
                .is_none_or(|part| task.last_error.as_ref().is_some_and(|error| error.contains(part.as_str())))
            && self.created_since.is_none_or(|since| task.created_at >= since)
            && self.created_before.is_none_or(|before| task.created_at < before)
    }
}

/// One page of a listing, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// Which ones.
    pub filter: TaskFilter,
    /// At most that many.
    pub limit: usize,
    /// Those after the page that ended with this cursor.
    pub after: Option<TaskCursor>,
}

impl Default for TaskQuery {
    fn default() -> Self {
        Self { filter: TaskFilter::default(), limit: 100, after: None }
    }
}

impl TaskQuery {
    /// Refuses a page of nothing, and one that no memory should hold.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 || self.limit > 1000 {
            return Err(MessagingError::invalid("limit", "a page has 1 to 1000 tasks"));
        }
        Ok(())
    }
}

/// Where a page ended. Opaque; made by the store that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskCursor(pub String);

/// One page of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPage {
    /// The tasks, newest first.
    pub tasks: Vec<TaskInfo>,
    /// Where the next page begins; `None` at the end. A page may have fewer tasks than were asked for and still not be
    /// the last: a call looks at a bounded number of rows, whatever its filter leaves of them.
    pub next: Option<TaskCursor>,
}
