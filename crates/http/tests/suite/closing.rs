//! Closing: no call starts, waits end, running calls finish.

use std::sync::Mutex;
use std::time::Duration;

use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueAdmin, ReceiveOptions, Settlement};
use serde_json::json;
use tokio::sync::oneshot;

use crate::fake::{Fake, Reply, http_receipt};
use crate::{queue, soon};

#[tokio::test]
async fn a_waiting_receive_ends_with_its_request() {
    let fake = Fake::start(|_| Reply::Hang).await;
    let provider = fake.connect().await;
    let waiting = {
        let provider = provider.clone();
        let options = ReceiveOptions::default().wait(Duration::from_secs(3600));
        tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, Deadline::never()).await })
    };
    let seen = fake.seen().await;
    provider.close(soon()).await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_empty());
    assert_eq!(fake.gone().await, seen.connection);
}

#[tokio::test]
async fn running_calls_finish_and_new_ones_are_refused() {
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let fake = Fake::start(move |seen| {
        let answer = json!({"id": seen.body["id"], "queue": "orders"});
        match gate.lock().unwrap().take() {
            Some(gate) => Reply::Gate(gate, answer),
            None => Reply::ok(answer),
        }
    })
    .await;
    let provider = fake.connect().await;
    let send = |body: &'static str| {
        let provider = provider.clone();
        async move { provider.send_message(&queue("orders"), Message::new(body), soon()).await }
    };
    let running = tokio::spawn(send("running"));
    fake.seen().await;
    let mut queued = Box::pin(send("queued"));
    assert!(futures_util::poll!(&mut queued).is_pending());
    let mut close = Box::pin(provider.close(soon()));
    assert!(futures_util::poll!(&mut close).is_pending(), "it waits for running calls");
    let refused = [
        send("late").await.unwrap_err(),
        provider.receive_messages(&queue("orders"), &ReceiveOptions::default(), soon()).await.unwrap_err(),
        provider.settle(vec![Settlement::ack(http_receipt("orders"))], soon()).await.unwrap_err(),
        provider.queue_stats(&queue("orders"), soon()).await.unwrap_err(),
        provider.subscribe(&queue("orders"), soon()).await.unwrap_err(),
        provider.health_check(soon()).await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, MessagingError::Closed { provider: "http" }), "{error:?}");
    }
    open.send(()).unwrap();
    close.await.unwrap();
    running.await.unwrap().unwrap();
    queued.await.unwrap();
    assert_eq!(fake.rest().await.len(), 1, "only the queued one");
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn each_connection_is_closed_by_itself() {
    let fake = Fake::start(|_| Reply::ok(json!({"ok": true}))).await;
    let provider = fake.connect().await;
    let other = provider.store().connect().unwrap();
    provider.close(soon()).await.unwrap();
    other.health_check(soon()).await.unwrap();
}
