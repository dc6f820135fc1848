//! A task as its creator makes it.

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

const MOST_TAGS: usize = 32;
const LONGEST_TAG: usize = 128;

/// A time, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// That long after the store accepted the task.
    In(#[serde(with = "duration_text")] Duration),
    /// At that time.
    At(Timestamp),
}

impl When {
    /// At once.
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
            Self::At(time) if time > Timestamp::now().saturating_add(MAX_DURATION) => {
                Err(MessagingError::invalid(what, format!("{time} is more than a hundred years from now")))
            }
            Self::At(_) => Ok(()),
        }
    }
}

/// A task to be made.
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
    /// Its identity.
    pub id: TaskId,
    /// Which handler runs it.
    pub task_type: TaskType,
    /// What the handler is given.
    pub payload: Bytes,
    /// When it is due.
    pub scheduled_for: When,
    /// How often it is tried; `None` is what its retry strategy says, else
    /// [`RetryStrategy::DEFAULT_MAX_ATTEMPTS`].
    pub max_attempts: Option<NonZeroU32>,
    /// How urgent it is, among the tasks of its type.
    pub priority: Priority,
    /// Tasks of a type with the same key run one at a time, in the order in which they were made.
    pub ordering_key: Option<Key>,
    /// A second task of the type with this key is not made: the first is answered, whatever has become of it.
    pub idempotency_key: Option<IdempotencyKey>,
    /// When a failed attempt is followed by the next; `None` is the default strategy.
    pub retry_strategy: Option<RetryStrategy>,
    /// When it is too late: it dies, even if it is being worked on.
    pub deadline: Option<When>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// The schedule that made it.
    pub schedule: Option<String>,
}

impl NewTask {
    /// A task that is due at once.
    pub fn new(task_type: impl AsRef<str>, payload: impl Into<Bytes>) -> Result<Self, MessagingError> {
        Ok(Self::of(TaskType::new(task_type)?, payload))
    }

    /// A task of a type whose name was checked before.
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

    /// With an id that the caller made.
    #[must_use]
    pub fn id(mut self, id: TaskId) -> Self {
        self.id = id;
        self
    }

    /// Due that long after it is made.
    #[must_use]
    pub fn scheduled_in(mut self, delay: Duration) -> Self {
        self.scheduled_for = When::In(delay);
        self
    }

    /// Due at that time.
    #[must_use]
    pub fn scheduled_at(mut self, time: Timestamp) -> Self {
        self.scheduled_for = When::At(time);
        self
    }

    /// Tried so often. The first attempt is always made, so 0 counts as 1.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(NonZeroU32::new(max_attempts).unwrap_or(NonZeroU32::MIN));
        self
    }

    /// With a priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Runs after every earlier task of its type with the same key, and before every later one.
    pub fn ordering_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.ordering_key = Some(Key::new("ordering key", key.as_ref())?);
        Ok(self)
    }

    /// Made once, however often it is asked for.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.idempotency_key = Some(IdempotencyKey::new(key)?);
        Ok(self)
    }

    /// Tried again by this strategy.
    #[must_use]
    pub fn retry_strategy(mut self, strategy: RetryStrategy) -> Self {
        self.retry_strategy = Some(strategy);
        self
    }

    /// Dead when it has not ended that long after it was made.
    #[must_use]
    pub fn deadline_in(mut self, time: Duration) -> Self {
        self.deadline = Some(When::In(time));
        self
    }

    /// Dead when it has not ended by then.
    #[must_use]
    pub fn deadline_at(mut self, time: Timestamp) -> Self {
        self.deadline = Some(When::At(time));
        self
    }

    /// With one more word to find it by.
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

    /// Refuses what cannot be meant, before anything is done. What every store does first.
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
    if tags.len() > MOST_TAGS {
        let why = format!("{} are too many, at most {MOST_TAGS} are allowed", tags.len());
        return Err(MessagingError::invalid("tags", why));
    }
    for tag in tags {
        if tag.is_empty() || tag.len() > LONGEST_TAG || tag.chars().any(char::is_control) {
            let why = format!(
                "'{}': a tag is 1 to {LONGEST_TAG} bytes of text without control characters",
                tag.escape_debug()
            );
            return Err(MessagingError::invalid("tag", why));
        }
    }
    Ok(())
}

/// What a creation brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The task: the new one, or the first that was made with the same idempotency key.
    pub id: TaskId,
    /// Whether it was made by this call.
    pub is_new: bool,
    /// Where it is in its life.
    pub state: TaskState,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> NewTask {
        NewTask::new("mail", "{}").unwrap()
    }

    #[test]
    fn the_number_of_attempts_has_one_answer() {
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
    fn what_cannot_be_meant_is_refused() {
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
