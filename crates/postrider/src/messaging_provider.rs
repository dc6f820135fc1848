//! All providers as one type.

use postrider_core::*;

/// A built-in provider, or a custom one behind a [`SharedProvider`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MessagingProvider {
    /// In this process.
    Memory(MemoryProvider),
    /// On one SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteProvider),
    /// In folders of a directory.
    #[cfg(feature = "spool")]
    Spool(postrider_spool::SpoolProvider),
    /// In a schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresProvider),
    /// In a MariaDB or MySQL database.
    #[cfg(feature = "mysql")]
    Mysql(postrider_mysql::MysqlProvider),
    /// In queues of PGMQ.
    #[cfg(feature = "pgmq")]
    Pgmq(postrider_pgmq::PgmqProvider),
    /// In queues of a RabbitMQ broker.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(postrider_rabbitmq::RabbitmqProvider),
    /// In queues of SQS.
    #[cfg(feature = "sqs")]
    Sqs(postrider_sqs::SqsProvider),
    /// In the store of a Postrider server.
    #[cfg(feature = "http")]
    Http(postrider_http::HttpProvider),
    /// A provider that is not built in.
    Custom(SharedProvider),
}

impl MessagingProvider {
    /// Wraps a provider that is not built in.
    pub fn custom(provider: impl Provider) -> Self {
        Self::Custom(SharedProvider::new(provider))
    }

    /// A queue by its name: short forms of the daily calls.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<Queue<Self>, MessagingError> {
        Queue::new(self.clone(), name)
    }
}

/// Forwards each method to the provider.
macro_rules! each {
    ($self:ident, $provider:ident => $call:expr) => {
        match $self {
            Self::Memory($provider) => $call,
            #[cfg(feature = "sqlite")]
            Self::Sqlite($provider) => $call,
            #[cfg(feature = "spool")]
            Self::Spool($provider) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($provider) => $call,
            #[cfg(feature = "mysql")]
            Self::Mysql($provider) => $call,
            #[cfg(feature = "pgmq")]
            Self::Pgmq($provider) => $call,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq($provider) => $call,
            #[cfg(feature = "sqs")]
            Self::Sqs($provider) => $call,
            #[cfg(feature = "http")]
            Self::Http($provider) => $call,
            Self::Custom($provider) => $call,
        }
    };
}

impl MessagingService for MessagingProvider {
    hand_on!(MessagingService, each);
}

impl QueueAdmin for MessagingProvider {
    hand_on!(QueueAdmin, each);
}

impl DeadLetters for MessagingProvider {
    hand_on!(DeadLetters, each);
}
