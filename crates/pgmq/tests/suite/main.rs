//! Tests of PGMQ through the public interface.

// The functions that tests share may unwrap like the tests.
#![allow(clippy::unwrap_used)]

mod adoption;
mod archive;
mod bodies;
mod cut_off;
mod delays;
mod doctor;
mod faults;
mod interop;
mod killed;
mod lawful;
mod locks;
mod order;
mod schema;
mod wake_ups;

use postrider_core::{Deadline, QueueName, QueuedMessage};
use postrider_core::{MessagingService, ReceiveOptions};
use postrider_pgmq::tokio_postgres::{Client, NoTls};
use postrider_pgmq::{PgmqOptions, PgmqProvider, PgmqStore};

/// A test's own schema, and queues with its prefix, all dropped afterwards.
struct Fixture {
    schema: String,
}

impl Fixture {
    fn new() -> Self {
        Self { schema: format!("t{:012x}", rand::random::<u64>() >> 16) }
    }

    fn options(&self) -> PgmqOptions {
        options(&self.schema)
    }

    /// A queue of the test's own.
    fn queue(&self, name: &str) -> QueueName {
        QueueName::new(format!("{}_{name}", self.schema)).expect("a queue's name")
    }

    async fn connect_with(&self, options: PgmqOptions) -> PgmqProvider {
        PgmqStore::open(&url(), options).await.expect("the database can be opened").connect().expect("a connection")
    }

    async fn connect(&self) -> PgmqProvider {
        self.connect_with(self.options()).await
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let schema = self.schema.clone();
        // A separate thread: this may be dropped inside a test's runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = client().await;
                client
                    .batch_execute(&format!("set lock_timeout = '20s'; drop schema if exists {schema} cascade"))
                    .await?;
                let queues = "select pgmq.drop_queue(queue_name) from pgmq.meta where queue_name like $1 || '\\_%'";
                client.execute(queues, &[&schema]).await
            })
        });
        let dropped = dropped.join();
        if !std::thread::panicking() {
            dropped.unwrap().expect("the schema and the queues can be dropped");
        }
    }
}

fn options(schema: &str) -> PgmqOptions {
    PgmqOptions {
        schema: schema.to_owned(),
        pool_size: 4,
        // Sessions are ended by this name, so it must be unique to the test.
        application_name: Some(schema.to_owned()),
        ..PgmqOptions::default()
    }
}

/// The server under test.
fn url() -> String {
    std::env::var("POSTRIDER_PGMQ_URL").unwrap_or_else(|_| {
        panic!(
            "POSTRIDER_PGMQ_URL is not set: start a server with `scripts/services up postgres pgmq`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Opens a plain connection, as any other client of PGMQ does.
async fn client() -> Client {
    let url = url();
    let url = url.strip_prefix("pgmq+").unwrap_or(&url);
    let (client, connection) = postrider_pgmq::tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Waits for a message.
async fn take(provider: &PgmqProvider, queue: &QueueName) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(std::time::Duration::from_secs(15));
    let received = provider.receive_messages(queue, &options, soon()).await.unwrap();
    received.into_iter().next().expect("a message")
}

/// Whether nothing can be received now.
async fn is_empty(provider: &PgmqProvider, queue: &QueueName) -> bool {
    provider.receive_messages(queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty()
}

/// Whether long runs are requested.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
