//! A message that kills every worker that receives it.

use std::time::Duration;

use postrider_conformance::processes::WorkerProcess;
use postrider_core::{DeadLetterReason, DeadLetters, Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use postrider_rabbitmq::RabbitmqProvider;
use tokio::time::Instant;

use crate::{connect_with, options, prefix, soon};

/// Variable with the queue of the process that the test kills.
const VICTIM_OF: &str = "POSTRIDER_TEST_VICTIM_OF";

/// Delivery limit of the test.
const LIMIT: u32 = 3;

fn taking() -> ReceiveOptions {
    ReceiveOptions::default().max_receive_count(LIMIT).visibility(Duration::from_secs(600))
}

/// Waits until `count` messages are ready.
async fn ready(provider: &RabbitmqProvider, queue: &QueueName, count: u64) {
    let end = Instant::now() + Duration::from_secs(30);
    while provider.queue_stats(queue, soon()).await.unwrap().ready.value() != Some(count) {
        assert!(Instant::now() < end, "{count} messages should be ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_message_that_kills_its_workers_is_dead_lettered_at_its_limit() {
    for key in [None, Some("k")] {
        let (provider, queue) = (connect_with(options()).await, QueueName::new(format!("{}_loop", prefix())).unwrap());
        let mut message = Message::new("poison");
        if let Some(key) = key {
            message = message.ordering_key(key).unwrap();
        }
        let id = provider.send_message(&queue, message, soon()).await.unwrap();
        for _ in 0..LIMIT {
            ready(&provider, &queue, 1).await;
            let victim = WorkerProcess::start("crash_loop::takes_a_message_for_ever", &[(VICTIM_OF, queue.as_str())]);
            ready(&provider, &queue, 0).await;
            victim.unwrap().kill().unwrap();
        }
        ready(&provider, &queue, 1).await;
        let received = provider.receive_messages(&queue, &taking(), soon()).await.unwrap();
        assert!(received.is_empty(), "{received:?}");
        let letter = provider.get_dead_letter(&queue, id, soon()).await.unwrap();
        assert_eq!((letter.reason, letter.deliveries_count), (DeadLetterReason::MAX_RECEIVE_COUNT, LIMIT));
        provider.delete_queue(&queue, soon()).await.unwrap();
    }
}

/// Runs in the other process; does nothing as a test of its own.
#[tokio::test]
async fn takes_a_message_for_ever() {
    let Ok(queue) = std::env::var(VICTIM_OF) else { return };
    let (provider, queue) = (connect_with(options()).await, QueueName::new(queue).unwrap());
    let received = provider.receive_messages(&queue, &taking().wait(Duration::from_secs(30)), soon()).await.unwrap();
    assert_eq!(received.len(), 1);
    std::future::pending::<()>().await;
}
