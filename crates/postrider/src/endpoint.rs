//! Where messages are kept, by URL.

use std::fmt;
use std::str::FromStr;

use postrider_core::{MemoryStore, MessagingError};

use crate::provider::MessagingProvider;

/// A store that a URL leads to. It can be connected to any number of times.
#[derive(Debug, Clone)]
pub struct Endpoint(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// The store itself is kept here: every connection must reach the same one.
    Memory(MemoryStore),
}

/// The schemes that can be used, with the form of their URLs.
const SCHEMES: &[(&str, &str)] = &[("memory", "memory:")];

impl Endpoint {
    /// Opens a connection.
    pub async fn connect(&self) -> Result<MessagingProvider, MessagingError> {
        match &self.0 {
            Kind::Memory(store) => Ok(MessagingProvider::Memory(store.open())),
        }
    }
}

impl FromStr for Endpoint {
    type Err = MessagingError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let invalid = |why: String| Err(MessagingError::invalid("URL", why));
        let shown = url.escape_debug();
        let Some((scheme, rest)) = url.split_once(':') else {
            return invalid(format!("'{shown}' has no scheme; {}", known_schemes()));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self(Kind::Memory(MemoryStore::new()))),
            "memory" => invalid(format!("'{shown}' names something behind 'memory:'; there is nothing to name")),
            _ => invalid(format!("scheme '{}' is not known; {}", scheme.escape_debug(), known_schemes())),
        }
    }
}

fn known_schemes() -> String {
    let forms: Vec<_> = SCHEMES.iter().map(|(_, form)| *form).collect();
    format!("use {}", forms.join(", "))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory(_) => f.write_str("memory:"),
        }
    }
}

/// Connects to the store that `url` leads to. Each `memory:` is a store of its own; connect twice to one of them
/// through an [`Endpoint`].
pub async fn connect(url: &str) -> Result<MessagingProvider, MessagingError> {
    url.parse::<Endpoint>()?.connect().await
}

#[cfg(test)]
mod tests {
    use postrider_core::{Deadline, Message, MessagingService, QueueName, ReceiveOptions};

    use super::*;

    #[tokio::test]
    async fn connections_to_one_endpoint_share_its_store() {
        let endpoint: Endpoint = "memory:".parse().unwrap();
        let queue = QueueName::new("orders").unwrap();
        let (a, b) = (endpoint.connect().await.unwrap(), endpoint.connect().await.unwrap());
        a.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
        let options = ReceiveOptions::default();
        assert_eq!(b.receive_messages(&queue, &options, Deadline::default()).await.unwrap().len(), 1);
        let other = connect("memory:").await.unwrap();
        assert!(other.receive_messages(&queue, &options, Deadline::default()).await.unwrap().is_empty());
    }

    #[test]
    fn urls_that_lead_nowhere_say_what_can_be_used() {
        for (url, text) in [
            ("orders", "'orders' has no scheme; use memory:"),
            ("kafka://host", "scheme 'kafka' is not known; use memory:"),
            ("memory:x", "'memory:x' names something behind 'memory:'; there is nothing to name"),
        ] {
            let error = url.parse::<Endpoint>().unwrap_err();
            assert_eq!(error.to_string(), format!("invalid URL: {text}"));
        }
    }
}
