//! A stop that loses nothing: `cargo run --example graceful_shutdown`, then Ctrl-C or `kill`.
//!
//! Twenty orders, two handlers at a time, two seconds each. At the first signal no new handler starts: running ones finish,
//! and orders that were only fetched are released without a counted delivery. A second signal stops at once.
//!
//! Arguments: the URL of a store, and the time per order in milliseconds.

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
        // The lease is lost, or the grace of the stop is over: the handler must return.
        () = cancellation.cancelled() => {
            println!("order {order}: canceled");
            return Err(HandlerError::retryable("the worker is stopping"));
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
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
    println!("stopping; a second signal stops at once");
    let report = running.await?;
    println!("{} of 20 packed, {:?}", monitor.counts().acked, monitor.health().state);
    println!("{report}");
    if !report.is_clean() {
        return Err("some orders were canceled; they are delivered again".into());
    }
    Ok(())
}
