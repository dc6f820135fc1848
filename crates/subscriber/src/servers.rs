//! Places of a test's own on the servers under test. The tests beside the code and those in `tests/suite` both have it.

use postrider_core::MessagingError;
use postrider_mysql::mysql_async::prelude::Queryable;
use postrider_mysql::{MysqlOptions, MysqlStore, mysql_async};
use postrider_pgmq::{PgmqOptions, PgmqStore};
use postrider_postgres::{PostgresOptions, PostgresStore, tokio_postgres};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore};
use postrider_sqs::{SqsOptions, SqsStore};

/// Where a server is, or how to start one.
fn server(variable: &str, service: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: start a server with `scripts/services up {service}`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// A name that nobody else has.
fn own_name() -> String {
    format!("subscriber_{:016x}", rand::random::<u64>())
}

/// A schema in PostgreSQL.
pub(crate) struct OnPostgres {
    schema: String,
}

impl OnPostgres {
    pub(crate) fn new() -> Self {
        Self { schema: own_name() }
    }

    pub(crate) fn url(&self) -> String {
        server("POSTRIDER_POSTGRES_URL", "postgres")
    }

    /// The store, by a URL that may lead through something to the server.
    pub(crate) async fn store(&self, url: &str) -> Result<PostgresStore, MessagingError> {
        let options = PostgresOptions { schema: self.schema.clone(), pool_size: 8, ..PostgresOptions::default() };
        PostgresStore::open(url, options).await
    }

    pub(crate) async fn remove(self) {
        drop_schema(&self.url(), &self.schema).await;
    }
}

async fn drop_schema(url: &str, schema: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("drop schema {schema} cascade")).await.unwrap();
}

/// A schema beside PGMQ's own. The queues are everybody's.
pub(crate) struct OnPgmq {
    schema: String,
}

impl OnPgmq {
    pub(crate) fn new() -> Self {
        Self { schema: own_name() }
    }

    pub(crate) fn url(&self) -> String {
        server("POSTRIDER_PGMQ_URL", "postgres pgmq")
    }

    /// The store, by a URL that may lead through something to the server.
    pub(crate) async fn store(&self, url: &str) -> Result<PgmqStore, MessagingError> {
        let options = PgmqOptions { schema: self.schema.clone(), pool_size: 8, ..PgmqOptions::default() };
        PgmqStore::open(url, options).await
    }

    pub(crate) async fn remove(self) {
        let url = self.url();
        drop_schema(url.strip_prefix("pgmq+").unwrap_or(&url), &self.schema).await;
    }
}

/// A database in MariaDB.
pub(crate) struct OnMariadb {
    name: String,
}

impl OnMariadb {
    pub(crate) async fn new() -> Self {
        let place = Self { name: own_name() };
        place.at_server(&format!("create database {}", place.name)).await;
        place
    }

    pub(crate) fn url(&self) -> String {
        let url = server("POSTRIDER_MYSQL_URL", "mysql");
        let (server, _) = url.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }

    /// The store, by a URL that may lead through something to the server.
    pub(crate) async fn store(&self, url: &str) -> Result<MysqlStore, MessagingError> {
        MysqlStore::open(url, MysqlOptions { pool_size: 8, ..MysqlOptions::default() }).await
    }

    pub(crate) async fn remove(self) {
        self.at_server(&format!("drop database {}", self.name)).await;
    }

    async fn at_server(&self, statement: &str) {
        let url = server("POSTRIDER_MYSQL_URL", "mysql");
        let mut client = mysql_async::Conn::from_url(url).await.unwrap();
        client.query_drop(statement).await.unwrap();
        client.disconnect().await.unwrap();
    }
}

/// Queues of SQS, on an emulator. They are everybody's, and their names are the test's own.
pub(crate) struct OnSqs {
    prefix: String,
}

impl OnSqs {
    pub(crate) fn new() -> Self {
        Self { prefix: format!("{}-", own_name()) }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}{}", server("POSTRIDER_SQS_URL", "sqs"), self.prefix)
    }

    /// The store, by a URL that may lead through something to the emulator.
    pub(crate) async fn store(&self, url: &str) -> Result<SqsStore, MessagingError> {
        SqsStore::open(url, SqsOptions::default()).await
    }
}

/// Queues of a RabbitMQ broker. They are everybody's; a test removes its own.
pub(crate) struct OnRabbitmq;

impl OnRabbitmq {
    pub(crate) fn url(&self) -> String {
        server("POSTRIDER_AMQP_URL", "rabbitmq")
    }

    /// The store, by a URL that may lead through something to the broker.
    pub(crate) fn store(&self, url: &str) -> RabbitmqStore {
        let management_url = Some(server("POSTRIDER_AMQP_MANAGEMENT_URL", "rabbitmq"));
        RabbitmqStore::new(url, RabbitmqOptions { management_url, ..RabbitmqOptions::default() }).unwrap()
    }
}
