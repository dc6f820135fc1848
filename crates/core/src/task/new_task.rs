//! A task, as its creator creates it.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use super::state::TaskState;
use crate::clock::Timestamp;
use crate::duration_text;
use crate::error::MessagingError;
use crate::idempotency::IdempotencyKey;
use crate::message::{Key, MAX_DURATION, Priority, check_duration};
use crate::retry::RetryStrategy;

const MAX_TAGS: usize = 32;
const MAX_TAG_BYTES: usize = 128;

/// A time by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// This long after the store accepted the task.
    In(#[serde(with = "duration_text::Text")] Duration),
    /// At this time.
    At(Timestamp),
}

impl When {
    /// Now.
    pub const NOW: Self = Self::In(Duration::ZERO);

    /// The time, for a task that the store accepts at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(delay) => now.saturating_add(delay),
            Self::At(time) => time,
        }
    }

    fn check(self, what: &'static str) -> Result<(), MessagingError> {
        match self {
            Self::In(delay) => check_duration(what, delay, MAX_DURATION),
            Self::At(time) if time > Timestamp::now().saturating_add(MAX_DURATION) => Err(MessagingError::invalid(
                what,
                format!("{time} is more than a hundred years from now; use an earlier time"),
            )),
            Self::At(_) => Ok(()),
        }
    }
}

/// A task to be created.
///
/// ```
/// use std::time::Duration;
/// use postrider_core::task::NewTask;
///
/// # fn main() -> Result<(), postrider_core::MessagingError> {
/// let task = NewTask::new("invoice.send", r#"{"order": 7}"#)?
///     .idempotency_key("order-7")?
///     .scheduled_in(Duration::from_secs(60))
///     .max_attempts(5);
/// assert_eq!(task.task_type.as_str(), "invoice.send");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// The task's id.
    pub id: TaskId,
    /// The task type.
    pub task_type: TaskType,
    /// The payload.
    pub payload: Bytes,
    /// When it is due.
    pub scheduled_for: When,
    /// Upper bound of the attempts; `None` is the limit of the retry strategy, else
    /// [`RetryStrategy::DEFAULT_MAX_ATTEMPTS`].
    pub max_attempts: Option<NonZeroU32>,
    /// The priority among tasks of its type.
    pub priority: Priority,
    /// Tasks of a type with the same key run one at a time, in the order of their creation.
    pub ordering_key: Option<Key>,
    /// A second task of the type with this key is not created: the first one is returned, in any state.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The retry strategy; `None` is the default.
    pub retry_strategy: Option<RetryStrategy>,
    /// When the task dies, even during an attempt.
    pub deadline: Option<When>,
    /// The tags.
    pub tags: Vec<String>,
    /// The schedule that creates it.
    pub schedule: Option<String>,
}

impl NewTask {
    /// A task that is due at once.
    pub fn new(task_type: impl AsRef<str>, payload: impl Into<Bytes>) -> Result<Self, MessagingError> {
        Ok(Self::of(TaskType::new(task_type)?, payload))
    }

    /// A task of a checked type.
    pub fn of(task_type: TaskType, payload: impl Into<Bytes>) -> Self {
        Self {
            id: TaskId::generate(),
            task_type,
            payload: payload.into(),
            scheduled_for: When::NOW,
            max_attempts: None,
            priority: Priority::default(),
            ordering_key: None,
            idempotency_key: None,
            retry_strategy: None,
            deadline: None,
            tags: Vec::new(),
            schedule: None,
        }
    }

    /// Sets an id of the caller.
    #[must_use]
    pub fn id(mut self, id: TaskId) -> Self {
        self.id = id;
        self
    }

    /// Due this long after its creation.
    #[must_use]
    pub fn scheduled_in(mut self, delay: Duration) -> Self {
        self.scheduled_for = When::In(delay);
        self
    }

    /// Due at this time.
    #[must_use]
    pub fn scheduled_at(mut self, time: Timestamp) -> Self {
        self.scheduled_for = When::At(time);
        self
    }

