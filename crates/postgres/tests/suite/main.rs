//! PostgreSQL, judged from outside.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
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

/// A schema of a test's own, dropped afterwards.
struct Place {
    schema: String,
}

impl Place {
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

impl Drop for Place {
    fn drop(&mut self) {
        let drop_schema = format!("set lock_timeout = '20s'; drop schema if exists {} cascade", self.schema);
        // A thread of its own: a test's runtime may be the one that is dropping this.
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
        // What is cut off in one test must not be cut off in another.
        application_name: Some(schema.to_owned()),
        ..PostgresOptions::default()
    }
}

/// The server under test.
fn url() -> String {
    variable("POSTRIDER_POSTGRES_URL", "postgres")
}

/// What the environment says of a service.
fn variable(name: &str, services: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a server with `scripts/services up {services}`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// A plain connection, as any other program has it.
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

/// Whether the long runs were asked for.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
