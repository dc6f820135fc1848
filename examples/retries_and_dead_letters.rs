//! Failed messages are retried, then dead-lettered: `cargo run --example retries_and_dead_letters`.
//!
//! Four orders: one succeeds, one needs a second attempt, one can never succeed, and one needs a new card of its customer.
//! The last two become dead letters; both are listed, and one is redriven.

use std::time::Duration;

use postrider::subscriber::{Attempt, Classify, HandlerError, Shutdown, State, Subscriber, handler};
use postrider::{
    DeadLetterReason, DeadLetterSelection, DeadLetters, Deadline, Json, MessagingProvider, QueueName, Redrive,
    RetryStrategy, TypedMessaging,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    litres: String,
}

/// The state of the customer.
#[derive(Clone, Copy)]
struct Customer {
    card_is_valid: bool,
}

async fn charge(
    Json(order): Json<Order>,
    Attempt(attempt): Attempt,
    State(customer): State<Customer>,
) -> Result<(), HandlerError> {
    println!("{}: attempt {attempt}", order.item);
    // `?` alone means a retry; `permanent` means a dead letter, because the text never becomes a number.
    let litres: u32 = order.litres.parse().permanent()?;
    match order.item.as_str() {
        // A handler may set the delay; otherwise the retry strategy does.
        "coffee" if attempt == 1 => {
            return Err(HandlerError::retry_after(Duration::from_millis(20), "the bank is busy"));
        }
        "juice" if !customer.card_is_valid => Err(std::io::Error::other("the card was refused"))?,
        _ => {}
    }
    println!("{}: charged for {litres}", order.item);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    let provider = postrider::connect(&std::env::args().nth(1).unwrap_or(file)).await?;
    let orders = QueueName::new("orders")?;
    for (item, litres) in [("tea", "1"), ("coffee", "2"), ("milk", "two"), ("juice", "3")] {
        let order = Order { item: item.into(), litres: litres.into() };
        provider.send_typed(&orders, &Json(order), Deadline::default()).await?;
    }

    work(&provider, Customer { card_is_valid: false }, 4).await?;

    let dead = provider.list_dead_letters(&orders, &Default::default(), Deadline::default()).await?;
    for letter in &dead.letters {
        let body = String::from_utf8_lossy(&letter.body);
        let error = letter.error.as_deref().unwrap_or_default();
        println!("dead: {body}: {} on delivery {}: {error}", letter.reason, letter.deliveries_count);
    }

    // The customer has a new card: redrive the message that ran out of attempts.
    let selection = DeadLetterSelection::Reason(DeadLetterReason::RETRIES_EXHAUSTED);
    let redrive = Redrive { selection, ..Redrive::default() };
    let report = provider.redrive_dead_letters(&orders, &redrive, Deadline::default()).await?;
    println!("redriven: {}", report.redriven.len());
    work(&provider, Customer { card_is_valid: true }, 1).await
}

/// Works until this many messages are done or dead.
async fn work(
    provider: &MessagingProvider,
    customer: Customer,
    messages: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let subscriber = Subscriber::builder(provider.clone(), "orders")
        .handler(handler(charge).with_state(customer))
        .retry_strategy(RetryStrategy::constant(Duration::from_millis(50)).with_max_attempts(3))
        .build()?;
    let (monitor, shutdown) = (subscriber.monitor(), Shutdown::new());
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    while monitor.counts().acked + monitor.counts().dead < messages {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shutdown.request();
    let totals = running.await?.totals;
    println!("{} done, {} retries, {} dead", totals.acked, totals.retried, totals.dead);
    Ok(())
}
