//! The queues that a token covers.

use std::fmt;
use std::str::FromStr;

use postrider::task::TypePattern;
use postrider::{MessagingError, QueueName};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A queue's name, or a prefix followed by `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePattern {
    name: String,
    is_prefix: bool,
}

impl QueuePattern {
    /// Whether the pattern covers a queue. The queue of dead letters belongs to its origin.
    pub fn includes(&self, queue: &QueueName) -> bool {
        let origin = queue.origin();
        match self.is_prefix {
            true => origin.as_str().starts_with(&self.name),
            false => origin.as_str() == self.name,
        }
    }
}

impl QueuePattern {
    /// Returns the task types whose queues, which begin with `prefix`, the pattern covers; `None` if it covers none.
    pub(crate) fn task_types(&self, prefix: &str) -> Option<TypePattern> {
        let star = if self.is_prefix { "*" } else { "" };
        match self.name.strip_prefix(prefix) {
            Some(name) => format!("{name}{star}").parse().ok(),
            // The pattern is a prefix of the prefix, so it covers all task queues.
            None if self.is_prefix && prefix.starts_with(&self.name) => "*".parse().ok(),
            None => None,
        }
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.is_prefix { "*" } else { "" })
    }
}

impl FromStr for QueuePattern {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            let why = "'*' covers all queues; omit the queues instead";
            return Err(MessagingError::invalid("queues of a token", why));
        }
        let (name, is_prefix) = match text.strip_suffix('*') {
            Some(name) => (name, true),
            None => (text, false),
        };
        QueueName::new(name)?;
        Ok(Self { name: name.to_owned(), is_prefix })
    }
}

impl Serialize for QueuePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QueuePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_a_queue_and_its_dead_letters() {
        let queue = |name| QueueName::for_reading(name).unwrap();
        let pattern = |text: &str| text.parse::<QueuePattern>().unwrap();
        assert!(pattern("orders").includes(&queue("orders")) && pattern("orders").includes(&queue("orders_dlq")));
        assert!(!pattern("orders").includes(&queue("orders2")));
        assert!(pattern("mail.*").includes(&queue("mail.in")) && !pattern("mail.*").includes(&queue("mail")));
        for refused in ["", "*", "a b", "a*b", "orders_dlq"] {
            assert!(refused.parse::<QueuePattern>().is_err(), "{refused}");
        }
        assert_eq!(serde_json::to_string(&pattern("mail.*")).unwrap(), "\"mail.*\"");
    }

    #[test]
    fn a_pattern_covers_the_task_types_of_its_queues() {
        let names = ["m", "mail", "mail.in", "task_mail"].map(|name| postrider::TaskType::new(name).unwrap());
        for text in ["task_mail", "task_mail*", "task_*", "task*", "t*", "task_m*", "mail*", "tax*", "task_task_*"] {
            let pattern: QueuePattern = text.parse().unwrap();
            let types = pattern.task_types("task_");
            for name in &names {
                let is_meant = pattern.includes(&QueueName::new(format!("task_{name}")).unwrap());
                assert_eq!(types.as_ref().is_some_and(|types| types.includes(name)), is_meant, "{text} and {name}");
            }
        }
    }
}
