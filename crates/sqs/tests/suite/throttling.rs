//! Throttled calls, and calls whose outcome is unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

use crate::fake_endpoint::{fake_endpoint, refused, taken, url_of};
use crate::{queue, soon};

/// An endpoint's answer to sends.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The whole call is throttled.
    Throttled,
    /// One row of the call is throttled.
    ThrottledRow,
    /// The server fails, with an unknown outcome.
    Failed,
}

/// An endpoint that gives this answer to the first `times` sends, and then accepts them. Counts the sends.
async fn endpoint(answer: Answer, times: usize) -> (String, Arc<AtomicUsize>) {
    let sends = Arc::new(AtomicUsize::new(0));
    let counted = sends.clone();
    let url = fake_endpoint(move |action, body| {
        let counted = counted.clone();
        async move {
            match action.as_str() {
                "ListQueues" => (200, "{}".to_owned()),
                "GetQueueUrl" => url_of(&body),
                "SendMessageBatch" if counted.fetch_add(1, Ordering::SeqCst) < times => match answer {
                    Answer::Throttled => refused("ThrottlingException"),
                    Answer::Failed => (500, r#"{"__type":"InternalFailure","message":"oops"}"#.to_owned()),
                    Answer::ThrottledRow => taken(&body, true),
                },
                "SendMessageBatch" => taken(&body, false),
                other => panic!("unexpected call {other}"),
            }
        }
    });
    (url.await, sends)
}

async fn connect(url: &str, call_timeout: Duration) -> SqsProvider {
    SqsStore::open(url, SqsOptions { call_timeout, ..SqsOptions::default() }).await.unwrap().connect().unwrap()
}

#[tokio::test]
async fn a_throttled_call_is_repeated() {
    let (url, sends) = endpoint(Answer::Throttled, 3).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(sends.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn only_throttled_rows_are_sent_again() {
    let (url, sends) = endpoint(Answer::ThrottledRow, 1).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    let messages = (0..10).map(|n| Message::new(n.to_string())).collect();
    for row in provider.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
        row.unwrap();
    }
    assert_eq!(sends.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_call_that_is_throttled_for_too_long_fails_as_busy() {
    let (url, _) = endpoint(Answer::Throttled, usize::MAX).await;
    let provider = connect(&url, Duration::from_millis(1500)).await;
    let error = provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::Busy { .. }) && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_send_with_a_server_error_is_unknown_and_not_repeated() {
    let (url, sends) = endpoint(Answer::Failed, 1).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    let error = provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!(sends.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_unreachable_endpoint_fails_at_once() {
    let error = SqsStore::open("sqs+http://127.0.0.1:1/", SqsOptions::default()).await.unwrap_err();
    assert!(matches!(error, MessagingError::Connection { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:1: "), "{error}");
}

#[tokio::test]
async fn a_handshake_that_never_ends_fails_after_the_connect_timeout() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    // Longer than the SDK's own time-out.
    let options = SqsOptions { connect_timeout: Duration::from_secs(7), ..SqsOptions::default() };
    let error = SqsStore::open(&format!("sqs+https://{address}/"), options).await.unwrap_err();
    assert!(matches!(error, MessagingError::Connection { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("{address}: no connection within 7s")), "{text}");
}
