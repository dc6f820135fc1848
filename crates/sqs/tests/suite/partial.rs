//! Receives that fail after leasing messages: those are returned or released, and never left hidden.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{MessagingService, ReceiveOptions};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fake_endpoint::{Answer, fake_endpoint, refused, rows_of, taken, url_of};
use crate::{queue, soon};

async fn connect(url: String) -> SqsProvider {
    SqsStore::open(&url, SqsOptions::default()).await.unwrap().connect().unwrap()
}

/// Returns messages of another client.
fn messages(count: usize) -> Answer {
    let message =
        |n| json!({ "MessageId": format!("m{n}"), "ReceiptHandle": format!("r{n}"), "Body": "x", "Attributes": {} });
    (200, json!({ "Messages": (0..count).map(message).collect::<Vec<Value>>() }).to_string())
}

fn failed() -> Answer {
    (500, "{}".to_owned())
}

#[tokio::test]
async fn messages_of_one_side_are_returned_although_the_other_fails() {
    let url = fake_endpoint(|action, body| async move {
        match action.as_str() {
            "ListQueues" | "ListQueueTags" => (200, "{}".to_owned()),
            "GetQueueUrl" => url_of(&body),
            "ReceiveMessage" if body.contains(".fifo") => failed(),
            "ReceiveMessage" => messages(1),
            "ChangeMessageVisibilityBatch" => taken(&body, false),
            other => panic!("unexpected call {other}"),
        }
    });
    let (provider, options) = (connect(url.await).await, ReceiveOptions::batch(5));
    let received = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap();
    assert_eq!(received.len(), 1);
}

#[tokio::test]
async fn messages_are_returned_although_the_pause_cannot_be_read() {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    let url = fake_endpoint(move |action, body| {
        let looks = counted.clone();
        async move {
            match action.as_str() {
                "ListQueues" => (200, "{}".to_owned()),
                "GetQueueUrl" if body.contains(".fifo") => refused("QueueDoesNotExist"),
                "GetQueueUrl" => url_of(&body),
                "ListQueueTags" if looks.fetch_add(1, Ordering::SeqCst) == 0 => (200, "{}".to_owned()),
                "ListQueueTags" => failed(),
                "ReceiveMessage" => {
                    // A long poll, after which the pause is read again.
                    tokio::time::pause();
                    tokio::time::advance(Duration::from_millis(2100)).await;
                    tokio::time::resume();
                    messages(1)
                }
                "ChangeMessageVisibilityBatch" => taken(&body, false),
                other => panic!("unexpected call {other}"),
            }
        }
    });
    let (provider, options) = (connect(url.await).await, ReceiveOptions::default().wait(Duration::from_secs(9)));
    let received = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap();
    assert_eq!((received.len(), looks.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test]
async fn gathered_messages_are_released_when_the_caller_leaves() {
    let (gathering, given_back) = (Arc::new(Notify::new()), Arc::new(Mutex::new(0)));
    let released = Arc::new(Notify::new());
    let known = (gathering.clone(), given_back.clone(), released.clone());
    let receives = AtomicUsize::new(0);
    let url = fake_endpoint(move |action, body| {
        let (gathering, given_back, released) = known.clone();
        let is_first = action == "ReceiveMessage" && receives.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match action.as_str() {
                "ListQueues" | "ListQueueTags" => (200, "{}".to_owned()),
                "GetQueueUrl" if body.contains(".fifo") => refused("QueueDoesNotExist"),
                "GetQueueUrl" => url_of(&body),
                "ReceiveMessage" if is_first => messages(10),
                "ReceiveMessage" => {
                    gathering.notify_one();
                    std::future::pending().await
                }
                "ChangeMessageVisibilityBatch" => {
                    *given_back.lock().unwrap() += rows_of(&body);
                    released.notify_one();
                    taken(&body, false)
                }
                other => panic!("unexpected call {other}"),
            }
        }
    });
    let (provider, orders) = (connect(url.await).await, queue("orders"));
    let options = ReceiveOptions::batch(20).wait(Duration::from_secs(9));
    tokio::select! {
        received = provider.receive_messages(&orders, &options, soon()) => panic!("{received:?}"),
        () = gathering.notified() => {}
    }
    tokio::time::timeout(Duration::from_secs(20), released.notified()).await.expect("they are released");
    assert_eq!(*given_back.lock().unwrap(), 10);
}
