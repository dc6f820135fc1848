//! Tests of PostgreSQL through the public interface.

// The functions that tests share may unwrap like the tests.
#![allow(clippy::unwrap_used)]

mod archive;
mod cut_off;
mod doctor;
#[cfg(feature = "tls")]
mod encryption;
mod faults;
mod floor;
mod killed;
mod lawful;
mod locks;
mod order;
mod pinned;
mod pooler;
mod schema;
mod soak;
mod tasks;
mod transactions;
mod wake_ups;

use postrider_core::{Deadline, QueueName};
use postrider_postgres::tokio_postgres::{Client, NoTls};
use postrider_postgres::{PostgresOptions, PostgresProvider, PostgresStore};

/// A test's own schema, dropped afterwards.
struct Fixture {
    schema: String,
}

impl Fixture {
    fn new() -> Self {
        Self { schema: format!("test_{:016x}", rand::random::<u64>()) }
    }

    fn options(&self) -> PostgresOptions {
        options(&self.schema)
    }

    async fn store_with(&self, options: PostgresOptions) -> PostgresStore {
        PostgresStore::open(&url(), options).await.expect("the database can be opened")
    }

    async fn connect_with(&self, options: PostgresOptions) -> PostgresProvider {
        self.store_with(options).await.connect().expect("a connection")
    }

    async fn connect(&self) -> PostgresProvider {
        self.connect_with(self.options()).await
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let drop_schema = format!("set lock_timeout = '20s'; drop schema if exists {} cascade", self.schema);
        // A separate thread: this may be dropped inside a test's runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { client().await.batch_execute(&drop_schema).await })
        });
        let dropped = dropped.join();
        if !std::thread::panicking() {
            dropped.unwrap().expect("the schema can be dropped");
        }
    }
}

fn options(schema: &str) -> PostgresOptions {
    PostgresOptions {
        schema: schema.to_owned(),
        pool_size: 4,
        // Sessions are ended by this name, so it must be unique to the test.
        application_name: Some(schema.to_owned()),
        ..PostgresOptions::default()
    }
}

/// The server under test.
fn url() -> String {
    variable("POSTRIDER_POSTGRES_URL", "postgres")
}

/// Returns the variable of a service.
fn variable(name: &str, services: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a server with `scripts/services up {services}`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Opens a plain connection, as any other program does.
async fn client() -> Client {
    let (client, connection) = postrider_postgres::tokio_postgres::connect(&url(), NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
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
