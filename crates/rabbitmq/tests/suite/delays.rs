//! Delays.

use std::collections::HashMap;
use std::time::Duration;

use postrider_core::{Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions, Settlement};

use crate::{connect_with, options, prefix, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_arrives_once() {
    let provider = connect_with(options()).await;
    let queue = QueueName::new(format!("{}_once", prefix())).unwrap();
    let messages: Vec<_> =
        (0..1000).map(|n| Message::new(format!("{n}")).delay(Duration::from_millis(n * 7 % 1500))).collect();
    let mut seen: HashMap<_, u32> = HashMap::new();
    for row in provider.send_batch(&queue, messages, soon()).await.unwrap() {
        seen.insert(row.unwrap(), 0);
    }
    let mut missing = seen.len();
    let mut last = None;
    // When all have arrived, one more with the longest delay: a duplicate would arrive before it.
    while last.is_none_or(|last| seen[&last] == 0) {
        let options = ReceiveOptions::batch(100).wait(Duration::from_secs(30));
        let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
        assert!(!received.is_empty(), "{missing} are missing");
        for message in &received {
            *seen.get_mut(&message.id()).unwrap() += 1;
            missing = seen.values().filter(|count| **count == 0).count();
        }
        let acks = received.into_iter().map(Settlement::ack).collect();
        provider.settle(acks, soon()).await.unwrap();
        if missing == 0 && last.is_none() {
            let message = Message::new("last").delay(Duration::from_millis(1500));
            let id = provider.send_message(&queue, message, soon()).await.unwrap();
            seen.insert(id, 0);
            last = Some(id);
        }
    }
    assert_eq!(seen.values().filter(|count| **count != 1).count(), 0);
    provider.delete_queue(&queue, soon()).await.unwrap();
}
