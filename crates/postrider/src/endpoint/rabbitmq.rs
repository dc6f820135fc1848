//! Options of RabbitMQ from the configuration.

use postrider_core::{Deadline, MessagingError, MessagingService};
use postrider_rabbitmq::{QueueType, RabbitmqOptions, RabbitmqStore};

use super::Migration;
use crate::config::{MessagingConfig, RabbitMqQueueType, StoreUrl};

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> RabbitmqOptions {
    let rabbitmq = &settings.rabbitmq;
    RabbitmqOptions {
        vhost: rabbitmq.vhost.clone(),
        queue_type: match rabbitmq.queue_type {
            RabbitMqQueueType::Quorum => QueueType::Quorum,
            RabbitMqQueueType::Classic => QueueType::Classic,
        },
        partitions: rabbitmq.partitions,
        prefetch_count: u16::try_from(rabbitmq.prefetch_count).unwrap_or(u16::MAX),
        heartbeat: rabbitmq.heartbeat,
        connection_timeout: rabbitmq.connection_timeout,
        consumer_timeout: rabbitmq.consumer_timeout,
        management_url: rabbitmq.management_url.as_ref().map(|url| url.as_str().to_owned()),
        ca_file: rabbitmq.ca_file.as_ref().map(|path| path.display().to_string()),
        create_queues: settings.create_queues,
        limits: settings.limits(),
        ..RabbitmqOptions::default()
    }
}

/// Returns none: a queue is made at its first use. Fails when the broker does not answer.
pub(super) async fn migrations(url: &StoreUrl, options: &RabbitmqOptions) -> Result<Vec<Migration>, MessagingError> {
    let provider = RabbitmqStore::new(url.as_str(), options.clone())?.connect().await?;
    provider.close(Deadline::default()).await?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", RabbitmqOptions::default()));
    }
}
