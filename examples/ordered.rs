//! Messages of one key are handled one at a time, in order: `cargo run --example ordered`.
//!
//! Two accounts, three entries each, eight handlers. The entries of an account are booked in send order, even when one
//! fails and is retried: the later entries of its account wait. The other account does not.

use std::time::Duration;

use postrider::subscriber::{Attempt, HandlerError, OrderingKey, Shutdown, Subscriber};
use postrider::{Deadline, Json, Message, MessagingService, QueueName, RetryStrategy};

async fn book(
    Json(entry): Json<u32>,
    OrderingKey(account): OrderingKey,
    Attempt(attempt): Attempt,
) -> Result<(), HandlerError> {
    let account = account.ok_or_else(|| HandlerError::permanent("the entry has no account"))?;
    if account.as_str() == "anna" && entry == 2 && attempt == 1 {
        println!("{account}: entry {entry} failed");
        return Err(HandlerError::retryable("the ledger is locked"));
    }
    println!("{account}: entry {entry}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let provider = postrider::connect(&std::env::args().nth(1).unwrap_or(file)).await?;
    let entries = QueueName::new("entries")?;
    for entry in 1..=3 {
        for account in ["anna", "ben"] {
            let message = Message::encode(&Json(entry))?.ordering_key(account)?;
            provider.send_message(&entries, message, Deadline::default()).await?;
        }
    }

    let subscriber = Subscriber::builder(provider, "entries")
        .handler(book)
        .max_workers(8)
        .retry_strategy(RetryStrategy::constant(Duration::from_millis(100)))
        .build()?;
    let (monitor, shutdown) = (subscriber.monitor(), Shutdown::new());
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    while monitor.counts().acked < 6 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shutdown.request();
    println!("{} booked", running.await?.totals.acked);
    Ok(())
}
