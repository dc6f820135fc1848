//! Tasks: `cargo run --example tasks`, or with the URL of a store as an argument.
//!
//! A handler sends three invoices. One succeeds at once, one at its second attempt, and one can never succeed: it dies, is
//! edited and replayed.

use std::time::Duration;

use postrider::config::{Config, Sources};
use postrider::task::TaskState;
use postrider::tasks::{Classify, HandlerError, Shutdown, TaskContext, TaskKeeperOptions};
use postrider::{Deadline, Json, NewTask, RetryStrategy, SystemContext};

#[derive(serde::Serialize, serde::Deserialize)]
struct Sent {
    order: u64,
    attempt: u32,
}

async fn send_invoice(task: TaskContext) -> Result<Json<Sent>, HandlerError> {
    let text = String::from_utf8_lossy(task.payload()).into_owned();
    let order: u64 = text.parse().permanent()?; // never retried
    if order == 8 && task.attempt() == 1 {
        return Err("the mail server is busy".into()); // retried by the task's strategy
    }
    task.progress(0.9, "almost there")?;
    Ok(Json(Sent { order, attempt: task.attempt() }))
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
    let worker = tokio::spawn(tasks.worker().handler("invoice.send", send_invoice).build()?.run(shutdown.clone()));

    let client = tasks.client();
    let soon = RetryStrategy::constant(Duration::from_millis(20));
    for order in ["7", "8", "nine"] {
        let task = NewTask::new("invoice.send", order)?.retry_strategy(soon.clone()).tag("november");
        let created = client.create(task, Deadline::default()).await?;
        let mut ended = client.ended(created.id, Deadline::default()).await?;
        if ended.info.state == TaskState::Dead {
            println!("{order}: dead, {}", ended.info.last_error.unwrap_or_default());
            client.edit(created.id, "9".into(), Deadline::default()).await?;
            client.replay(created.id, Deadline::default()).await?;
            ended = client.ended(created.id, Deadline::default()).await?;
        }
        let result = String::from_utf8_lossy(&ended.result.unwrap_or_default()).into_owned();
        println!("{order}: {}, {result}", ended.info.state);
    }

    shutdown.request();
    keeper.await??;
    println!("{}", worker.await??.counts);
    system.close(Deadline::default()).await?;
    Ok(())
}
