//! A worker in 20 lines: `cargo run --example worker`, or with the URL of a store as an argument.
//!
//! It sends one order to itself and stops once it is packed. A real worker receives messages of other programs and stops
//! with `Shutdown::on_signals()`.

use postrider::subscriber::{HandlerError, Shutdown, State, Subscriber, handler};
use postrider::{Deadline, Json, TypedMessaging};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    item: String,
}

async fn pack(Json(order): Json<Order>, State(shutdown): State<Shutdown>) -> Result<(), HandlerError> {
    println!("packed {}", order.item);
    shutdown.request();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = postrider::connect(&std::env::args().nth(1).unwrap_or("memory:".into())).await?;
    provider.send_typed(&"orders".parse()?, &Json(Order { item: "tea".into() }), Deadline::default()).await?;
    let shutdown = Shutdown::new();
    let pack = handler(pack).with_state(shutdown.clone());
    Subscriber::builder(provider, "orders").handler(pack).build()?.run(shutdown).await;
    Ok(())
}
