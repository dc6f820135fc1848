//! State records in the database that the configuration names for them.

use postrider_core::*;

use crate::config::Config;
use crate::context::ContextError;
use crate::messaging_provider::MessagingProvider;

/// A database with state records.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StateStorage {
    /// In an SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteStateRecords),
    /// In a schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresStateRecords),
}

impl StateStorage {
    /// The records in a provider's own store.
    pub fn new(provider: &MessagingProvider) -> Result<Self, MessagingError> {
        match provider {
            #[cfg(feature = "sqlite")]
            MessagingProvider::Sqlite(provider) => {
                Ok(Self::Sqlite(postrider_sqlite::SqliteStateRecords::new(provider.clone())))
            }
            #[cfg(feature = "postgres")]
            MessagingProvider::Postgres(provider) => {
                Ok(Self::Postgres(postrider_postgres::PostgresStateRecords::new(provider.clone())))
            }
            #[cfg(feature = "http")]
            MessagingProvider::Http(_) => Err(MessagingError::invalid(
                "state store",
                "a server does not expose its records; set [state] url to SQLite or PostgreSQL",
            )),
            other => Err(MessagingError::invalid(
                "state store",
                format!("{} keeps no records; set [state] url to SQLite or PostgreSQL", other.provider_name()),
            )),
        }
    }

    /// Opens the records of a system without its queues. Also returns the connection, which the caller closes.
    pub fn connect(config: &Config) -> BoxFuture<'_, Result<(Self, MessagingProvider), ContextError>> {
        Box::pin(async move {
            let endpoint = match config.keeps_state_with_messages() {
                true => config.endpoint()?,
                false => config.state_endpoint()?,
            };
            let provider = endpoint.connect().await?;
            Ok((Self::new(&provider)?, provider))
        })
    }
}

/// Forwards each method to the store.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite($store) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($store) => $call,
        }
    };
}

impl StateRecords for StateStorage {
    hand_on!(StateRecords, each);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Sources;

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn records_are_in_the_configured_store() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let (kind, key) = (RecordKind::constant("session"), RecordKey::new("k").unwrap());
        let queues = file("queues.db");
        for (url, state) in [(queues.as_str(), None), ("memory:", Some(file("state.db"))), (&queues, None)] {
            let sources = Sources::none().flag("--url", "common.messaging.url", url);
            let sources = match &state {
                Some(state) => sources.flag("--state", "state.url", state),
                None => sources,
            };
            let (records, provider) = StateStorage::connect(&Config::load(&sources).unwrap()).await.unwrap();
            let put = async |value: &'static str| {
                let value = Bytes::from_static(value.as_bytes());
                records.put_new(&kind, &key, value, Some(Duration::from_secs(60)), Deadline::default()).await.unwrap()
            };
            let Put::Made(made) = put("one").await else { panic!("{url}") };
            assert_eq!(put("two").await, Put::Taken(made.clone()));
            let value = Bytes::from_static(b"three");
            let replaced = records.replace(&kind, &key, made.version, value, None, Deadline::default()).await.unwrap();
            assert_eq!(records.get(&kind, &key, Deadline::default()).await.unwrap(), replaced);
            let page = records.list(&kind, &RecordQuery::default(), Deadline::default()).await.unwrap();
            assert_eq!((page.records, page.next), (replaced.into_iter().collect(), None));
            assert_eq!(records.forget_expired(Deadline::default()).await.unwrap(), 0);
            assert!(records.remove(&kind, &key, Deadline::default()).await.unwrap());
            provider.close(Deadline::default()).await.unwrap();
        }
        assert!(folder.path().join("state.db").exists());
    }

    #[tokio::test]
    async fn a_store_without_records_is_refused() {
        let provider = crate::connect("memory:").await.unwrap();
        let refused = StateStorage::new(&provider).unwrap_err().to_string();
        assert!(refused.contains("memory keeps no records; set [state] url to SQLite or PostgreSQL"), "{refused}");
    }
}
