//! `docs/guarantees.md` says what the suite finds on every provider today.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture, join_all};
use mysql_async::prelude::Queryable;
use postrider::config::{MessagingConfig, PgmqConfig, PostgresConfig};
use postrider::mysql::mysql_async;
use postrider::{Config, Endpoint, MessagingError, MessagingProvider, Sources};
use postrider_conformance::guarantees::{Section, page};
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Harness, Settings, StormSettings};
use postrider_sqlite::rusqlite::Connection;

use crate::pages::ensure_up_to_date;
use crate::server::{manage, postgres_client, server_url};

/// Takes a store away and brings it back.
type Restart = Arc<dyn Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync>;

/// A store that users reach by a URL.
#[derive(Clone)]
struct Store {
    endpoint: Endpoint,
    restart: Option<Restart>,
}

impl Store {
    fn at(url: &str) -> Self {
        Self { endpoint: url.parse().unwrap(), restart: None }
    }

    fn restarted_by(
        self,
        restart: impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static,
    ) -> Self {
        Self { restart: Some(Arc::new(restart)), ..self }
    }

    /// Tries the law on it.
    fn try_law(self, tried: &'static str) -> LocalBoxFuture<'static, Section> {
        async move { Section::of(self, settings(), tried).await.unwrap() }.boxed_local()
    }
}

impl Harness for Store {
    type Provider = MessagingProvider;

    async fn open(&self) -> Result<MessagingProvider, MessagingError> {
        self.endpoint.connect().await
    }

    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        self.restart.as_ref().map(|restart| restart())
    }
}

fn settings() -> Settings {
    Settings { seed: 1, storm: StormSettings { messages: 500, ..StormSettings::default() }, ..Settings::default() }
}

/// Another program holds the file locked for a moment: all that can take a file away that several processes use.
fn lock_for_a_moment(file: PathBuf) -> BoxFuture<'static, Result<(), MessagingError>> {
    Box::pin(async move {
        let other = Connection::open(file).unwrap();
        other.busy_timeout(Duration::from_secs(10)).unwrap();
        other.execute_batch("begin immediate").unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.execute_batch("rollback").unwrap();
        Ok(())
    })
}

/// The folder is not where it was for a moment, as when its disk is mounted anew.
fn take_away_for_a_moment(folder: PathBuf) -> BoxFuture<'static, Result<(), MessagingError>> {
    Box::pin(async move {
        let away = folder.with_extension("away");
        std::fs::rename(&folder, &away).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::fs::rename(&away, &folder).unwrap();
        Ok(())
    })
}

/// A schema of this test's own.
struct Database {
    url: String,
    name: String,
}

impl Database {
    /// Sessions are ended by this name, and two databases may be on one server.
    fn new(variable: &str) -> Self {
        let name = format!("guarantees_{}_{}", std::process::id(), variable.to_lowercase());
        Self { url: server_url(variable), name }
    }

    fn endpoint(&self) -> Endpoint {
        let postgres = PostgresConfig { schema: self.name.clone(), ..PostgresConfig::default() };
        let pgmq = PgmqConfig { schema: self.name.clone(), ..PgmqConfig::default() };
        let settings = MessagingConfig { postgres, pgmq, ..MessagingConfig::default() };
        Endpoint::new(&format!("{}?application_name={}", self.url, self.name), &settings).unwrap()
    }

