//! Messages of one key stay in order when some of them fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fake_endpoint::{Answer, fake_endpoint, refused, url_of};
use crate::{queue, soon};

/// The bodies that an endpoint has accepted, by group.
type Taken = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// Accepts the rows of a call, except those that fail with a code.
fn take(body: &str, taken: &Taken, fails: impl Fn(&str) -> Option<&'static str>) -> Answer {
    let asked: Value = serde_json::from_str(body).unwrap();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for row in asked["Entries"].as_array().unwrap() {
        let (id, text) = (&row["Id"], row["MessageBody"].as_str().unwrap());
        match fails(text) {
            Some(code) => failed.push(json!({ "Id": id, "SenderFault": true, "Code": code })),
            None => {
                let group = row["MessageGroupId"].as_str().unwrap().to_owned();
                taken.lock().unwrap().entry(group).or_default().push(text.to_owned());
                done.push(json!({ "Id": id, "MessageId": "m", "MD5OfMessageBody": "x" }));
            }
        }
    }
    (200, json!({ "Successful": done, "Failed": failed }).to_string())
}

/// An endpoint that fails the first `times` rows with the body `first` with this code, and accepts all others.
async fn endpoint(code: &'static str, times: usize) -> (SqsProvider, Taken) {
    let taken = Taken::default();
    let (known, left) = (taken.clone(), Mutex::new(times));
    let url = fake_endpoint(move |action, body| {
        let answer = match action.as_str() {
            "ListQueues" => (200, "{}".to_owned()),
            "GetQueueUrl" => url_of(&body),
            "SendMessageBatch" => {
                let fails = |text: &str| {
                    let mut left = left.lock().unwrap();
                    let fails = text == "first" && *left > 0;
                    *left -= usize::from(fails);
                    fails.then_some(code)
                };
                take(&body, &known, fails)
            }
            other => panic!("unexpected call {other}"),
        };
        async move { answer }
    });
    let store = SqsStore::open(&url.await, SqsOptions::default()).await.unwrap();
    (store.connect().unwrap(), taken)
}

async fn send(provider: &SqsProvider) -> Vec<Result<(), MessagingError>> {
    let messages = [("a", "first"), ("a", "second"), ("b", "other"), ("a", "third")];
    let messages = messages.map(|(key, body)| Message::new(body).ordering_key(key).unwrap()).to_vec();
    let rows = provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
    rows.into_iter().map(|row| row.map(drop)).collect()
}

#[tokio::test]
async fn a_row_that_is_throttled_is_not_overtaken_by_the_next_of_its_key() {
    let (provider, taken) = endpoint("RequestThrottled", 2).await;
    for row in send(&provider).await {
        row.unwrap();
    }
    let taken = taken.lock().unwrap();
    assert_eq!(taken["a"], ["first", "second", "third"]);
    assert_eq!(taken["b"], ["other"]);
}

#[tokio::test]
async fn rows_behind_a_failed_one_are_not_sent_and_are_retryable() {
    let (provider, taken) = endpoint("InvalidMessageContents", 1).await;
    let rows = send(&provider).await;
    assert!(matches!(rows[0], Err(MessagingError::Provider { .. })), "{rows:?}");
    for behind in [&rows[1], &rows[3]] {
        assert!(matches!(behind, Err(error @ MessagingError::Busy { .. }) if error.is_retryable()), "{rows:?}");
    }
    rows[2].as_ref().unwrap();
    let taken = taken.lock().unwrap();
    assert_eq!((taken.get("a"), taken["b"].as_slice()), (None, ["other".to_owned()].as_slice()));
}

#[tokio::test]
async fn a_row_that_waits_for_the_other_sender_of_its_dedup_key_is_not_overtaken() {
    let (taken, arrived, held) = (Taken::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let known = (taken.clone(), arrived.clone(), held.clone());
    let url = fake_endpoint(move |action, body| {
        let (taken, arrived, held) = known.clone();
        async move {
            match action.as_str() {
                "ListQueues" => (200, "{}".to_owned()),
                "GetQueueUrl" => url_of(&body),
                "SendMessageBatch" if body.contains("the other") => {
                    arrived.notify_one();
                    held.notified().await;
                    refused("InvalidMessageContents")
                }
                "SendMessageBatch" => take(&body, &taken, |_| None),
                other => panic!("unexpected call {other}"),
            }
        }
    });
    let store = SqsStore::open(&url.await, SqsOptions::default()).await.unwrap();
    let (one, two, orders) = (store.connect().unwrap(), store.connect().unwrap(), queue("orders"));
    let single = |body: &str| Message::new(body.to_owned()).dedup_key("waited for").unwrap();
    let batch = vec![
        single("first").ordering_key("a").unwrap(),
        Message::new("second").ordering_key("a").unwrap(),
        Message::new("third").ordering_key("a").unwrap(),
    ];
    let behind = async {
        arrived.notified().await;
        let let_go = async {
            // Long enough for a later row to overtake.
            tokio::time::sleep(Duration::from_millis(200)).await;
            held.notify_one();
        };
        tokio::join!(two.send_batch(&orders, batch, soon()), let_go).0
    };
    let (other, rows) = tokio::join!(one.send_message(&orders, single("the other"), soon()), behind);
    other.unwrap_err();
    for row in rows.unwrap() {
        row.unwrap();
    }
    assert_eq!(taken.lock().unwrap()["a"], ["first", "second", "third"]);
}
