//! Connections in one process: how they begin, hear of each other, and end.

use std::time::Duration;

use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueAdmin, QueuedMessage, ReceiveOptions};
use postrider_sqlite::{SqliteOptions, SqliteProvider};

use crate::{Place, is_long, queue, soon};

fn waiting(provider: &SqliteProvider) -> tokio::task::JoinHandle<Vec<QueuedMessage>> {
    let provider = provider.clone();
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
}

#[tokio::test]
async fn the_file_is_closed_with_the_last_connection_and_can_be_opened_again() {
    let place = Place::new();
    let first = place.connect().await;
    let store = first.store().clone();
    let second = store.connect().await.unwrap();
    let log = place.folder.path().join("queues.db-wal");
    first.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    first.close(soon()).await.unwrap();
    assert!(log.exists(), "the second connection is open");
    second.send_message(&queue("orders"), Message::new("y"), soon()).await.unwrap();
    second.queue_stats(&queue("orders"), soon()).await.unwrap();
    second.close(soon()).await.unwrap();
    assert!(!log.exists(), "the last connection was closed, and the log worked into the file");
    let closed = second.send_message(&queue("orders"), Message::new("z"), soon()).await;
    assert!(matches!(closed, Err(MessagingError::Closed { .. })), "{closed:?}");
    let again = store.connect().await.unwrap();
    let received = again.receive_messages(&queue("orders"), &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.len(), 2);
}

#[tokio::test]
async fn dropping_everything_finishes_what_was_begun() {
    let place = Place::new();
    let provider = place.connect().await;
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
    let again = place.connect().await;
    assert_eq!(again.queue_stats(&queue("orders"), soon()).await.unwrap().message_count(), Some(500));
}

#[tokio::test]
async fn a_receiver_is_woken_by_a_send_of_another_connection_and_of_another_store() {
    let place = Place::new();
    let receiver = place.connect().await;
    let same_store = receiver.store().connect().await.unwrap();
    // Opened apart, as another process would: heard of by a look at the file.
    let other_store = place.connect().await;
    for sender in [same_store, other_store] {
        let waits = waiting(&receiver);
        tokio::task::yield_now().await;
        // The writer does one thing after the other: when this is done, the receiver has looked and found nothing.
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
async fn a_queue_that_another_process_deleted_is_made_again() {
    let place = Place::new();
    let (ours, theirs) = (place.connect().await, place.connect().await);
    let queue = queue("orders");
    ours.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    theirs.delete_queue(&queue, soon()).await.unwrap();
    ours.send_message(&queue, Message::new("y"), soon()).await.unwrap();
    assert_eq!(theirs.list_queues(soon()).await.unwrap(), [queue]);
}

#[tokio::test]
async fn a_receiver_is_woken_when_a_time_comes_that_was_set_after_it_looked() {
    let place = Place::new();
    let provider = place.connect().await;
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
async fn what_nobody_was_there_to_receive_goes_back_uncounted() {
    let place = Place::new();
    let provider = place.connect().await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    // Each of these is given up at another moment of its way to the writer and back.
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
    assert_eq!(received.len(), 1, "a lease that nobody has is still held");
    // An answer that was already on its way when its caller left counts as a delivery.
    assert!(received[0].receive_count() < 20, "{}", received[0].receive_count());
}

#[tokio::test]
async fn a_log_stays_within_its_limit() {
    let place = Place::in_memory();
    let limit = 1024 * 1024;
    let provider = place.connect_with(SqliteOptions { wal_limit_bytes: limit, ..SqliteOptions::default() }).await;
    let log = place.folder.path().join("queues.db-wal");
    let mut longest = 0;
    for _ in 0..if is_long() { 2000 } else { 200 } {
        let messages = (0..100).map(|_| Message::new(vec![b'x'; 200])).collect();
        provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
        // A reader in between must not keep the log from starting over.
        provider.list_queues(soon()).await.unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    let file = std::fs::metadata(place.file()).unwrap().len();
    assert!(file > 4 * limit, "too little was written to tell: {file}");
    assert!(longest <= limit + limit / 2, "the log had {longest} bytes, the limit is {limit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_file_opened_many_times_serves_everybody() {
    let place = Place::new();
    let mut workers = Vec::new();
    for worker in 0..4 {
        let provider = place.connect().await;
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
    let left = place.connect().await.queue_stats(&queue("orders"), soon()).await.unwrap();
    assert_eq!(left.message_count(), Some(200));
}
