//! Large numbers of messages in a fetch, of workers, and of settlements at once.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_conformance::history::History;
use postrider_conformance::recorded::Recorded;
use postrider_core::{MessagingService, Provider, Settlement, SharedProvider};
use postrider_subscriber::{Delivery, Subscriber};
use tokio::sync::Semaphore;

use crate::fixture::{handler, queue, send, soon, start, stats, store};
use crate::held::max_held;
use crate::scripted::Scripted;
use crate::test_store::TestStore;

const MESSAGES: usize = 3000;
const FLUSHED: usize = 50_000;

/// Large batches are fetched and handled by this many workers: each message once, and none is leased beyond the
/// capacity.
async fn fetch_much(provider: impl Provider, workers: usize) {
    let provider = SharedProvider::new(provider);
    let history = History::new();
    let provider = Recorded::new(provider, history.clone(), 1);
    for _ in 0..3 {
        send(&provider, MESSAGES / 3).await;
    }
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let noted = seen.clone();
    let noting = handler(move |delivery: Delivery| {
        let is_new = noted.lock().unwrap().insert(delivery.envelope.id);
        async move {
            assert!(is_new, "handled twice");
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider, queue())
        .handler(noting)
        .max_workers(workers)
        .overfetch_factor(1.5)
        .fetch_batch_size(10_000)
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked == MESSAGES as u64).await;
    assert_eq!((counts.received, counts.panicked, counts.lost), (MESSAGES as u64, 0, 0));
    assert!(running.stop().await.is_clean());
    assert_eq!(seen.lock().unwrap().len(), MESSAGES);
    let most = max_held(&history.events());
    assert!((1..=workers * 3 / 2).contains(&most), "{most} were leased for {workers} workers");
}

#[tokio::test(start_paused = true)]
async fn large_batches_work_with_one_worker_and_with_five_hundred_in_memory() {
    for workers in [1, 500] {
        fetch_much(store(), workers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_work_with_one_worker_and_with_five_hundred_on_sqlite() {
    for workers in [1, 500] {
        let test_store = TestStore::in_memory();
        fetch_much(test_store.connect().await, workers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "large numbers on every store: scripts/test --full"]
async fn large_batches_work_with_one_worker_and_with_five_hundred_on_a_spool() {
    for workers in [1, 500] {
        let test_store = TestStore::in_memory();
        fetch_much(test_store.connect_to_spool().await, workers).await;
    }
}

/// All messages are decided at the same moment, and one of them has lost its lease.
async fn flush_much(provider: impl Provider) {
    let provider = SharedProvider::new(provider);
    let scripted = Scripted::counting(provider.clone());
    for _ in 0..FLUSHED / 5000 {
        send(&provider, 5000).await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let passing = gate.clone();
    let waiting = handler(move |_| {
        let passing = passing.clone();
        async move {
            passing.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(scripted.clone(), queue())
        .handler(waiting)
        .max_workers(FLUSHED)
        .overfetch_factor(1.0)
        .fetch_batch_size(10_000)
        .visibility(Duration::from_secs(600))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == FLUSHED as u64).await;
    let lease = scripted.counts.some_lease.lock().unwrap().take().unwrap();
    provider.settle(vec![Settlement::ack(lease)], soon()).await.unwrap().remove(0).unwrap();
    gate.add_permits(FLUSHED);
    let counts = running.until(|counts| counts.acked + counts.lost == FLUSHED as u64).await;
    assert_eq!((counts.lost, counts.unknown, counts.refused), (1, 0, 0), "one row fails alone");
    assert_eq!(scripted.counts.max_settled.load(Ordering::SeqCst), 1000);
    assert!(running.stop().await.is_clean());
    assert_eq!(stats(&provider).await.message_count(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn fifty_thousand_settlements_go_through_in_chunks_in_memory() {
    flush_much(store()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_settlements_go_through_in_chunks_on_sqlite() {
    let test_store = TestStore::in_memory();
    flush_much(test_store.connect().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "large numbers on every store: scripts/test --full"]
async fn fifty_thousand_settlements_go_through_in_chunks_on_a_spool() {
    let test_store = TestStore::in_memory();
    flush_much(test_store.connect_to_spool().await).await;
}
