//! The provider on RabbitMQ. The workloads delete their queues.

use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

use crate::Failure;

/// A connection that shares nothing with others.
pub(crate) async fn open(url: &str) -> Result<RabbitmqProvider, Failure> {
    Ok(RabbitmqStore::new(url, RabbitmqOptions::default())?.connect().await?)
}
