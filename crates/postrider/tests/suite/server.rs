//! The PostgreSQL server under test.

use postrider::postgres::tokio_postgres;
use postrider::postgres::{PostgresOptions, PostgresProvider, PostgresStore};

/// Its URL.
pub(crate) fn postgres_url() -> String {
    server_url("POSTRIDER_POSTGRES_URL")
}

/// The server's URL in an environment variable.
pub(crate) fn server_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: start a server with `scripts/services up postgres mysql pgmq rabbitmq`, then \
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

/// Calls the broker's management interface with curl, which scripts/services needs too.
pub(crate) async fn manage(method: &str, path: &str, body: &str) -> String {
    let mut curl = std::process::Command::new("curl");
    curl.args(["-qsS", "--max-time", "30", "--noproxy", "*", "-X", method]);
    if !body.is_empty() {
        curl.args(["-H", "content-type: application/json", "-d", body]);
    }
    curl.arg(server_url("POSTRIDER_AMQP_MANAGEMENT_URL") + path);
    let output = tokio::task::spawn_blocking(move || curl.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A schema for one test.
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn new() -> Self {
        Self(format!("facade_{}", postrider::MessageId::generate().as_uuid().simple()))
    }

    /// Opens it by a URL, possibly through a proxy.
    pub(crate) async fn open(&self, url: &str, options: PostgresOptions) -> PostgresProvider {
        let options = PostgresOptions { schema: self.0.clone(), ..options };
        PostgresStore::open(url, options).await.unwrap().connect().unwrap()
    }

    pub(crate) async fn remove(self) {
        postgres_client(&postgres_url()).await.batch_execute(&format!("drop schema {} cascade", self.0)).await.unwrap();
    }
}
