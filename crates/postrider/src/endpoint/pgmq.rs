//! Options of PGMQ from the configuration.

use postrider_pgmq::PgmqOptions;

use crate::config::MessagingConfig;

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> PgmqOptions {
    let pgmq = &settings.pgmq;
    PgmqOptions {
        schema: pgmq.schema.clone(),
        pool_size: pgmq.pool_size as usize,
        archive: pgmq.archive,
        archive_retention: pgmq.archive_retention,
        enable_pg_notify: pgmq.enable_pg_notify,
        notify_throttle: pgmq.notify_throttle,
        poll_interval: pgmq.poll_interval,
        long_delay: pgmq.long_delay,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: pgmq.connection_timeout,
        statement_timeout: pgmq.statement_timeout,
        ..PgmqOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", PgmqOptions::default()));
    }
}
