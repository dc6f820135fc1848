//! Finished work is not repeated: `cargo run --example idempotent`.
//!
//! A message is delivered at least once. Here the first order is delivered again after its booking, because its handler
//! failed, and the second order is sent twice. Each is booked once: the idempotency record commits together with the
//! booking, in the same file.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use postrider::sqlite::SqliteStore;
use postrider::sqlite::rusqlite::{Connection, TransactionBehavior};
use postrider::subscriber::layers::IdempotencyLayer;
use postrider::subscriber::{
    Attempt, BoxError, Extension, HandlerError, Monitor, Shutdown, State, Subscriber, handler,
};
use postrider::{
    Deadline, IdempotencyToken, Json, Message, MessagingProvider, MessagingService, QueueName, RetryStrategy,
};

#[derive(Clone)]
struct Bookings {
    store: SqliteStore,
    file: PathBuf,
}

impl Bookings {
    /// Books the order and records that it is done, in one transaction.
    fn book(&self, order: &str, token: &IdempotencyToken) -> Result<(), BoxError> {
        let mut connection = Connection::open(&self.file)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("insert into booked (item) values (?1)", [order])?;
        self.store.complete_in(&transaction, token)?;
        Ok(transaction.commit()?)
    }
}

async fn book(
    Json(order): Json<String>,
    Attempt(attempt): Attempt,
    Extension(token): Extension<IdempotencyToken>,
    State(bookings): State<Bookings>,
) -> Result<(), HandlerError> {
    println!("{order}: booking, attempt {attempt}");
    let is_tea = order == "tea";
    tokio::task::spawn_blocking(move || bookings.book(&order, &token)).await??;
    if is_tea {
        return Err(HandlerError::retryable("the mail server is down"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    let provider = postrider::connect(&std::env::args().nth(1).unwrap_or(file)).await?;
    let MessagingProvider::Sqlite(sqlite) = &provider else {
        return Err("the bookings are in the SQLite file of the queue; pass a sqlite: URL".into());
    };
    let bookings = Bookings { store: sqlite.store().clone(), file: sqlite.store().path().clone() };
    let own = Connection::open(&bookings.file)?;
    own.execute_batch("create table booked (item text)")?;
    let records = provider.idempotency_records().ok_or("this store has no idempotency records")?;

    let subscriber = Subscriber::builder(provider.clone(), "orders")
        .handler(handler(book).with_state(bookings))
        .layer(IdempotencyLayer::new(records).by_dedup_key())
        .retry_strategy(RetryStrategy::constant(Duration::from_millis(50)))
        .build()?;
    let (monitor, shutdown) = (subscriber.monitor(), Shutdown::new());
    let running = tokio::spawn(subscriber.run(shutdown.clone()));

    send(&provider, "tea").await?;
    send(&provider, "coffee").await?;
    acknowledged(&monitor, 2).await;
    send(&provider, "coffee").await?;
    acknowledged(&monitor, 3).await;
    shutdown.request();

    println!("{} messages acknowledged", running.await?.totals.acked);
    for item in ["tea", "coffee"] {
        let times: i64 = own.query_row("select count(*) from booked where item = ?1", [item], |row| row.get(0))?;
        println!("{item}: booked {times}×");
    }
    Ok(())
}

async fn send(provider: &MessagingProvider, item: &str) -> Result<(), Box<dyn Error>> {
    let message = Message::encode(&Json(item.to_owned()))?.dedup_key(item)?;
    provider.send_message(&QueueName::new("orders")?, message, Deadline::default()).await?;
    Ok(())
}

async fn acknowledged(monitor: &Monitor, messages: u64) {
    while monitor.counts().acked < messages {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
