//! Thousands of dead letters, made directly in the store: over HTTP it would take minutes.

use postrider::{Deadline, Message, MessagingService, Nack, QueueName, ReceiveOptions, Settlement};
use std::time::Duration;
use uuid::Uuid;

use crate::test_server::TestServer;

/// Number of kinds of errors.
pub(crate) const KINDS: usize = 3;

/// Messages of one call to the store.
const BATCH: usize = 1000;

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(300))
}

/// An error text like that of a worker, with different numbers, ids and paths.
pub(crate) fn error(number: usize) -> String {
    let id = Uuid::from_u128((number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834));
    match number % KINDS {
        0 => format!("exit code 65 (refuses the message)\nreading order {id}\nlitres is -{number}.5 in order {id}"),
        1 => format!("POST https://pay.example/charge/{id}?n={number}: 503 after {number}ms"),
        _ => format!("row {number} of '/data/{number}.csv' is no number: 'x{number}'"),
    }
}

/// Makes dead letters with errors of three kinds.
pub(crate) async fn dead_letter_many(server: &TestServer, queue: &str, many: usize) {
    let provider = &server.context.messaging_provider;
    let queue = QueueName::new(queue).unwrap();
    let options = ReceiveOptions { visibility: Duration::from_secs(600), ..ReceiveOptions::batch(BATCH) };
    let mut number = 0;
    while number < many {
        let batch = BATCH.min(many - number);
        let new = |at: usize| {
            let body = format!("{{\"order\": {}, \"item\": \"tea\"}}", number + at);
            let message = Message::new(body).content_type(postrider::ContentType::JSON);
            message.header("customer", format!("anna-{}", at % 7)).unwrap()
        };
        provider.send_batch(&queue, (0..batch).map(new).collect(), deadline()).await.unwrap();
        let mut left = batch;
        while left > 0 {
            let got = provider.receive_messages(&queue, &options, deadline()).await.unwrap();
            left -= got.len();
            let bury = |message| {
                let end = Settlement::nack(message, Nack::dead_letter("rejected").with_error(error(number)));
                number += 1;
                end
            };
            let ends: Vec<Settlement> = got.into_iter().map(bury).collect();
            for row in provider.settle(ends, deadline()).await.unwrap() {
                row.unwrap();
            }
        }
    }
}

/// Creates queues.
pub(crate) async fn ensure_many(server: &TestServer, many: usize) {
    let names: Vec<_> = (0..many).map(|number| QueueName::new(format!("queue-{number:03}")).unwrap()).collect();
    server.context.messaging_provider.ensure_queues(&names, deadline()).await.unwrap();
}
