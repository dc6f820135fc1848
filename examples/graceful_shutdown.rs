//! Stopping without losing anything: `cargo run --example graceful_shutdown`, then Ctrl-C, or `kill` from elsewhere.
//!
//! Twenty orders, two handlers at a time, two seconds each. At the first signal nothing new begins: orders that are
//! being packed are packed to the end, and those that were only fetched go back as if they had never been delivered. A
//! second signal waits for nobody.
//!
//! Arguments: the URL of a store, and how many milliseconds an order takes.

use std::time::Duration;

use postrider::subscriber::{CancellationToken, HandlerError, Shutdown, State, Subscriber, handler};
use postrider::{Deadline, Json, QueueName, TypedMessaging};

async fn pack(
    Json(order): Json<u32>,
    State(takes): State<Duration>,
    cancellation: CancellationToken,
) -> Result<(), HandlerError> {
    println!("order {order}: begun");
    tokio::select! {
        () = tokio::time::sleep(takes) => println!("order {order}: packed"),
        // The lease is lost, or the stop has run out of patience: it is time to put things down.
        () = cancellation.cancelled() => {
            println!("order {order}: left");
            return Err(HandlerError::retryable("told to leave"));
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = tempfile::tempdir()?;
    let file = format!("sqlite:{}", place.path().join("shop.db").display());
    let mut arguments = std::env::args().skip(1);
    let provider = postrider::connect(&arguments.next().unwrap_or(file)).await?;
    let takes = Duration::from_millis(arguments.next().map_or(Ok(2000), |text| text.parse())?);
    for order in 1..=20 {
        provider.send_typed(&QueueName::new("orders")?, &Json(order), Deadline::default()).await?;
    }

    let subscriber = Subscriber::builder(provider, "orders")
        .handler(handler(pack).with_state(takes))
        .max_workers(2)
        .graceful_timeout(Duration::from_secs(30))
        .build()?;
    let (monitor, shutdown) = (subscriber.monitor(), Shutdown::on_signals()?);
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    shutdown.requested().await;
    println!("stopping; once more to leave at once");
    let report = running.await?;
    println!("{} of 20 packed, {:?}", monitor.counts().acked, monitor.health().state);
    println!("{report}");
    if !report.is_clean() {
        return Err("some orders were left in the middle; they are delivered again".into());
    }
    Ok(())
}
