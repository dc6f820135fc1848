//! SQS as the configuration describes it.

use postrider_sqs::SqsOptions;

use crate::config::MessagingConfig;

/// How the settings say that SQS is used.
pub(super) fn options(settings: &MessagingConfig) -> SqsOptions {
    SqsOptions {
        create_queues: settings.create_queues,
        parallel_calls: settings.sqs.parallel_calls as usize,
        connect_timeout: settings.sqs.connection_timeout,
        call_timeout: settings.sqs.call_timeout,
        limits: settings.limits(),
    }
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
