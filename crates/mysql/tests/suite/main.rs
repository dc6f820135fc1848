//! Tests of MariaDB through the public interface.

// The functions that tests share may unwrap like the tests.
#![allow(clippy::unwrap_used)]

mod archive;
mod claims;
mod cut_off;
mod doctor;
#[cfg(feature = "tls")]
mod encryption;
mod faults;
mod idle;
mod killed;
mod lawful;
mod locks;
mod operators_page;
mod order;
mod schema;
mod sends;
mod transactions;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use postrider_core::{Deadline, QueueName};
use postrider_mysql::{MysqlOptions, MysqlProvider, MysqlStore, mysql_async};

/// A test's own database, dropped afterwards.
struct Fixture {
    name: String,
}

impl Fixture {
    fn new() -> Self {
        let name = format!("test_{:016x}", rand::random::<u64>());
        at_server(format!("create database {name}"));
        Self { name }
    }

    fn url(&self) -> String {
        database_url(&self.name)
    }

    async fn store_with(&self, options: MysqlOptions) -> MysqlStore {
        MysqlStore::open(&self.url(), options).await.expect("the database can be opened")
    }

    async fn connect_with(&self, options: MysqlOptions) -> MysqlProvider {
        self.store_with(options).await.connect().expect("a connection")
    }

    async fn connect(&self) -> MysqlProvider {
        self.connect_with(options()).await
    }

    /// Opens a plain connection, as any other program does.
    async fn client(&self) -> Conn {
        Conn::from_url(self.url()).await.expect("a connection")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let name = self.name.clone();
        let dropped = std::panic::catch_unwind(move || at_server(format!("drop database if exists {name}")));
        if !std::thread::panicking() {
            dropped.expect("the database can be dropped");
        }
    }
}

/// Runs a statement on a separate thread, because a test's runtime may be waiting.
fn at_server(statement: String) {
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = Conn::from_url(url()).await.expect("a connection");
            client.query_drop(statement).await.expect("the right to do it");
            client.disconnect().await
        })
    });
    done.join().unwrap().unwrap();
}

fn options() -> MysqlOptions {
    MysqlOptions { pool_size: 4, ..MysqlOptions::default() }
}

/// The server under test.
fn url() -> String {
    variable("POSTRIDER_MYSQL_URL")
}

/// Returns a variable of the environment.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a server with `scripts/services up mysql`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

fn database_url(name: &str) -> String {
    let url = url();
    let (server, _) = url.rsplit_once('/').expect("the URL names a database");
    format!("{server}/{name}")
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Whether long runs are requested.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
