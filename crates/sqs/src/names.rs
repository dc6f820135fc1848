//! Names of queues in SQS.

use std::fmt;

use postrider_core::{MessagingError, QueueName};

/// Suffix of the name of a FIFO queue.
const FIFO: &str = ".fifo";

/// Maximum length of a name in SQS.
const LONGEST: usize = 80;

/// One of the two SQS queues that make up a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Side {
    /// For messages without keys, and for dead letters.
    Standard,
    /// For messages with keys.
    Fifo,
}

/// The name of a queue in SQS.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WireName(String);

impl WireName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WireName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Converts between queue names and SQS names.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the SQS name of one side of a queue. Refuses a name that is invalid or too long in SQS for either side or for
    /// the dead letters.
    pub(crate) fn wire(&self, queue: &QueueName, side: Side) -> Result<WireName, MessagingError> {
        let origin = queue.origin();
        let invalid = |why: String| MessagingError::invalid("queue name", format!("'{origin}': {why}"));
        if origin.as_str().contains('.') {
            return Err(invalid("SQS allows no dots in a name; use letters, digits, '_' and '-'".into()));
        }
        let longest = LONGEST - FIFO.len() - self.prefix.len().min(LONGEST - FIFO.len());
        if origin.as_str().len() > longest {
            let (has, prefix) = (origin.as_str().len(), self.prefix.len());
            return Err(invalid(format!(
                "it has {has} characters, and {longest} are left: SQS allows {LONGEST}, including the prefix of {prefix} and \
                 '{FIFO}'"
            )));
        }
        let ending = if side == Side::Fifo { FIFO } else { "" };
        Ok(WireName(format!("{}{queue}{ending}", self.prefix)))
    }

    /// Returns the queue that an SQS queue belongs to; `None` when it is not one of this prefix.
    pub(crate) fn queue(&self, wire: &str) -> Option<QueueName> {
        let name = wire.strip_prefix(&self.prefix)?;
        let name = name.strip_suffix(FIFO).unwrap_or(name);
        QueueName::for_reading(name).ok().filter(|queue| self.wire(queue, Side::Fifo).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        let names = Names::new("app-");
        let orders = QueueName::new("orders").unwrap();
        let wire = |queue: &QueueName, side| names.wire(queue, side).unwrap().to_string();
        assert_eq!(wire(&orders, Side::Standard), "app-orders");
        assert_eq!(wire(&orders, Side::Fifo), "app-orders.fifo");
        assert_eq!(wire(&orders.dead_letters(), Side::Standard), "app-orders_dlq");
        for own in ["app-orders", "app-orders.fifo"] {
            assert_eq!(names.queue(own), Some(orders.clone()));
        }
        assert_eq!(names.queue("app-orders_dlq"), Some(orders.dead_letters()));
        assert_eq!(names.queue("other"), None);
        assert_eq!(names.queue("app-"), None);
    }

    #[test]
    fn names_that_are_too_long_for_sqs_are_refused_with_the_limit() {
        let names = Names::new("app-");
        let check = |name: &str| names.wire(&QueueName::new(name).unwrap(), Side::Standard);
        assert!(check(&"x".repeat(71)).is_ok());
        let long = check(&"x".repeat(72)).unwrap_err().to_string();
        assert!(long.contains("71 are left"), "{long}");
        assert!(check("a.b").is_err());
    }
}
