//! Listings of dead letters that take longer than the visibility of held messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, MessageId};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake_endpoint::{Answer, fake_endpoint, refused, url_of};
use crate::queue;

const COUNT: usize = 60;

/// A queue of dead letters that delivers the oldest visible ones first.
struct Letters {
    hidden_until: Vec<Instant>,
    receives: Vec<usize>,
    hides: bool,
}

impl Letters {
    fn answer(&mut self, action: &str, body: &str) -> Answer {
        let asked: Value = serde_json::from_str(body).unwrap();
        let now = Instant::now();
        let answer = match action {
            "ListQueues" => json!({}),
            "GetQueueUrl" if body.contains("_dlq") => return url_of(body),
            "GetQueueUrl" => return refused("QueueDoesNotExist"),
            "ReceiveMessage" => {
                let visible: Vec<_> = (0..COUNT).filter(|letter| self.hidden_until[*letter] <= now).take(10).collect();
                let message = |letter: usize| {
                    self.receives[letter] += 1;
                    if self.hides {
                        self.hidden_until[letter] = now + time(&asked);
                    }
                    json!({ "MessageId": letter.to_string(), "ReceiptHandle": letter.to_string(), "Body": "x" })
                };
                json!({ "Messages": visible.into_iter().map(message).collect::<Vec<_>>() })
            }
            "ChangeMessageVisibilityBatch" => {
                let rows = asked["Entries"].as_array().unwrap();
                for row in rows {
                    let letter: usize = row["ReceiptHandle"].as_str().unwrap().parse().unwrap();
                    self.hidden_until[letter] = now + time(row);
                }
                json!({ "Successful": rows.iter().map(|row| json!({ "Id": row["Id"] })).collect::<Vec<_>>() })
            }
            other => panic!("unexpected call {other}"),
        };
        (200, answer.to_string())
    }
}

fn time(asked: &Value) -> Duration {
    Duration::from_secs(asked["VisibilityTimeout"].as_u64().unwrap())
}

/// Dead letters on an endpoint where every receive takes the time `receive`.
async fn letters(hides: bool, receive: Duration) -> (SqsProvider, Arc<Mutex<Letters>>) {
    let letters = Letters { hidden_until: vec![Instant::now(); COUNT], receives: vec![0; COUNT], hides };
    let letters = Arc::new(Mutex::new(letters));
    let known = letters.clone();
    let url = fake_endpoint(move |action, body| {
        let letters = known.clone();
        async move {
            if action == "ReceiveMessage" && !receive.is_zero() {
                // Advances the test's clock instead of waiting.
                tokio::time::pause();
                tokio::time::advance(receive).await;
                tokio::time::resume();
            }
            letters.lock().unwrap().answer(&action, &body)
        }
    });
    let options = SqsOptions { call_timeout: Duration::from_secs(3600), ..SqsOptions::default() };
    (SqsStore::open(&url.await, options).await.unwrap().connect().unwrap(), letters)
}

#[tokio::test]
async fn held_messages_stay_hidden_until_the_listing_ends() {
    let (provider, letters) = letters(true, Duration::from_secs(15)).await;
    let query = DeadLetterQuery { limit: COUNT, ..DeadLetterQuery::default() };
    let page = provider.list_dead_letters(&queue("orders"), &query, Deadline::never()).await.unwrap();
    assert_eq!((page.letters.len(), page.next), (COUNT, None));
    let letters = letters.lock().unwrap();
    assert_eq!(letters.receives, [1; COUNT]);
    let now = Instant::now();
    assert!(letters.hidden_until.iter().all(|until| *until <= now), "they are released");
}

#[tokio::test]
async fn a_sweep_ends_where_nothing_stays_hidden() {
    let (provider, _) = letters(false, Duration::ZERO).await;
    let unknown_id = DeadLetterSelection::Ids(vec![MessageId::generate()]);
    let sweep = async {
        assert_eq!(provider.purge_dead_letters(&queue("orders"), &unknown_id, Deadline::never()).await.unwrap(), 0);
    };
    tokio::time::timeout(Duration::from_secs(20), sweep).await.expect("it ends");
}
