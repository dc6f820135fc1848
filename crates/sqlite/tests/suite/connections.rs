//! Connections in one process: how they open, wake each other, and close.

use std::time::Duration;

use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueAdmin, QueuedMessage, ReceiveOptions};
use postrider_sqlite::{SqliteOptions, SqliteProvider};

use crate::{TestStore, is_long, queue, soon};

fn waiting(provider: &SqliteProvider) -> tokio::task::JoinHandle<Vec<QueuedMessage>> {
    let provider = provider.clone();
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
}

#[tokio::test]
async fn the_file_is_closed_with_the_last_connection_and_can_be_opened_again() {
    let test_store = TestStore::new();
    let first = test_store.connect().await;
    let store = first.store().clone();
    let second = store.connect().await.unwrap();
    let log = test_store.folder.path().join("queues.db-wal");
    first.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    first.close(soon()).await.unwrap();
    assert!(log.exists(), "the second connection is open");
    second.send_message(&queue("orders"), Message::new("y"), soon()).await.unwrap();
    second.queue_stats(&queue("orders"), soon()).await.unwrap();
    second.close(soon()).await.unwrap();
    assert!(!log.exists(), "the last close checkpoints and removes the log");
    let closed = second.send_message(&queue("orders"), Message::new("z"), soon()).await;
    assert!(matches!(closed, Err(MessagingError::Closed { .. })), "{closed:?}");
    let again = store.connect().await.unwrap();
    let received = again.receive_messages(&queue("orders"), &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.len(), 2);
}

#[tokio::test]
async fn dropping_a_provider_finishes_its_calls() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let send = {
        let provider = provider.clone();
        let messages = (0..500).map(|n| Message::new(format!("{n}"))).collect();
        tokio::spawn(async move { provider.send_batch(&queue("orders"), messages, soon()).await })
    };
    tokio::task::yield_now().await;
    drop(provider);
    for row in send.await.unwrap().unwrap() {
        row.unwrap();
    }
    let again = test_store.connect().await;
    assert_eq!(again.queue_stats(&queue("orders"), soon()).await.unwrap().message_count(), Some(500));
}

#[tokio::test]
async fn a_receiver_is_woken_by_a_send_of_another_connection_and_of_another_store() {
    let test_store = TestStore::new();
    let receiver = test_store.connect().await;
    let same_store = receiver.store().connect().await.unwrap();
    // Opened separately, as by another process: its sends are noticed by polling the file.
    let other_store = test_store.connect().await;
    for sender in [same_store, other_store] {
        let waits = waiting(&receiver);
        tokio::task::yield_now().await;
        // The writer works in order: when this call is done, the receiver has claimed and found nothing.
        receiver.health_check(soon()).await.unwrap();
        let began = std::time::Instant::now();
        let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
        let received = waits.await.unwrap();
        assert_eq!(received[0].id(), id);
        assert!(began.elapsed() < Duration::from_secs(10), "it was not woken");
        receiver.ack_message(&queue("orders"), received.into_iter().next().unwrap(), soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_that_another_process_deleted_is_created_again() {
    let test_store = TestStore::new();
    let (ours, theirs) = (test_store.connect().await, test_store.connect().await);
    let queue = queue("orders");
    ours.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    theirs.delete_queue(&queue, soon()).await.unwrap();
    ours.send_message(&queue, Message::new("y"), soon()).await.unwrap();
    assert_eq!(theirs.list_queues(soon()).await.unwrap(), [queue]);
}

#[tokio::test]
async fn a_receiver_is_woken_for_a_due_time_that_was_set_after_its_claim() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let waits = waiting(&provider);
    tokio::task::yield_now().await;
    provider.health_check(soon()).await.unwrap();
    let delayed = Message::new("x").delay(Duration::from_millis(150));
    provider.send_message(&queue("orders"), delayed, soon()).await.unwrap();
    let began = std::time::Instant::now();
    assert_eq!(waits.await.unwrap().len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn leases_of_a_receiver_that_has_gone_are_released_uncounted() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    // Each receive is dropped at another point of its way to the writer and back.
    for polls in 0..40_u32 {
        let options = ReceiveOptions::default().visibility(Duration::from_secs(60)).max_receive_count(1000);
        let receive = provider.receive_messages(&queue, &options, soon());
        tokio::pin!(receive);
        for _ in 0..polls % 4 {
            if let std::task::Poll::Ready(received) = futures_util::poll!(&mut receive) {
                for message in received.unwrap() {
                    provider.nack_message(&queue, message, postrider_core::Nack::Release, soon()).await.unwrap();
                }
                break;
            }
            std::thread::sleep(Duration::from_micros(u64::from(polls) * 50));
        }
    }
    let options = ReceiveOptions::default().max_receive_count(1000).wait(Duration::from_secs(20));
    let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
    assert_eq!(received.len(), 1, "the lease of a dropped receive is still held");
    // An answer that was already sent when its caller left counts as a delivery.
    assert!(received[0].receive_count() < 20, "{}", received[0].receive_count());
}

#[tokio::test]
async fn a_log_stays_within_its_limit() {
    let test_store = TestStore::in_memory();
    let limit = 1024 * 1024;
    let provider = test_store.connect_with(SqliteOptions { wal_limit_bytes: limit, ..SqliteOptions::default() }).await;
    let log = test_store.folder.path().join("queues.db-wal");
    let mut longest = 0;
    for _ in 0..if is_long() { 2000 } else { 200 } {
        let messages = (0..100).map(|_| Message::new(vec![b'x'; 200])).collect();
        provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
        // A reader between two sends must not keep the log from starting over.
        provider.list_queues(soon()).await.unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    let file = std::fs::metadata(test_store.file()).unwrap().len();
    assert!(file > 4 * limit, "too little was written to tell: {file}");
    assert!(longest <= limit + limit / 2, "the log had {longest} bytes, the limit is {limit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_file_serves_many_stores() {
    let test_store = TestStore::new();
    let mut workers = Vec::new();
    for worker in 0..4 {
        let provider = test_store.connect().await;
        workers.push(tokio::spawn(async move {
            for n in 0..50 {
                provider.send_message(&queue("orders"), Message::new(format!("{worker} {n}")), soon()).await.unwrap();
            }
            provider.close(Deadline::default()).await.unwrap();
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let left = test_store.connect().await.queue_stats(&queue("orders"), soon()).await.unwrap();
    assert_eq!(left.message_count(), Some(200));
}
