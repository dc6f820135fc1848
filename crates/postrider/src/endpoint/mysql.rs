//! Options of MariaDB and MySQL from the configuration.

use postrider_mysql::MysqlOptions;

use crate::config::MessagingConfig;

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> MysqlOptions {
    let mysql = &settings.mysql;
    MysqlOptions {
        pool_size: mysql.pool_size as usize,
        archive: mysql.archive,
        archive_retention: mysql.archive_retention,
        poll_interval: mysql.poll_interval,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: mysql.connection_timeout,
        statement_timeout: mysql.statement_timeout,
        ..MysqlOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", MysqlOptions::default()));
    }
}
