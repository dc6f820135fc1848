//! Which calls are made to SQS, and how many.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{
    DeadLetterQuery, DeadLetters, Message, MessagingError, MessagingService, Nack, ReceiveOptions, Timestamp,
};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::fake_endpoint::{fake_endpoint, refused, rows_of, taken, url_of};
use crate::{queue, soon};

async fn connect(url: &str) -> SqsProvider {
    SqsStore::open(url, SqsOptions::default()).await.unwrap().connect().unwrap()
}

#[tokio::test]
async fn concurrent_sends_share_calls_of_ten() {
    let (calls, arrived, held) =
        (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let url = fake_endpoint({
        let (calls, arrived, held) = (calls.clone(), arrived.clone(), held.clone());
        move |action, body| {
            let (calls, arrived, held) = (calls.clone(), arrived.clone(), held.clone());
            async move {
                match action.as_str() {
                    "ListQueues" => (200, "{}".to_owned()),
                    "GetQueueUrl" => url_of(&body),
                    "SendMessageBatch" => {
                        calls.lock().unwrap().push(rows_of(&body));
                        arrived.notify_one();
                        drop(held.acquire().await.unwrap());
                        taken(&body, false)
                    }
                    other => panic!("unexpected call {other}"),
                }
            }
        }
    });
    let (provider, orders) = (connect(&url.await).await, queue("orders"));
    let send = || provider.send_message(&orders, Message::new("x"), soon());
    let others = async {
        arrived.notified().await;
        let sends = join_all((0..100).map(|_| send()));
        let go_on = async {
            tokio::task::yield_now().await;
            held.add_permits(1);
        };
        tokio::join!(sends, go_on).0
    };
    let (first, others) = tokio::join!(send(), others);
    first.unwrap();
    for sent in others {
        sent.unwrap();
    }
    let calls = calls.lock().unwrap();
    assert_eq!((calls[0], calls[1..].len()), (1, 10), "{calls:?}");
    assert!(calls[1..].iter().all(|rows| *rows == 10), "{calls:?}");
}

/// Which part of a call is throttled.
#[derive(Debug, Clone, Copy)]
enum Throttle {
    Call,
    Row,
}

/// State of a fake endpoint with at most one message, which it delivers when the test sets `is_due`.
#[derive(Default)]
struct FakeSqs {
    message: Option<Value>,
    is_due: bool,
    loses_sends: bool,
    throttles_ends: Option<Throttle>,
    ends_asked_at: Vec<Instant>,
    delays: Vec<i64>,
    deleted: usize,
    waits: Vec<i64>,
}

impl FakeSqs {
    fn answer(&mut self, action: &str, body: &str) -> (u16, String) {
        let asked: Value = serde_json::from_str(body).unwrap();
        let done = json!({ "Successful": [{ "Id": "0", "MessageId": "m", "MD5OfMessageBody": "x" }], "Failed": [] });
        let answer = match action {
            "ListQueues" | "ListQueueTags" => json!({}),
            "GetQueueUrl" if body.contains(".fifo") => return refused("QueueDoesNotExist"),
            "GetQueueUrl" => return url_of(body),
            "SendMessageBatch" if self.loses_sends => return (500, "{}".to_owned()),
            "DeleteMessageBatch" | "ChangeMessageVisibilityBatch" if self.throttles_ends.is_some() => {
                self.ends_asked_at.push(Instant::now());
                return match self.throttles_ends {
                    Some(Throttle::Row) => taken(body, true),
                    _ => refused("ThrottlingException"),
                };
            }
            "ChangeMessageVisibilityBatch" => done,
            "SendMessageBatch" => {
                let entry = asked["Entries"][0].clone();
                self.delays.push(entry["DelaySeconds"].as_i64().unwrap());
                self.message = Some(entry);
                done
            }
            "DeleteMessageBatch" => {
                self.deleted += 1;
                done
            }
            "ReceiveMessage" => {
                self.waits.push(asked["WaitTimeSeconds"].as_i64().unwrap());
                let is_due = std::mem::take(&mut self.is_due);
                match self.message.take_if(|_| is_due) {
                    Some(sent) => json!({ "Messages": [self.received(&sent)] }),
                    None => json!({}),
                }
            }
            other => panic!("unexpected call {other}"),
        };
        (200, answer.to_string())
    }

    fn received(&self, sent: &Value) -> Value {
        let now = Timestamp::now().as_micros() / 1000;
        let delay = self.delays.last().copied().unwrap_or_default();
        json!({
            "MessageId": "m",
            "ReceiptHandle": "r",
            "Body": sent["MessageBody"],
            "MessageAttributes": sent["MessageAttributes"],
            "Attributes": {
                "SentTimestamp": (now - delay * 1000).to_string(),
                "ApproximateFirstReceiveTimestamp": now.to_string(),
                "ApproximateReceiveCount": "1",
            },
        })
    }
}

async fn fake() -> (SqsProvider, Arc<Mutex<FakeSqs>>) {
    let fake = Arc::new(Mutex::new(FakeSqs::default()));
    let known = fake.clone();
    let url = fake_endpoint(move |action, body| {
        let answer = known.lock().unwrap().answer(&action, &body);
        async move { answer }
    });
    (connect(&url.await).await, fake)
}

#[tokio::test]
async fn a_message_with_a_long_delay_is_sent_on_until_it_is_due() {
    let ((provider, fake), orders) = (fake().await, queue("orders"));
    let sent = Message::new("later").header("tenant", "acme").unwrap().delay(Duration::from_secs(3600));
    let id = provider.send_message(&orders, sent, soon()).await.unwrap();
    for hop in 1..4 {
        fake.lock().unwrap().is_due = true;
        let early = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
        assert!(early.is_empty(), "after {hop} quarters of an hour");
        assert_eq!(fake.lock().unwrap().deleted, hop, "the original of a hop is deleted");
    }
    assert_eq!(fake.lock().unwrap().delays, [900; 4]);
    fake.lock().unwrap().is_due = true;
    let due = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    let [due] = due.as_slice() else { panic!("{due:?}") };
    assert_eq!((due.id(), &due.message[..]), (id, b"later".as_slice()));
    assert_eq!(due.envelope.headers.get("tenant"), Some("acme"));
    assert_eq!((due.envelope.receive_count, due.envelope.attempts_count), (1, 0), "a hop does not count as a delivery");
}

#[tokio::test]
async fn a_receive_that_waits_is_a_long_poll() {
    let mut seen = Vec::new();
    // On a busy machine the call may begin late, but not every time.
    for _ in 0..5 {
        let ((provider, fake), orders) = (fake().await, queue("orders"));
        provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        fake.lock().unwrap().is_due = true;
        let options = ReceiveOptions::default().wait(Duration::from_secs(7));
        let received = provider.receive_messages(&orders, &options, soon()).await.unwrap();
        assert_eq!(received.len(), 1);
        seen.push(fake.lock().unwrap().waits.clone());
        // The rest of the seven seconds, in whole seconds.
        if matches!(seen.last().unwrap()[..], [5..=7]) {
            return;
        }
    }
    panic!("wait times of the calls: {seen:?}");
}

#[tokio::test]
async fn a_sweep_ends_with_one_empty_long_poll() {
    let ((provider, fake), orders) = (fake().await, queue("orders"));
    let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
    assert!(dead.letters.is_empty());
    // A short poll, which may miss messages, and a long poll.
    assert_eq!(fake.lock().unwrap().waits, [0, 1]);
}

#[tokio::test]
async fn a_settlement_with_an_unknown_outcome_extends_no_lease() {
    let ((provider, fake), orders) = (fake().await, queue("orders"));
    provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    fake.lock().unwrap().is_due = true;
    let options = ReceiveOptions::default().visibility(Duration::from_secs(60));
    let received = provider.receive_messages(&orders, &options, soon()).await.unwrap();
    let receipt = received.into_iter().next().expect("a message").into_receipt();
    fake.lock().unwrap().loses_sends = true;
    let nack = Nack::retry_after(Duration::ZERO);
    let unknown = provider.nack_message(&orders, receipt.clone(), nack, soon()).await;
    assert!(matches!(unknown, Err(MessagingError::OutcomeUnknown { .. })), "{unknown:?}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let late = provider.ack_message(&orders, receipt, soon()).await;
    assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
    assert_eq!(fake.lock().unwrap().deleted, 0);
}

#[tokio::test]
async fn a_throttled_receipt_is_not_sent_again_after_its_lease() {
    let nacks = [None, Some(Nack::Release), Some(Nack::retry_after(Duration::ZERO))];
    let cases = [Throttle::Call, Throttle::Row].into_iter().flat_map(|t| nacks.clone().map(|n| (t, n)));
    join_all(cases.map(async |(throttle, nack)| {
        let ((provider, fake), orders) = (fake().await, queue("orders"));
        provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        fake.lock().unwrap().is_due = true;
        let options = ReceiveOptions::default().visibility(Duration::from_secs(2));
        let received = provider.receive_messages(&orders, &options, soon()).await.unwrap();
        let over = Instant::now() + Duration::from_secs(2);
        let receipt = received.into_iter().next().expect("a message").into_receipt();
        fake.lock().unwrap().throttles_ends = Some(throttle);
        let late = match nack.clone() {
            None => provider.ack_message(&orders, receipt, soon()).await,
            Some(nack) => provider.nack_message(&orders, receipt, nack, soon()).await,
        };
        assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{throttle:?} {nack:?}: {late:?}");
        let asked = fake.lock().unwrap().ends_asked_at.clone();
        assert!(asked.len() > 1, "{throttle:?} {nack:?}: it was not tried again");
        // A call made in time may arrive later, especially on a busy machine.
        let last = *asked.last().unwrap();
        assert!(last < over + Duration::from_secs(5), "{throttle:?} {nack:?}: sent {:?} late", last - over);
    }))
    .await;
}
