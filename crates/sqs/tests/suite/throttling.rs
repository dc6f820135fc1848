//! An endpoint that has too much to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

use crate::stand_in::{refused, stand_in, taken, url_of};
use crate::{queue, soon};

/// How an endpoint answers sends.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The whole call is throttled.
    Throttled,
    /// One row of the call is.
    ThrottledRow,
    /// It fails, and nobody knows what it did before.
    Failed,
}

/// An endpoint that answers the first `times` sends so, and then takes them. Counts the sends.
async fn endpoint(answer: Answer, times: usize) -> (String, Arc<AtomicUsize>) {
    let sends = Arc::new(AtomicUsize::new(0));
    let counted = sends.clone();
    let url = stand_in(move |action, body| {
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
                other => panic!("nobody asks for {other}"),
            }
        }
    });
    (url.await, sends)
}

async fn connect(url: &str, call_timeout: Duration) -> SqsProvider {
    SqsStore::open(url, SqsOptions { call_timeout, ..SqsOptions::default() }).await.unwrap().connect().unwrap()
}

#[tokio::test]
async fn a_call_that_is_throttled_is_made_again() {
    let (url, sends) = endpoint(Answer::Throttled, 3).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(sends.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn rows_that_are_throttled_are_sent_again_and_no_others() {
    let (url, sends) = endpoint(Answer::ThrottledRow, 1).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    let messages = (0..10).map(|n| Message::new(n.to_string())).collect();
    for row in provider.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
        row.unwrap();
    }
    assert_eq!(sends.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_call_that_is_throttled_for_too_long_was_not_done() {
    let (url, _) = endpoint(Answer::Throttled, usize::MAX).await;
    let provider = connect(&url, Duration::from_millis(1500)).await;
    let error = provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::Busy { .. }) && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_send_that_failed_at_the_other_end_is_unknown_and_not_repeated() {
    let (url, sends) = endpoint(Answer::Failed, 1).await;
    let provider = connect(&url, Duration::from_secs(20)).await;
    let error = provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!(sends.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_told_at_once() {
    let error = SqsStore::open("sqs+http://127.0.0.1:1/", SqsOptions::default()).await.unwrap_err();
    assert!(matches!(error, MessagingError::Connection { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:1: "), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_never_ends_the_handshake_is_given_up_when_the_time_is_over() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    // Longer than the driver would wait by itself.
    let options = SqsOptions { connect_timeout: Duration::from_secs(7), ..SqsOptions::default() };
    let error = SqsStore::open(&format!("sqs+https://{address}/"), options).await.unwrap_err();
    assert!(matches!(error, MessagingError::Connection { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("{address}: no connection within 7s")), "{text}");
}
