//! Idempotency records in the store of the messages.

use postrider_core::*;

use crate::messaging_provider::MessagingProvider;

/// The idempotency records of a store, for an idempotency layer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum IdempotencyRecords {
    /// In this process, and lost with it.
    Memory(MemoryProvider),
    /// In the SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteProvider),
    /// In the schema of the PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresProvider),
    /// In the MariaDB or MySQL database.
    #[cfg(feature = "mysql")]
    Mysql(postrider_mysql::MysqlProvider),
}

impl MessagingProvider {
    /// The records in this provider's store; `None` when it keeps none. Check it when the program starts, before the first
    /// message.
    pub fn idempotency_records(&self) -> Option<IdempotencyRecords> {
        match self {
            Self::Memory(provider) => Some(IdempotencyRecords::Memory(provider.clone())),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(provider) => Some(IdempotencyRecords::Sqlite(provider.clone())),
            #[cfg(feature = "postgres")]
            Self::Postgres(provider) => Some(IdempotencyRecords::Postgres(provider.clone())),
            #[cfg(feature = "mysql")]
            Self::Mysql(provider) => Some(IdempotencyRecords::Mysql(provider.clone())),
            #[cfg(feature = "spool")]
            Self::Spool(_) => None,
            #[cfg(feature = "pgmq")]
            Self::Pgmq(_) => None,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(_) => None,
            #[cfg(feature = "sqs")]
            Self::Sqs(_) => None,
            #[cfg(feature = "http")]
            Self::Http(_) => None,
            Self::Custom(_) => None,
        }
    }
}

/// Forwards each method to the store.
macro_rules! each {
    ($self:ident, $records:ident => $call:expr) => {
        match $self {
            Self::Memory($records) => $call,
            #[cfg(feature = "sqlite")]
            Self::Sqlite($records) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($records) => $call,
            #[cfg(feature = "mysql")]
            Self::Mysql($records) => $call,
        }
    };
}

impl IdempotencyStore for IdempotencyRecords {
    hand_on!(IdempotencyStore, each);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn knows_what_was_done(url: &str) {
        let provider = crate::connect(url).await.unwrap();
        let records = provider.idempotency_records().unwrap();
        let key = IdempotencyKey::new("orders/7").unwrap();
        let begin = async || records.begin(&key, Duration::from_secs(30), Deadline::default()).await.unwrap();
        let Begun::Fresh(given_up) = begin().await else { panic!("{url}") };
        assert_eq!(records.abandon(&given_up, Deadline::default()).await.unwrap(), Standing::Held);
        let Begun::Fresh(token) = begin().await else { panic!("{url}") };
        let extended = records.extend(&token, Duration::from_secs(30), Deadline::default()).await.unwrap();
        assert_eq!(extended, Standing::Held);
        assert_eq!(records.complete(&token, Deadline::default()).await.unwrap(), Standing::Held);
        assert_eq!(begin().await, Begun::Done);
        assert_eq!(records.forget(Duration::ZERO, Deadline::default()).await.unwrap(), 1);
        provider.close(Deadline::default()).await.unwrap();
    }

    #[tokio::test]
    async fn records_are_in_the_store_that_the_url_names() {
        knows_what_was_done("memory:").await;
        #[cfg(feature = "sqlite")]
        {
            let folder = tempfile::tempdir().unwrap();
            knows_what_was_done(&format!("sqlite:{}", folder.path().join("queues.db").display())).await;
        }
    }

    #[tokio::test]
    async fn a_custom_provider_keeps_no_records() {
        let custom = MessagingProvider::custom(MemoryStore::new().open());
        assert!(custom.idempotency_records().is_none());
    }

    #[cfg(feature = "spool")]
    #[tokio::test]
    async fn a_spool_keeps_no_records() {
        let folder = tempfile::tempdir().unwrap();
        let provider = crate::connect(&format!("spool:{}", folder.path().display())).await.unwrap();
        assert!(provider.idempotency_records().is_none());
        provider.close(Deadline::default()).await.unwrap();
    }
}
