//! What tasks and their types are called.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::error::MessagingError;
use crate::queue_name::DEAD_LETTER_SUFFIX;

/// The longest name of a type, in characters. With the prefix of its queue it still fits a queue's name.
pub const MAX_TASK_TYPE: usize = 64;

/// A task's identity: a UUIDv7 that its creator made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(Uuid);

impl TaskId {
    /// A new id.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an id that the caller made.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The id as a UUID.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for TaskId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

/// What kind of work a task is; which handler runs it. 1 to 64 characters of `[A-Za-z0-9_.-]`, as in a queue's name,
/// because the tasks of a type have a queue of their own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskType(Arc<str>);

impl TaskType {
    /// Checks a name.
    pub fn new(name: impl AsRef<str>) -> Result<Self, MessagingError> {
        let name = name.as_ref();
        let shown: String = name.chars().take(MAX_TASK_TYPE).flat_map(char::escape_debug).collect();
        let invalid = |why: &str| Err(MessagingError::invalid("task type", format!("'{shown}': {why}")));
        if name.is_empty() {
            return invalid("a type's name has at least one character");
        }
        if name.len() > MAX_TASK_TYPE {
            return invalid(&format!("it has {} bytes, at most {MAX_TASK_TYPE} are allowed", name.len()));
        }
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
            return invalid("use letters, digits, '_', '.' and '-'");
        }
        if name.ends_with(DEAD_LETTER_SUFFIX) {
            return invalid("the ending '_dlq' is kept for dead letters; choose another name");
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for TaskType {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl Serialize for TaskType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TaskType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&*name).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_names_that_a_queue_can_have() {
        for good in ["email", "email.send-v2", "A_1", &"t".repeat(64)] {
            assert_eq!(TaskType::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "two words", "a/b", "é", "mail_dlq", &"t".repeat(65)] {
            assert!(TaskType::new(bad).is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<TaskType>("\"a b\"").is_err());
    }
}
