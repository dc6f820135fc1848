//! Which queues a token is for.

use std::fmt;
use std::str::FromStr;

use postrider::{MessagingError, QueueName};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A queue's name, or the beginning of several with a `*` behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePattern {
    name: String,
    is_prefix: bool,
}

impl QueuePattern {
    /// Whether it means that queue. Dead letters belong to the queue that they died in.
    pub fn includes(&self, queue: &QueueName) -> bool {
        let origin = queue.origin();
        match self.is_prefix {
            true => origin.as_str().starts_with(&self.name),
            false => origin.as_str() == self.name,
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
            let why = "'*' means every queue; leave the queues out instead";
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
    fn a_pattern_means_a_queue_and_its_dead_letters() {
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
}
