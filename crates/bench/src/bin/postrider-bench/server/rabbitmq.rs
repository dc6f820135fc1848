//! The provider on RabbitMQ. The queues are removed by whoever made them.

use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

use crate::Failure;

/// As another process would.
pub(crate) async fn open(url: &str) -> Result<RabbitmqProvider, Failure> {
    Ok(RabbitmqStore::new(url, RabbitmqOptions::default())?.connect().await?)
}
