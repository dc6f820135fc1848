//! An endpoint that has too much to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("sqs+http://{}/", listener.local_addr().unwrap());
    let sends = Arc::new(AtomicUsize::new(0));
    let counted = sends.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answer, times, counted.clone()));
        }
    });
    (url, sends)
}

async fn serve(mut stream: TcpStream, answer: Answer, times: usize, sends: Arc<AtomicUsize>) {
    while let Some((action, body)) = request(&mut stream).await {
        let (status, json) = match action.as_str() {
            "ListQueues" => (200, "{}".to_owned()),
            "GetQueueUrl" => (200, r#"{"QueueUrl":"http://127.0.0.1/0/orders"}"#.to_owned()),
            "SendMessageBatch" if sends.fetch_add(1, Ordering::SeqCst) < times => match answer {
                Answer::Throttled => {
                    (400, r#"{"__type":"com.amazonaws.sqs#ThrottlingException","message":"slow"}"#.to_owned())
                }
                Answer::Failed => (500, r#"{"__type":"InternalFailure","message":"oops"}"#.to_owned()),
                Answer::ThrottledRow => (200, rows(&body, true)),
            },
            "SendMessageBatch" => (200, rows(&body, false)),
            other => panic!("nobody asks for {other}"),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
            json.len()
        );
        stream.write_all((head + &json).as_bytes()).await.unwrap();
    }
}

/// The next request: what it asks for, and its body.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_string();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let field = |name: &str| {
                let mut lines = head.lines();
                lines.find_map(|line| {
                    line.to_lowercase().starts_with(name).then(|| line.split_once(": ").unwrap().1.to_owned())
                })
            };
            if body.len() >= field("content-length").unwrap().parse::<usize>().unwrap() {
                let target = field("x-amz-target").unwrap();
                return Some((target.rsplit('.').next().unwrap().to_owned(), body.to_owned()));
            }
        }
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(count) if count > 0 => bytes.extend_from_slice(&more[..count]),
            _ => return None,
        }
    }
}

/// The answer to a batch: all rows are taken, or all but the first.
fn rows(body: &str, throttles_first: bool) -> String {
    let ids: Vec<_> = (0..10).filter(|id| body.contains(&format!("\"Id\":\"{id}\""))).collect();
    let (failed, done) = ids.split_at(usize::from(throttles_first));
    let done: Vec<_> =
        done.iter().map(|id| format!(r#"{{"Id":"{id}","MessageId":"m","MD5OfMessageBody":"x"}}"#)).collect();
    let failed: Vec<_> =
        failed.iter().map(|id| format!(r#"{{"Id":"{id}","SenderFault":true,"Code":"RequestThrottled"}}"#)).collect();
    format!(r#"{{"Successful":[{}],"Failed":[{}]}}"#, done.join(","), failed.join(","))
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
    let provider = connect(&url, Duration::from_millis(300)).await;
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
}
