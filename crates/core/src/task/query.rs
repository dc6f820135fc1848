//! Queries of tasks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::{MAX_TASK_TYPE, TaskType};
use super::record::TaskInfo;
use super::state::{DeadReason, TaskState};
use crate::clock::Timestamp;
use crate::error::MessagingError;

/// A pattern of task types: one type, or with a `*` at the end all types with this prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypePattern {
    name: String,
    is_prefix: bool,
}

impl TypePattern {
    /// Exactly one type.
    pub fn exactly(task_type: &TaskType) -> Self {
        Self { name: task_type.as_str().to_owned(), is_prefix: false }
    }

    /// Whether the pattern matches a type.
    pub fn includes(&self, task_type: &TaskType) -> bool {
        match self.is_prefix {
            true => task_type.as_str().starts_with(&self.name),
            false => task_type.as_str() == self.name,
        }
    }

    /// The pattern of the types that both match; `None` if there is none.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let is_within = |narrow: &Self, wide: &Self| match wide.is_prefix {
            true => narrow.name.starts_with(&wide.name),
            false => narrow == wide,
        };
        [(self, other), (other, self)]
            .into_iter()
            .find(|(narrow, wide)| is_within(narrow, wide))
            .map(|(it, _)| it.clone())
    }

    /// The pattern for SQL's `like`, with `\` as the escape character.
    pub fn as_like(&self) -> String {
        let escaped = self.name.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        escaped + if self.is_prefix { "%" } else { "" }
    }
}

impl fmt::Display for TypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.is_prefix { "*" } else { "" })
    }
}

impl FromStr for TypePattern {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(name) = text.strip_suffix('*') else { return TaskType::new(text).map(|name| Self::exactly(&name)) };
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.len() > MAX_TASK_TYPE || !name.chars().all(is_part) {
            let shown: String = text.chars().take(MAX_TASK_TYPE).flat_map(char::escape_debug).collect();
            let why =
                format!("'{shown}' is not the prefix of a type; use letters, digits, '_', '.' and '-' before the '*'");
            return Err(MessagingError::invalid("task type", why));
        }
        Ok(Self { name: name.to_owned(), is_prefix: true })
    }
}

/// A filter of tasks: those that meet every condition that is not empty or `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    /// One of these states.
    pub states: Vec<TaskState>,
    /// One of these types.
    pub types: Vec<TaskType>,
    /// A type that one of these patterns matches. Unlike for `types`, an empty list matches no task.
    pub within: Option<Vec<TypePattern>>,
    /// All of these tags.
    pub tags: Vec<String>,
    /// Created by this schedule.
    pub schedule: Option<String>,
    /// Died for this reason.
    pub dead_reason: Option<DeadReason>,
    /// This part of the last error.
    pub error_contains: Option<String>,
    /// Created at this time or later.
    pub created_since: Option<Timestamp>,
    /// Created before this time.
    pub created_before: Option<Timestamp>,
}

impl TaskFilter {
    /// Whether a task meets the filter, for stores that cannot express all of it in a query.
    pub fn includes(&self, task: &TaskInfo) -> bool {
        (self.states.is_empty() || self.states.contains(&task.state))
            && (self.types.is_empty() || self.types.contains(&task.task_type))
            && self.within.as_ref().is_none_or(|all| all.iter().any(|one| one.includes(&task.task_type)))
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

/// A request for a page of tasks, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// The filter.
    pub filter: TaskFilter,
    /// Upper bound of the tasks in the page.
    pub limit: usize,
    /// The cursor of the previous page.
    pub after: Option<TaskCursor>,
}

impl Default for TaskQuery {
    fn default() -> Self {
        Self { filter: TaskFilter::default(), limit: 100, after: None }
    }
}

impl TaskQuery {
    /// Checks the limit: at least 1, and the page must fit into memory.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 || self.limit > 1000 {
            return Err(MessagingError::invalid("limit", "use 1 to 1000"));
        }
        Ok(())
    }
}

/// The end of a page of tasks. Opaque; only the store that made it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskCursor(pub String);

/// A page of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPage {
    /// The tasks, newest first.
    pub tasks: Vec<TaskInfo>,
    /// The cursor of the next page; `None` at the end. A page can be short and still have a next page, because a call
    /// reads a bounded number of rows.
    pub next: Option<TaskCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> TypePattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_matches_one_type_or_a_prefix() {
        let kind = |name| TaskType::new(name).unwrap();
        assert!(pattern("mail").includes(&kind("mail")) && !pattern("mail").includes(&kind("mail2")));
        assert!(pattern("mail*").includes(&kind("mail")) && pattern("mail.*").includes(&kind("mail.in")));
        assert!(!pattern("mail.*").includes(&kind("mail")) && pattern("*").includes(&kind("mail")));
        for odd in ["", "a b", "a*b", "a b*", "mail_dlq", "**"] {
            assert!(odd.parse::<TypePattern>().is_err(), "{odd:?}");
        }
        assert_eq!((pattern("a_b*").to_string(), pattern("a_b*").as_like()), ("a_b*".to_owned(), "a\\_b%".to_owned()));
        assert_eq!(pattern("a_b").as_like(), "a\\_b");
    }

    #[test]
    fn the_intersection_of_patterns_is_the_narrower_or_none() {
        for (one, other, both) in [
            ("mail", "mail", Some("mail")),
            ("mail*", "mail", Some("mail")),
            ("mail*", "ma*", Some("mail*")),
            ("*", "mail.in", Some("mail.in")),
            ("mail", "sms", None),
            ("mail*", "sms*", None),
            ("mail", "mail.*", None),
        ] {
            let both = both.map(pattern);
            assert_eq!(pattern(one).and(&pattern(other)), both, "{one} and {other}");
            assert_eq!(pattern(other).and(&pattern(one)), both, "{other} and {one}");
        }
    }
}
