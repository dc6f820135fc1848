//! Names of queues.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::MessagingError;

/// The suffix of dead-letter queues.
pub const DEAD_LETTER_SUFFIX: &str = "_dlq";

/// Upper bound of the name of a user's queue, in characters.
pub const MAX_QUEUE_NAME: usize = 80;

/// The name of a queue: 1 to 80 characters of `[A-Za-z0-9_.-]`, but neither `.` nor `..`, which URLs and paths reserve.
///
/// A user's queue may not end in `_dlq`: such a name is the dead-letter queue of the queue before the suffix. Get it by
/// [`QueueName::dead_letters`] or [`QueueName::for_reading`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Checks the name of a user's queue.
    pub fn new(name: impl AsRef<str>) -> Result<Self, MessagingError> {
        let name = name.as_ref();
        check_characters(name)?;
        if name.ends_with(DEAD_LETTER_SUFFIX) {
            return Err(invalid(
                name,
                "the ending '_dlq' is reserved for dead letters; choose another name to send to",
            ));
        }
        Ok(Self(name.into()))
    }

    /// Checks a name to read from: a user's queue or a dead-letter queue.
    pub fn for_reading(name: impl AsRef<str>) -> Result<Self, MessagingError> {
        let name = name.as_ref();
        match name.strip_suffix(DEAD_LETTER_SUFFIX) {
            Some(origin) => Self::new(origin).map(|origin| origin.dead_letters()),
            None => Self::new(name),
        }
    }

    /// The dead-letter queue of this queue; the queue itself if it is one.
    pub fn dead_letters(&self) -> Self {
        if self.holds_dead_letters() {
            return self.clone();
        }
        Self(format!("{}{DEAD_LETTER_SUFFIX}", self.0).into())
    }

    /// Whether this is a dead-letter queue.
    pub fn holds_dead_letters(&self) -> bool {
        self.0.ends_with(DEAD_LETTER_SUFFIX)
    }

    /// The queue whose dead letters this queue has; the queue itself if it is a user's queue.
    pub fn origin(&self) -> Self {
        match self.0.strip_suffix(DEAD_LETTER_SUFFIX) {
            Some(origin) => Self(origin.into()),
            None => self.clone(),
        }
    }

    /// Whether every provider supports a queue with this name: `[a-z][a-z0-9_]{0,39}`.
    pub fn is_portable(&self) -> bool {
        let mut bytes = self.0.bytes();
        self.0.len() <= 40
            && bytes.next().is_some_and(|first| first.is_ascii_lowercase())
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_characters(name: &str) -> Result<(), MessagingError> {
    if name.is_empty() {
        return Err(invalid(name, "the name is empty; use at least one character"));
    }
    if let Some(odd) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.-".contains(*c))) {
        return Err(invalid(name, &format!("{odd:?} is not allowed; use letters, digits, '_', '.' and '-'")));
    }
    if is_path_step(name) {
        return Err(invalid(name, "the name has another meaning in URLs and paths; choose another"));
    }
    if name.len() > MAX_QUEUE_NAME {
        return Err(invalid(name, &format!("it has {} characters, at most {MAX_QUEUE_NAME} are allowed", name.len())));
    }
    Ok(())
}

/// Whether URLs and paths treat the name as a relative step and remove it. Such a name cannot be used in the API of a
/// server.
pub(crate) fn is_path_step(name: &str) -> bool {
    matches!(name, "." | "..")
}

fn invalid(name: &str, why: &str) -> MessagingError {
    // The name can be arbitrary user input: keep the error short and printable.
    let shown: String = name.chars().take(MAX_QUEUE_NAME).flat_map(char::escape_debug).collect();
    MessagingError::invalid("queue name", format!("'{shown}': {why}"))
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for QueueName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for QueueName {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

impl Serialize for QueueName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for QueueName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::for_reading(name).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "Orders.v2-eu_1", ".a", "...", &"x".repeat(80)] {
            assert_eq!(QueueName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a/b", "ä", "a\n", &"x".repeat(81), "orders_dlq", "_dlq", ".", ".."] {
            assert!(QueueName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn dead_letter_queues_can_be_read_but_not_sent_to() {
        let orders = QueueName::new("orders").unwrap();
        let dead = QueueName::for_reading("orders_dlq").unwrap();
        assert_eq!(orders.dead_letters(), dead);
        assert_eq!(dead.dead_letters(), dead);
        assert_eq!(dead.origin(), orders);
        assert!(dead.holds_dead_letters() && !orders.holds_dead_letters());
        assert!(QueueName::for_reading("_dlq").is_err());
        assert!(QueueName::for_reading("a_dlq_dlq").is_err());
        assert!(QueueName::for_reading("._dlq").is_err());
    }

    #[test]
    fn portable_names_fit_every_provider() {
        let portable = |name: &str| QueueName::new(name).unwrap().is_portable();
        assert!(portable("orders_2") && portable(&"a".repeat(40)));
        assert!(!portable("Orders") && !portable("2orders") && !portable("a-b") && !portable(&"a".repeat(41)));
    }
}
