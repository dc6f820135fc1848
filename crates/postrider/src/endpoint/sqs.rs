//! Options of SQS from the configuration.

use postrider_core::MessagingError;
use postrider_sqs::{SqsOptions, SqsStore};

use super::Migration;
use crate::config::{MessagingConfig, StoreUrl};

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> SqsOptions {
    SqsOptions {
        create_queues: settings.create_queues,
        parallel_calls: settings.sqs.parallel_calls as usize,
        connect_timeout: settings.sqs.connection_timeout,
        call_timeout: settings.sqs.call_timeout,
        limits: settings.limits(),
    }
}

/// Returns none: a message carries all its data. Fails when SQS does not answer.
pub(super) async fn migrations(url: &StoreUrl, options: &SqsOptions) -> Result<Vec<Migration>, MessagingError> {
    SqsStore::open(url.as_str(), options.clone()).await.map(|_| Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", SqsOptions::default()));
    }
}
