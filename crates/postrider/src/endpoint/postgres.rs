//! Options of PostgreSQL from the configuration.

use postrider_postgres::{PostgresOptions, WakeUpMode};

use crate::config::MessagingConfig;

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> PostgresOptions {
    let postgres = &settings.postgres;
    PostgresOptions {
        schema: postgres.schema.clone(),
        pool_size: postgres.pool_size as usize,
        archive: postgres.archive,
        archive_retention: postgres.archive_retention,
        wake_up: if postgres.poll_only { WakeUpMode::PollOnly } else { WakeUpMode::Notify },
        poll_interval: postgres.poll_interval,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: postgres.connection_timeout,
        statement_timeout: postgres.statement_timeout,
        ..PostgresOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", PostgresOptions::default()));
    }
}