    /// Sets the number of attempts. The first attempt always happens, so 0 counts as 1.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(NonZeroU32::new(max_attempts).unwrap_or(NonZeroU32::MIN));
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the ordering key: the task runs after every earlier task of its type with the key, and before every later
    /// one.
    pub fn ordering_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.ordering_key = Some(Key::new("ordering key", key.as_ref())?);
        Ok(self)
    }

    /// Sets the idempotency key: repeated creations return the first task.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.idempotency_key = Some(IdempotencyKey::new(key)?);
        Ok(self)
    }

    /// Sets the retry strategy.
    #[must_use]
    pub fn retry_strategy(mut self, strategy: RetryStrategy) -> Self {
        self.retry_strategy = Some(strategy);
        self
    }

    /// The task dies if it has not ended this long after its creation.
    #[must_use]
    pub fn deadline_in(mut self, time: Duration) -> Self {
        self.deadline = Some(When::In(time));
        self
    }

    /// The task dies if it has not ended by then.
    #[must_use]
    pub fn deadline_at(mut self, time: Timestamp) -> Self {
        self.deadline = Some(When::At(time));
        self
    }

    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// The number of attempts: its own, its strategy's, or [`RetryStrategy::DEFAULT_MAX_ATTEMPTS`].
    pub fn attempts(&self) -> NonZeroU32 {
        let by_strategy = || self.retry_strategy.as_ref().and_then(RetryStrategy::max_attempts);
        self.max_attempts.or_else(by_strategy).unwrap_or(RetryStrategy::DEFAULT_MAX_ATTEMPTS)
    }

    /// Checks the task. A store calls it before anything else.
    pub fn check(&self, max_payload_bytes: usize) -> Result<(), MessagingError> {
        if self.payload.len() > max_payload_bytes {
            return Err(MessagingError::invalid(
                "payload",
                format!(
                    "task {} has {} bytes, at most {max_payload_bytes} are allowed; store a reference to the data \
                     instead, or allow larger ones with max_message_bytes",
                    self.id,
                    self.payload.len()
                ),
            ));
        }
        self.scheduled_for.check("time that a task is scheduled for")?;
        if let Some(deadline) = self.deadline {
            deadline.check("deadline of a task")?;
        }
        if let Some(strategy) = &self.retry_strategy {
            strategy.validate()?;
            if let (Some(by_strategy), Some(own)) = (strategy.max_attempts(), self.max_attempts)
                && by_strategy != own
            {
                return Err(MessagingError::invalid(
                    "max_attempts",
                    format!("{own} attempts and a strategy with {by_strategy} contradict each other; name one"),
                ));
            }
        }
        check_tags(&self.tags)
    }
}

pub(super) fn check_tags(tags: &[String]) -> Result<(), MessagingError> {
    if tags.len() > MAX_TAGS {
        let why = format!("{} are too many, at most {MAX_TAGS} are allowed", tags.len());
        return Err(MessagingError::invalid("tags", why));
    }
    for tag in tags {
        if tag.is_empty() || tag.len() > MAX_TAG_BYTES || tag.chars().any(char::is_control) {
            let why = format!(
                "'{}': a tag is 1 to {MAX_TAG_BYTES} bytes of text without control characters",
                tag.escape_debug()
            );
            return Err(MessagingError::invalid("tag", why));
        }
    }
    Ok(())
}

/// The result of a creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The task: the new one, or the first one with the same idempotency key.
    pub id: TaskId,
    /// Whether this call created it.
    pub is_new: bool,
    /// Its state.
    pub state: TaskState,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> NewTask {
        NewTask::new("mail", "{}").unwrap()
    }

    #[test]
    fn the_number_of_attempts_is_unambiguous() {
        assert_eq!(task().attempts(), RetryStrategy::DEFAULT_MAX_ATTEMPTS);
        assert_eq!(task().max_attempts(0).attempts().get(), 1);
        let constant = RetryStrategy::constant(Duration::from_secs(1));
        assert_eq!(task().retry_strategy(constant.clone().with_max_attempts(7)).attempts().get(), 7);
        assert_eq!(task().retry_strategy(constant.clone()).attempts(), RetryStrategy::DEFAULT_MAX_ATTEMPTS);
        assert_eq!(task().retry_strategy(RetryStrategy::NoRetry).attempts().get(), 1);
        assert!(task().retry_strategy(constant.clone().with_max_attempts(7)).max_attempts(7).check(9).is_ok());
        assert!(task().retry_strategy(constant.with_max_attempts(7)).max_attempts(8).check(9).is_err());
    }

    #[test]
    fn invalid_tasks_are_refused() {
        assert!(task().check(2).is_ok());
        assert!(task().check(1).is_err());
        assert!(task().scheduled_in(Duration::MAX).check(9).is_err());
        assert!(task().scheduled_at(Timestamp::MAX).check(9).is_err());
        assert!(task().deadline_in(Duration::MAX).check(9).is_err());
        assert!(task().tag("").check(9).is_err());
        assert!(task().tag("a\nb").check(9).is_err());
        assert!((0..33).fold(task(), |task, n| task.tag(n.to_string())).check(9).is_err());
    }
}
