//! The PostgreSQL server under test.

use postrider::postgres::tokio_postgres;
use postrider::postgres::{PostgresOptions, PostgresProvider, PostgresStore};

/// Where it is.
pub(crate) fn postgres_url() -> String {
    server_url("POSTRIDER_POSTGRES_URL")
}

/// The server that a variable of the environment names.
pub(crate) fn server_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: start a server with `scripts/services up postgres pgmq`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// A plain connection.
pub(crate) async fn postgres_client(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url.strip_prefix("pgmq+").unwrap_or(url), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A schema of a test's own.
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn new() -> Self {
        Self(format!("facade_{}", postrider::MessageId::generate().as_uuid().simple()))
    }

    /// Opens it by a URL, which may lead through a proxy.
    pub(crate) async fn open(&self, url: &str, options: PostgresOptions) -> PostgresProvider {
        let options = PostgresOptions { schema: self.0.clone(), ..options };
        PostgresStore::open(url, options).await.unwrap().connect().unwrap()
    }

    pub(crate) async fn remove(self) {
        postgres_client(&postgres_url()).await.batch_execute(&format!("drop schema {} cascade", self.0)).await.unwrap();
    }
}
