//! A broker, by its URL.

use std::time::Duration;

use lapin::uri::AMQPUri;
use postrider_broker::BrokerProvider;
use postrider_core::MessagingError;

use crate::RabbitmqProvider;
use crate::broker::RabbitmqBroker;
use crate::options::RabbitmqOptions;

/// A broker that can be connected to any number of times. Each connection is one of AMQP's, because what one has received
/// no other can settle.
#[derive(Debug, Clone)]
pub struct RabbitmqStore {
    uri: AMQPUri,
    options: RabbitmqOptions,
}

impl RabbitmqStore {
    /// The broker at `url`: `amqp://user:password@host:port/vhost`, or `amqps://…`.
    pub fn new(url: &str, options: RabbitmqOptions) -> Result<Self, MessagingError> {
        let invalid = |why: String| MessagingError::invalid("URL", format!("{why}; write amqp://user@host:5672/vhost"));
        let mut uri: AMQPUri = url.parse().map_err(invalid)?;
        if options.partitions == 0 {
            return Err(MessagingError::invalid("partitions", "0 would leave keys no place; 1 is the least"));
        }
        if let Some(vhost) = &options.vhost {
            uri.vhost.clone_from(vhost);
        }
        // Without a path the default one is meant, as every other client has it.
        if uri.vhost.is_empty() {
            uri.vhost = "/".to_owned();
        }
        let seconds = options.heartbeat.as_nanos().div_ceil(Duration::from_secs(1).as_nanos());
        uri.query.heartbeat = Some(u16::try_from(seconds).unwrap_or(u16::MAX));
        Ok(Self { uri, options })
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<RabbitmqProvider, MessagingError> {
        BrokerProvider::new(RabbitmqBroker::connect(self.uri.clone(), self.options.clone()).await?)
    }
}
