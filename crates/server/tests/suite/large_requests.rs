//! A client splits requests that are too large for its server.

use std::time::Duration;

use futures_util::future::join_all;
use postrider::http::{HttpOptions, HttpProvider, HttpStore, HttpTasks};
use postrider::task::{ClaimAnswer, ClaimTasks, Finish, Heartbeat, NewTask, TaskOutcome, TaskStanding};
use postrider::{
    Deadline, Message, MessagingService, Nack, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, Settlement,
    TaskStore, TaskType,
};
use postrider_server::ServerOptions;

use crate::test_server::TestServer;

const MANY: usize = 100;

async fn narrow() -> (TestServer, HttpProvider) {
    let server = TestServer::with(ServerOptions { max_request_bytes: 4096, ..ServerOptions::default() }).await;
    let store = HttpStore::open(&format!("http://{}", server.address), HttpOptions::default()).await.unwrap();
    (server, store.connect().unwrap())
}

/// Leases of that many messages.
async fn leased(client: &HttpProvider, queue: &QueueName) -> Vec<ReceiptHandle> {
    let messages = (0..MANY).map(|_| Message::new("a")).collect();
    let sent = client.send_batch(queue, messages, Deadline::default()).await.unwrap();
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let options = ReceiveOptions::batch(MANY).visibility(Duration::from_secs(600));
    let received = client.receive_messages(queue, &options, Deadline::default()).await.unwrap();
    assert_eq!(received.len(), MANY);
    received.into_iter().map(QueuedMessage::into_receipt).collect()
}

#[tokio::test]
async fn leases_are_extended_and_settled() {
    let (server, client) = narrow().await;
    let queue = QueueName::new("orders").unwrap();
    let receipts = leased(&client, &queue).await;
    let extend = |receipt| {
        let (client, queue) = (&client, &queue);
        async move { client.extend_visibility(queue, receipt, Duration::from_secs(60), Deadline::default()).await }
    };
    for extended in join_all(receipts.iter().map(extend)).await {
        extended.unwrap();
    }
    let error = "x".repeat(100);
    let retry = |receipt| Settlement::nack(receipt, Nack::retry_after(Duration::ZERO).with_error(&error));
    let settled = client.settle(receipts.into_iter().map(retry).collect(), Deadline::default()).await.unwrap();
    assert!(settled.len() == MANY && settled.iter().all(Result::is_ok), "{settled:?}");
    server.stop().await;
}

#[tokio::test]
async fn leases_are_settled_before_others_are_claimed() {
    let (server, client) = narrow().await;
    let queue = QueueName::new("orders").unwrap();
    let first = leased(&client, &queue).await;
    client.send_message(&queue, Message::new("next"), Deadline::default()).await.unwrap();
    let settlements = first.into_iter().map(Settlement::ack).collect();
    let options = ReceiveOptions::batch(MANY);
    let round = client.settle_and_receive(settlements, &[queue], &options, Deadline::default()).await.unwrap();
    assert!(round.settled.len() == MANY && round.settled.iter().all(Result::is_ok), "{round:?}");
    assert_eq!(round.received.unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn attempts_are_finished_before_others_are_claimed() {
    let (server, client) = narrow().await;
    let tasks = HttpTasks::open(client, Deadline::default()).await.unwrap();
    let kind = TaskType::new("mail").unwrap();
    let new: Vec<_> = (0..20).map(|_| NewTask::new("mail", vec![b'x'; 1000]).unwrap()).collect();
    let ids: Vec<_> = new.iter().map(|task| task.id).collect();
    let made = tasks.create(new, Deadline::default()).await.unwrap();
    assert_eq!(made.into_iter().map(|row| row.unwrap().id).collect::<Vec<_>>(), ids);
    let claim = ClaimTasks { types: vec![kind], max: 19, lease: Duration::from_secs(60), worker: "w".into() };
    let claimed = tasks.claim(claim.clone(), Deadline::default()).await.unwrap().claimed;
    let result = Some(vec![b'x'; 1000].into());
    let end = |lease| Finish { lease, outcome: TaskOutcome::Succeeded { result: result.clone() } };
    let ends: Vec<_> = claimed.into_iter().map(|task| end(task.lease)).collect();
    let both = tasks.finish_and_claim(ends, Some(claim), Deadline::default()).await.unwrap();
    assert_eq!(both.finished, [TaskStanding::Held; 19]);
    assert_eq!(both.claimed.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn more_task_leases_are_extended_and_finished_than_fit_into_a_request() {
    const TASKS: usize = 1001;
    let server = TestServer::new().await;
    let store = HttpStore::open(&format!("http://{}", server.address), HttpOptions::default()).await.unwrap();
    let tasks = HttpTasks::open(store.connect().unwrap(), Deadline::default()).await.unwrap();
    let new: Vec<_> = (0..TASKS).map(|_| NewTask::new("mail", "").unwrap()).collect();
    let ids: Vec<_> = new.iter().map(|task| task.id).collect();
    tasks.create(new, Deadline::default()).await.unwrap();
    let lasts = Duration::from_secs(60);
    let answers = tasks.claim_by_id(&ids, lasts, "w", Deadline::default()).await.unwrap();
    let lease = |answer| match answer {
        ClaimAnswer::Claimed(task) => task.lease,
        other => panic!("{other:?}"),
    };
    let leases: Vec<_> = answers.into_iter().map(lease).collect();
    let beats = leases.iter().map(|lease| Heartbeat { lease: *lease, progress: None }).collect();
    let held = vec![TaskStanding::Held; TASKS];
    assert_eq!(tasks.heartbeat(beats, lasts, Deadline::default()).await.unwrap(), held);
    assert_eq!(tasks.standings(&leases, Deadline::default()).await.unwrap(), held);
    let ends = leases.into_iter().map(|lease| Finish { lease, outcome: TaskOutcome::Released }).collect();
    assert_eq!(tasks.finish(ends, Deadline::default()).await.unwrap(), held);
    server.stop().await;
}
