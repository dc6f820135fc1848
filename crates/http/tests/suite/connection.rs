//! Connections that fail, end or become stale.

use std::time::Duration;

use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueAdmin, Settlement};
use postrider_http::{HttpOptions, HttpStore};
use serde_json::{Value, json};

use crate::fake::{Fake, Reply, http_receipt};
use crate::{queue, soon};

fn sent() -> Value {
    json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "queue": "orders"})
}

fn stats() -> Value {
    json!({"queue": "orders", "ready": 3, "in_flight": 0, "delayed": 0, "dead": 0, "oldest_age_seconds": 1.5,
        "paused": false, "approximate": [], "unknown": []})
}

#[tokio::test]
async fn a_missing_server_is_a_connection_error() {
    let fake = Fake::start(|_| Reply::Cut).await;
    let url = fake.url.clone();
    let provider = fake.connect().await;
    fake.stop().await;
    let opened = HttpStore::open(&url, HttpOptions::default()).await;
    assert!(matches!(opened, Err(MessagingError::Connection { provider: "http", .. })), "{opened:?}");
    // The pooled connection is closed as well, so nothing was sent.
    let send = provider.send_message(&queue("orders"), Message::new("a"), soon()).await;
    assert!(matches!(send, Err(MessagingError::Connection { .. })), "{send:?}");
    let receipt = http_receipt("orders");
    let ack = provider.ack_message(&queue("orders"), receipt, soon()).await;
    assert!(matches!(ack, Err(MessagingError::Connection { .. })), "{ack:?}");
}

#[tokio::test]
async fn a_stale_connection_is_replaced() {
    let fake = Fake::start(|seen| match seen.number {
        0 => Reply::Last(sent()),
        _ => Reply::ok(sent()),
    })
    .await;
    let provider = fake.connect().await;
    provider.send_message(&queue("orders"), Message::new("a"), soon()).await.unwrap();
    // The client has noticed the close of the idle connection.
    let first = fake.gone().await;
    provider.send_message(&queue("orders"), Message::new("b"), soon()).await.unwrap();
    let seen = fake.rest().await;
    assert_eq!(seen.len(), 2, "each was sent once");
    assert!(seen[0].connection == first && seen[1].connection != first);
}

#[tokio::test]
async fn connections_are_reused() {
    let fake = Fake::start(|_| Reply::ok(sent())).await;
    let provider = fake.connect().await;
    for _ in 0..5 {
        provider.send_message(&queue("orders"), Message::new("a"), soon()).await.unwrap();
    }
    assert!(fake.rest().await.iter().all(|seen| seen.connection == 0));
}

#[tokio::test]
async fn requests_that_may_have_been_carried_out_are_not_repeated() {
    let fake = Fake::start(|_| Reply::Cut).await;
    let provider = fake.connect().await;
    let message = Message::new("a");
    let id = message.id;
    match provider.send_message(&queue("orders"), message, soon()).await {
        Err(MessagingError::OutcomeUnknown { operation: "send", ids, source: Some(_) }) => assert_eq!(ids, [id]),
        other => panic!("{other:?}"),
    }
    let receipts = [http_receipt("orders"), http_receipt("orders")];
    let settled = provider.settle(receipts.iter().cloned().map(Settlement::ack).collect(), soon()).await.unwrap();
    for (receipt, row) in receipts.iter().zip(settled) {
        match row {
            Err(MessagingError::OutcomeUnknown { operation: "settle", ids, .. }) => {
                assert_eq!(ids, [receipt.message_id()]);
            }
            other => panic!("{other:?}"),
        }
    }
    let extend = provider.extend_visibility(&queue("orders"), &receipts[0], Duration::from_secs(1), soon()).await;
    assert!(matches!(extend, Err(MessagingError::OutcomeUnknown { operation: "extend", .. })), "{extend:?}");
    let purge = provider.purge(&queue("orders"), soon()).await;
    assert!(matches!(purge, Err(MessagingError::OutcomeUnknown { .. })), "{purge:?}");
    assert_eq!(fake.rest().await.len(), 4, "each was sent once");
}

#[tokio::test]
async fn an_incomplete_answer_makes_the_outcome_unknown() {
    let half = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":";
    let fake = Fake::start(|_| Reply::Bytes(half.to_vec())).await;
    let provider = fake.connect().await;
    let send = provider.send_message(&queue("orders"), Message::new("a"), soon()).await;
    assert!(matches!(send, Err(MessagingError::OutcomeUnknown { .. })), "{send:?}");
}

#[tokio::test]
async fn reads_are_repeated_once() {
    let fake = Fake::start(|seen| if seen.number == 0 { Reply::Cut } else { Reply::ok(stats()) }).await;
    let provider = fake.connect().await;
    assert_eq!(provider.queue_stats(&queue("orders"), soon()).await.unwrap().ready.value(), Some(3));
    assert_eq!(fake.rest().await.len(), 2);
    let broken = Fake::start(|_| Reply::Cut).await;
    let provider = broken.connect().await;
    let stats = provider.queue_stats(&queue("orders"), soon()).await;
    assert!(matches!(&stats, Err(error @ MessagingError::Connection { .. }) if error.is_retryable()), "{stats:?}");
    assert_eq!(broken.rest().await.len(), 2);
}

#[tokio::test]
async fn a_silent_server_is_a_time_out() {
    let fake = Fake::start(|_| Reply::Hang).await;
    let options = HttpOptions { request_timeout: Duration::from_millis(1500), ..HttpOptions::default() };
    let provider = fake.connect_with(options).await;
    let send = provider.send_message(&queue("orders"), Message::new("a"), Deadline::never()).await;
    assert!(matches!(send, Err(MessagingError::OutcomeUnknown { .. })), "{send:?}");
    let stats = provider.queue_stats(&queue("orders"), Deadline::never()).await;
    assert!(matches!(stats, Err(MessagingError::Connection { .. })), "{stats:?}");
    // A time-out is not repeated.
    assert_eq!(fake.rest().await.len(), 2);
}

#[tokio::test]
async fn a_deadline_ends_the_call() {
    let fake = Fake::start(|_| Reply::Hang).await;
    let provider = fake.connect().await;
    let brief = || Deadline::after(Duration::from_millis(1500));
    let send = provider.send_message(&queue("orders"), Message::new("a"), brief()).await;
    assert!(matches!(send, Err(MessagingError::OutcomeUnknown { .. })), "{send:?}");
    let purge = provider.purge(&queue("orders"), brief()).await;
    assert!(matches!(purge, Err(MessagingError::OutcomeUnknown { .. })), "{purge:?}");
    let passed = Deadline::after(Duration::ZERO);
    let late = provider.send_message(&queue("orders"), Message::new("a"), passed).await;
    assert!(matches!(late, Err(MessagingError::DeadlineExceeded { .. })), "{late:?}");
    assert_eq!(fake.rest().await.len(), 2, "no request after the deadline");
}

#[tokio::test]
async fn the_token_is_sent_with_every_request_and_not_printed() {
    let fake = Fake::start(|_| Reply::ok(stats())).await;
    let options = HttpOptions { token: Some("prt_secret\n".into()), ..HttpOptions::default() };
    let provider = fake.connect_with(options).await;
    provider.queue_stats(&queue("orders"), soon()).await.unwrap();
    assert_eq!(fake.seen().await.header("authorization"), Some("Bearer prt_secret"));
    assert!(!format!("{provider:?}").contains("secret"));
}
