//! A private store for one test: a file, a folder, a schema, a database, a virtual host.

use mysql_async::prelude::Queryable;
use postrider::config::{Config, Sources};
use postrider::mysql::mysql_async;
use postrider::{Endpoint, MessagingProvider};
use tempfile::TempDir;

use crate::server::{manage, postgres_client, server_url};

/// Connections per pool: enough for the workers of a test, few enough for the shared server.
const POOL_SIZE: &str = "8";

pub(crate) struct TestStore {
    url: String,
    /// Options of the configuration, below `common.messaging`, and their values.
    settings: Vec<(&'static str, String)>,
    made: Made,
}

/// What was made for the test, to be removed after it.
enum Made {
    Nothing,
    Folder(#[expect(dead_code, reason = "removed when it is dropped")] TempDir),
    Schema(String),
    Database(String),
    VirtualHost(String),
}

/// A unique name.
pub(crate) fn own_name() -> String {
    format!("facade_{:016x}", rand::random::<u64>())
}

impl TestStore {
    pub(crate) fn memory() -> Self {
        Self { url: "memory:".to_owned(), settings: Vec::new(), made: Made::Nothing }
    }

    pub(crate) fn sqlite() -> Self {
        Self::on_disk(|folder| format!("sqlite:{}", folder.path().join("queues.db").display()))
    }

    pub(crate) fn spool() -> Self {
        Self::on_disk(|folder| format!("spool:{}", folder.path().join("queues").display()))
    }

    fn on_disk(url: impl Fn(&TempDir) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { url: url(&folder), settings: Vec::new(), made: Made::Folder(folder) }
    }

    pub(crate) fn postgres() -> Self {
        Self::in_a_schema("POSTRIDER_POSTGRES_URL")
    }

    /// A schema beside PGMQ's own. The queues are shared with other tests.
    pub(crate) fn pgmq() -> Self {
        Self::in_a_schema("POSTRIDER_PGMQ_URL")
    }

    fn in_a_schema(variable: &str) -> Self {
        let schema = own_name();
        let settings = vec![
            ("postgres.schema", schema.clone()),
            ("postgres.pool_size", POOL_SIZE.to_owned()),
            ("pgmq.schema", schema.clone()),
            ("pgmq.pool_size", POOL_SIZE.to_owned()),
        ];
        Self { url: server_url(variable), settings, made: Made::Schema(schema) }
    }

    pub(crate) async fn mariadb() -> Self {
        let settings = vec![("mysql.pool_size", POOL_SIZE.to_owned())];
        let name = own_name();
        at_mariadb(&format!("create database {name}")).await;
        let url = server_url("POSTRIDER_MYSQL_URL");
        let (server, _) = url.rsplit_once('/').unwrap();
        Self { url: format!("{server}/{name}"), settings, made: Made::Database(name) }
    }

    pub(crate) async fn rabbitmq() -> Self {
        let settings = vec![("rabbitmq.management_url", server_url("POSTRIDER_AMQP_MANAGEMENT_URL"))];
        let name = own_name();
        manage("PUT", &format!("/api/vhosts/{name}"), "{}").await;
        let url = server_url("POSTRIDER_AMQP_URL");
        let (broker, _) = url.rsplit_once('/').unwrap();
        Self { url: format!("{broker}/{name}"), settings, made: Made::VirtualHost(name) }
    }

    /// Queues of an emulator, shared with other tests; a prefix keeps the names unique.
    pub(crate) fn sqs() -> Self {
        let url = format!("{}{}-", server_url("POSTRIDER_SQS_URL"), own_name());
        Self { url, settings: Vec::new(), made: Made::Nothing }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint_by(&self.url)
    }

    /// The same store by another URL, for example through a proxy.
    pub(crate) fn endpoint_by(&self, url: &str) -> Endpoint {
        let named = Sources::none().flag("--url", "common.messaging.url", url);
        let sources = self.settings.iter().fold(named, |sources, (option, value)| {
            sources.flag("a setting of the test's", format!("common.messaging.{option}"), value)
        });
        Config::load(&sources).unwrap().endpoint().unwrap()
    }

    /// Opens a separate connection, as another process does.
    pub(crate) async fn connect(&self) -> MessagingProvider {
        self.endpoint().connect().await.unwrap()
    }

    pub(crate) async fn remove(self) {
        match self.made {
            Made::Nothing | Made::Folder(_) => {}
            Made::Schema(name) => {
                let client = postgres_client(&self.url).await;
                client.batch_execute(&format!("drop schema {name} cascade")).await.unwrap();
            }
            Made::Database(name) => at_mariadb(&format!("drop database {name}")).await,
            Made::VirtualHost(name) => drop(manage("DELETE", &format!("/api/vhosts/{name}"), "").await),
        }
    }
}

async fn at_mariadb(statement: &str) {
    let mut client = mysql_async::Conn::from_url(server_url("POSTRIDER_MYSQL_URL")).await.unwrap();
    client.query_drop(statement).await.unwrap();
    client.disconnect().await.unwrap();
}
