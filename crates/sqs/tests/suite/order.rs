//! Messages of one key stay in their order, whatever becomes of some of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use postrider_core::{Message, MessagingError, MessagingService};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use serde_json::{Value, json};

use crate::stand_in::{stand_in, url_of};
use crate::{queue, soon};

/// The bodies that an endpoint has taken, by their groups.
type Taken = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// An endpoint that answers the first `times` rows with the body `first` with this error, and takes all the others.
async fn endpoint(code: &'static str, times: usize) -> (SqsProvider, Taken) {
    let taken = Taken::default();
    let (known, left) = (taken.clone(), Mutex::new(times));
    let url = stand_in(move |action, body| {
        let answer = match action.as_str() {
            "ListQueues" => (200, "{}".to_owned()),
            "GetQueueUrl" => url_of(&body),
            "SendMessageBatch" => {
                let asked: Value = serde_json::from_str(&body).unwrap();
                let (mut done, mut failed) = (Vec::new(), Vec::new());
                for row in asked["Entries"].as_array().unwrap() {
                    let (id, text) = (&row["Id"], row["MessageBody"].as_str().unwrap());
                    let mut left = left.lock().unwrap();
                    if text == "first" && *left > 0 {
                        *left -= 1;
                        failed.push(json!({ "Id": id, "SenderFault": true, "Code": code }));
                    } else {
                        let group = row["MessageGroupId"].as_str().unwrap().to_owned();
                        known.lock().unwrap().entry(group).or_default().push(text.to_owned());
                        done.push(json!({ "Id": id, "MessageId": "m", "MD5OfMessageBody": "x" }));
                    }
                }
                (200, json!({ "Successful": done, "Failed": failed }).to_string())
            }
            other => panic!("nobody asks for {other}"),
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
async fn what_comes_behind_a_row_that_failed_is_not_sent_and_may_be_sent_again() {
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