    /// Ends every session of the workers, for a while.
    fn cut(&self) -> impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static {
        let (url, name) = (self.url.clone(), self.name.clone());
        move || {
            let (url, name) = (url.clone(), name.clone());
            Box::pin(async move {
                let client = postgres_client(&url).await;
                let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
                for _ in 0..15 {
                    client.query(end, &[&name]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            })
        }
    }

    async fn remove(&self) {
        postgres_client(&self.url).await.batch_execute(&format!("drop schema {} cascade", self.name)).await.unwrap();
    }
}

/// Where an emulator of SQS is.
fn emulator_url() -> String {
    std::env::var("POSTRIDER_SQS_URL").unwrap_or_else(|_| {
        panic!(
            "POSTRIDER_SQS_URL is not set: start an emulator with `scripts/services up sqs`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Cuts every connection, for a while.
fn cuts(proxy: Arc<FaultProxy>) -> impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static {
    move || {
        let proxy = proxy.clone();
        Box::pin(async move {
            for _ in 0..15 {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
    }
}

/// A MariaDB database of this test's own.
struct Tables {
    server: String,
    name: String,
}

impl Tables {
    async fn new() -> Self {
        let server = std::env::var("POSTRIDER_MYSQL_URL").unwrap_or_else(|_| {
            panic!(
                "POSTRIDER_MYSQL_URL is not set: start a server with `scripts/services up mysql`, then \
                 `eval \"$(scripts/services env)\"`"
            )
        });
        let tables = Self { server, name: format!("guarantees_{}", std::process::id()) };
        tables.client().await.query_drop(format!("create database {}", tables.name)).await.unwrap();
        tables
    }

    fn endpoint(&self) -> Endpoint {
        let (server, _) = self.server.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name).parse().unwrap()
    }

    async fn client(&self) -> mysql_async::Conn {
        mysql_async::Conn::from_url(&self.server).await.unwrap()
    }

    /// Ends every session of the workers, for a while.
    fn cut(&self) -> impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static {
        let (server, name) = (self.server.clone(), self.name.clone());
        move || {
            let (server, name) = (server.clone(), name.clone());
            Box::pin(async move {
                let mut client = mysql_async::Conn::from_url(&server).await.unwrap();
                let sessions = format!("select id from information_schema.processlist where db = '{name}'");
                for _ in 0..15 {
                    let ids: Vec<u64> = client.query(&sessions).await.unwrap();
                    for id in ids {
                        // It may have ended by itself.
                        let _ = client.query_drop(format!("kill {id}")).await;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            })
        }
    }

    async fn remove(&self) {
        self.client().await.query_drop(format!("drop database {}", self.name)).await.unwrap();
    }
}

/// A virtual host of this test's own.
struct VirtualHost(String);

impl VirtualHost {
    async fn new() -> Self {
        let name = format!("guarantees_{}", std::process::id());
        manage("PUT", &format!("/api/vhosts/{name}"), "{}").await;
        Self(name)
    }

    fn endpoint(&self) -> Endpoint {
        let url = server_url("POSTRIDER_AMQP_URL");
        let (broker, _) = url.rsplit_once('/').unwrap();
        let toml = format!(
            "[common.messaging]\nurl = '{broker}/{}'\n[common.messaging.rabbitmq]\nmanagement_url = '{}'\n",
            self.0,
            server_url("POSTRIDER_AMQP_MANAGEMENT_URL")
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postrider.toml");
        std::fs::write(&file, toml).unwrap();
        Config::load(&Sources::none().file(file)).unwrap().endpoint().unwrap()
    }

    /// Ends every connection of the workers, for a while.
    fn cut(&self) -> impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static {
        let path = format!("/api/vhosts/{}/connections", self.0);
        move || {
            let path = path.clone();
            Box::pin(async move {
                for _ in 0..15 {
                    let all: Vec<serde_json::Value> = serde_json::from_str(&manage("GET", &path, "").await).unwrap();
                    for connection in all {
                        let name = connection["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
                        // It may have ended by itself.
                        manage("DELETE", &format!("/api/connections/{name}"), "").await;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            })
        }
    }

    async fn remove(&self) {
        manage("DELETE", &format!("/api/vhosts/{}", self.0), "").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guarantees_page_is_up_to_date() {
    // In main memory where that is a place for files: what is measured here is no matter of the disk's speed.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (file, spool) = (folder.path().join("queues.db"), folder.path().join("queues"));

    let database = Database::new("POSTRIDER_POSTGRES_URL");
    let pgmq = Database::new("POSTRIDER_PGMQ_URL");
    let tables = Tables::new().await;
    let broker = VirtualHost::new().await;
    let proxy = Arc::new(FaultProxy::before(&emulator_url()).await.unwrap());
    let queues: Endpoint = format!("{}guarantees-", proxy.url()).parse().unwrap();
    let tried = [
        Store::at("memory:").try_law("All workers share one store in the suite's process."),
        Store::at(&format!("sqlite:{}", file.display())).restarted_by(move || lock_for_a_moment(file.clone())).try_law(
            "Every worker opens the same file for itself, as other processes do. There is no server to restart: for \
             L14 another program holds the file locked. [More about it](sqlite.md).",
        ),
        Store::at(&format!("spool:{}", spool.display())).restarted_by(move || take_away_for_a_moment(spool.clone())).try_law(
            "All workers share what one process knows of the folder. There is no server to restart: for L14 the folder is \
             renamed away and put back. [More about it](spool.md).",
        ),
        Store { endpoint: database.endpoint(), restart: None }.restarted_by(database.cut()).try_law(
            "The workers share a schema and a pool of connections. For L14 the server ends all of their sessions, again \
             and again. [More about it](postgres.md).",
        ),
        Store { endpoint: tables.endpoint(), restart: None }.restarted_by(tables.cut()).try_law(
            "Tried on MariaDB. The workers share a database and a pool of connections. For L14 the server ends all of \
             their sessions, again and again. [More about it](mysql.md).",
        ),
        Store { endpoint: pgmq.endpoint(), restart: None }.restarted_by(pgmq.cut()).try_law(
            "Tried on PGMQ 1.11.1, loaded as plain SQL. The workers share a database and a pool of connections. For L14 \
             the server ends all of their sessions, again and again. [More about it](pgmq.md).",
        ),
        Store { endpoint: broker.endpoint(), restart: None }.restarted_by(broker.cut()).try_law(
            "Tried on RabbitMQ 3.10 with quorum queues, on one node. Every worker has a connection of its own, as other \
             processes do. For L14 the broker ends all of them, again and again. [More about it](rabbitmq.md).",
        ),
        Store { endpoint: queues, restart: None }.restarted_by(cuts(proxy)).try_law(
            "Tried on an **emulator**, ministack, and with fewer messages on a second one, moto; not on Amazon's service. \
             Neither can show what the service alone does: messages that a standard queue hands out twice or out of order, \
             counts that lag, throttling, what becomes of a late receipt there. Moto deletes by a late receipt, which our \
             own fence keeps from being sent, and hands one message to two who receive at the same moment, so that is not \
             judged there. The workers share a client; for L14 all of their connections are cut, again and again. [More \
             about it](sqs.md).",
        ),
    ];

    let sections = join_all(tried).await;
    let unlawful = |section: &&Section| !section.report.is_lawful() || section.report.left_behind.is_some();
    let broken: String = sections.iter().filter(unlawful).map(|section| section.report.to_string()).collect();
    assert!(broken.is_empty(), "\n{broken}");
    database.remove().await;
    pgmq.remove().await;
    tables.remove().await;
    broker.remove().await;
    ensure_up_to_date("guarantees.md", &page(&sections), "guarantees");
}
