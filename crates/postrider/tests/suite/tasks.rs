//! Tasks of an application with configured stores.

mod processes;

use std::time::Duration;

use postrider::config::{Config, Sources};
use postrider::task::{Post, TaskMode, TaskState, TaskStore};
use postrider::tasks::{HandlerError, Shutdown, TaskContext, TaskKeeperOptions};
use postrider::{Deadline, MessagingService, NewTask, QueueAdmin, QueueName, ReceiveOptions, SystemContext};

async fn shout(task: TaskContext) -> Result<String, HandlerError> {
    Ok(String::from_utf8_lossy(task.payload()).to_uppercase())
}

async fn refuse(_: TaskContext) -> Result<(), HandlerError> {
    Err(HandlerError::permanent("no"))
}

/// Runs a task that succeeds and one that dies, and finds the dead-task event in the message store.
async fn run_two_tasks(sources: Sources, post: Post) {
    // A unique name, because the servers are shared.
    let events = format!("e{:08x}", rand::random::<u32>());
    let sources = sources.flag("--events", "tasks.dead_events", &events);
    let config = Config::load(&sources).unwrap();
    let mode = config.task_routes().mode;
    let system = SystemContext::from_config(config).await.unwrap();
    let tasks = system.tasks().await.unwrap();
    assert_eq!((tasks.client().store().routes().mode, tasks.client().store().routes().post), (mode, post));
    let shutdown = Shutdown::new();
    let worker = tasks.worker().handler("shout", shout).handler("refuse", refuse).build().unwrap();
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    let keeper = tokio::spawn(tasks.keeper(TaskKeeperOptions::default()).run(shutdown.clone()));
    let client = tasks.client();
    let made = client.create(NewTask::new("shout", "tea").unwrap(), Deadline::default()).await.unwrap();
    let dying = client.create(NewTask::new("refuse", "").unwrap(), Deadline::default()).await.unwrap();
    let done = client.ended(made.id, Deadline::default()).await.unwrap();
    assert_eq!((done.info.state, done.result.as_deref()), (TaskState::Succeeded, Some(&b"TEA"[..])));
    assert_eq!(client.ended(dying.id, Deadline::default()).await.unwrap().info.state, TaskState::Dead);
    let dead = QueueName::new(&events).unwrap();
    let options = ReceiveOptions::default().wait(Duration::from_secs(10));
    let event = system.messaging_provider.receive_messages(&dead, &options, Deadline::default()).await.unwrap();
    let told: postrider::task::DeadTaskEvent = serde_json::from_slice(&event[0].message).unwrap();
    assert_eq!(told.task_id, dying.id);
    drop(event);
    shutdown.request();
    worker.await.unwrap().unwrap();
    keeper.await.unwrap().unwrap();
    // Other tests read everything on a server.
    let queue = |name: &str| client.store().routes().queue(&name.parse().unwrap()).unwrap();
    for queue in [queue("shout"), queue("refuse"), dead] {
        system.messaging_provider.delete_queue(&queue, Deadline::default()).await.unwrap();
    }
    system.close(Deadline::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_go_over_any_store_by_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    for mode in TaskMode::ALL {
        let sources = |url: &str| {
            Sources::none().flag("--url", "common.messaging.url", url).flag("--mode", "tasks.mode", mode.name())
        };
        run_two_tasks(sources(&sqlite(&format!("{mode}.db"))), Post::Here).await;
        let state = sqlite(&format!("{mode}-state.db"));
        let spool = format!("spool:{}", folder.path().join(mode.name()).display());
        for url in ["memory:", &spool] {
            run_two_tasks(sources(url).flag("--state", "state.url", &state), Post::Outbox).await;
        }
    }
}

async fn run_over_server(variable: &str) {
    let folder = tempfile::tempdir().unwrap();
    let state = format!("sqlite:{}", folder.path().join("state.db").display());
    let prefix = format!("t{:08x}_", rand::random::<u32>());
    let sources = Sources::none()
        .flag("--url", "common.messaging.url", crate::server::server_url(variable))
        .flag("--mode", "tasks.mode", "queue")
        .flag("--prefix", "tasks.queue_prefix", &prefix)
        .flag("--state", "state.url", &state);
    run_two_tasks(sources, Post::Outbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_go_over_a_broker_by_the_same_line() {
    run_over_server("POSTRIDER_AMQP_URL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "tasks over every store: scripts/test --full"]
async fn tasks_go_over_every_server_by_the_same_line() {
    for variable in ["POSTRIDER_MYSQL_URL", "POSTRIDER_PGMQ_URL", "POSTRIDER_SQS_URL"] {
        run_over_server(variable).await;
    }
}
