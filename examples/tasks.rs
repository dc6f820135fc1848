//! Tasks: `cargo run --example tasks`, or with the URL of a store as an argument.
//!
//! A handler sends three invoices. One succeeds at once, one at its second attempt, and one can never succeed: it dies, is
//! edited and replayed.

use std::time::Duration;

use postrider::config::{Config, Sources};
use postrider::tasks::{Classify, HandlerError, Shutdown, TaskContext, TaskKeeperOptions, TaskKind, TaskResultError};
use postrider::{Deadline, Json, RetryStrategy, SystemContext};

#[derive(serde::Serialize, serde::Deserialize)]
struct SendInvoice {
    order: String,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Sent {
    order: u64,
    attempt: u32,
}

impl TaskKind for SendInvoice {
    const TYPE: &'static str = "invoice.send";
    type Result = Sent;
}

async fn send_invoice(Json(invoice): Json<SendInvoice>, task: TaskContext) -> Result<Sent, HandlerError> {
    let order: u64 = invoice.order.parse().permanent()?; // never retried
    if order == 8 && task.attempt() == 1 {
        return Err("the mail server is busy".into()); // retried by the task's strategy
    }
    task.progress(0.9, "almost there")?;
    Ok(Sent { order, attempt: task.attempt() })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    let url = std::env::args().nth(1).unwrap_or(file);
    let system =
        SystemContext::from_config(Config::load(&Sources::none().flag("URL", "common.messaging.url", &url))?).await?;
    let tasks = system.tasks().await?;

    let shutdown = Shutdown::new();
    let keeper = tokio::spawn(tasks.keeper(TaskKeeperOptions::default()).run(shutdown.clone()));
    let worker = tasks.worker().handler_of::<SendInvoice, _>(send_invoice).build()?;
    let worker = tokio::spawn(worker.run(shutdown.clone()));

    let client = tasks.client();
    let soon = RetryStrategy::constant(Duration::from_millis(20));
    for order in ["7", "8", "nine"] {
        let invoice = SendInvoice { order: order.to_owned() };
        let task = invoice.new_task()?.retry_strategy(soon.clone()).tag("november");
        let id = client.create(task, Deadline::default()).await?.id;
        let sent = match client.result::<SendInvoice>(id, Deadline::default()).await {
            Err(TaskResultError::NotSucceeded { state, error, .. }) => {
                println!("{order}: {state}, {error}");
                let edited = SendInvoice { order: "9".to_owned() }.new_task()?.payload;
                client.edit(id, edited, Deadline::default()).await?;
                client.replay(id, Deadline::default()).await?;
                client.result::<SendInvoice>(id, Deadline::default()).await?
            }
            sent => sent?,
        };
        println!("{order}: order {} was sent by attempt {}", sent.order, sent.attempt);
    }

    shutdown.request();
    keeper.await??;
    println!("{}", worker.await??.counts);
    system.close(Deadline::default()).await?;
    Ok(())
}
