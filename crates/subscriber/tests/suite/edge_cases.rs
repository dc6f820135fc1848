//! Edge cases of handlers, clones, errors, rows and stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::{MessagingService, ReceiveOptions, RetryStrategy};
use postrider_subscriber::{AckPolicy, Delivery, HandlerError, HealthState, Subscriber};
use tokio::sync::Barrier;
use tokio::time::Instant;
use tower_service::Service;

use crate::fixture::{handler, queue, send, soon, start, stats, store};

/// Batches run side by side on all workers.
#[tokio::test(start_paused = true)]
async fn batches_fill_all_workers() {
    let provider = store();
    let barrier = Arc::new(Barrier::new(4));
    let batches = move |batch: Vec<Delivery>| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            vec![Ok::<(), HandlerError>(()); batch.len()]
        }
    };
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .batch_handler(batches, 2)
        .max_workers(4)
        .max_fetch_interval(Duration::from_secs(3600))
        .build()
        .unwrap();
    let running = start(subscriber);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = Instant::now();
    send(&provider, 8).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let counts = running.monitor.counts();
    assert_eq!(counts.acked, 8, "{counts:?} after {:?}", before.elapsed());
}

/// A stop while a worker has several messages in a burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_stop_in_the_middle_of_a_burst_starts_no_handler() {
    let provider = store();
    send(&provider, 100).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let goes_on = Arc::new(AtomicBool::new(false));
    let (counting, waiting) = (begun.clone(), goes_on.clone());
    let blocking = handler(move |_: Delivery| {
        let (number, waiting) = (counting.fetch_add(1, Ordering::SeqCst), waiting.clone());
        async move {
            while number >= 32 && !waiting.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(blocking)
        .max_workers(1)
        .overfetch_factor(100.0)
        .build()
        .unwrap();
    let running = start(subscriber);
    while begun.load(Ordering::SeqCst) < 33 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let at_stop = begun.load(Ordering::SeqCst);
    let monitor = running.monitor.clone();
    let going_on = async {
        while monitor.health().state != HealthState::Stopping {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        goes_on.store(true, Ordering::SeqCst);
    };
    let (report, ()) = tokio::join!(running.stop(), going_on);
    let left = provider.receive_messages(&queue(), &ReceiveOptions::batch(100), soon()).await.unwrap();
    let charged = left.iter().filter(|message| message.receive_count() > 1).count();
    assert_eq!((begun.load(Ordering::SeqCst) - at_stop, report.unsettled, charged), (0, 0, 0), "{report:?}");
}

#[derive(Debug)]
struct Unspeakable;
impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words")
    }
}

impl std::error::Error for Unspeakable {}

/// An error whose text panics.
#[tokio::test(start_paused = true)]
async fn an_error_whose_text_panics_strands_no_message() {
    let provider = store();
    send(&provider, 1).await;
    let failing = handler(|_: Delivery| async { Err(HandlerError::permanent(Unspeakable)) });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(failing)
        .retry_strategy(RetryStrategy::NoRetry)
        .visibility(Duration::from_secs(3))
        .build()
        .unwrap();
    let running = start(subscriber);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let counts = running.monitor.counts();
    assert_eq!((counts.in_flight, counts.dead + counts.retried + counts.lost > 0), (0, true), "{counts:?}");
}

/// Panics when it is cloned for the nth time.
struct Fragile(Arc<AtomicUsize>, usize);
impl Clone for Fragile {
    fn clone(&self) -> Self {
        let number = self.0.fetch_add(1, Ordering::SeqCst);
        assert!(number != self.1, "broken in the making");
        Self(self.0.clone(), self.1)
    }
}

impl Service<Delivery> for Fragile {
    type Response = ();
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<(), HandlerError>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Delivery) -> Self::Future {
        Box::pin(async { panic!("handler") })
    }
}

/// A clone that panics once after a handler has.
#[tokio::test(start_paused = true)]
async fn a_clone_that_panics_strands_no_message() {
    let provider = store();
    send(&provider, 1).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(Fragile(Arc::default(), 2))
        .max_workers(1)
        .retry_strategy(RetryStrategy::NoRetry)
        .visibility(Duration::from_secs(3))
        .build()
        .unwrap();
    let running = start(subscriber);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let counts = running.monitor.counts();
    assert_eq!((counts.in_flight, counts.dead + counts.retried + counts.lost > 0), (0, true), "{counts:?}");
}

/// Handlers wait for an acknowledgement that waits for a fetch.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_before_the_handler_does_not_wait_for_others() {
    let provider = store();
    send(&provider, 60).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let counting = handled.clone();
    let mixed = handler(move |delivery: Delivery| {
        let counting = counting.clone();
        async move {
            let number: usize = std::str::from_utf8(&delivery.body).unwrap().parse().unwrap();
            if number < 15 {
                std::future::pending::<()>().await;
            }
            counting.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(mixed)
        .ack_policy(AckPolicy::AckFirst)
        .max_workers(16)
        .build()
        .unwrap();
    let running = start(subscriber);
    let before = Instant::now();
    while handled.load(Ordering::SeqCst) < 45 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(before.elapsed() < Duration::from_millis(200), "{:?}", before.elapsed());
    drop(running);
}

/// A row that the store cannot settle for now does not delay the others, and leases stay within the bound.
#[tokio::test(start_paused = true)]
async fn a_row_that_keeps_failing_does_not_delay_the_others() {
    let provider = crate::scripted::Scripted::counting(store());
    let ids = send(&provider, 1).await;
    *provider.counts.bad_row.lock().unwrap() = Some(ids[0]);
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_: Delivery| async { Ok(()) }))
        .max_workers(4)
        .overfetch_factor(1.0)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.unsettled == 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut slowest = Duration::ZERO;
    for number in 1..=10_u64 {
        let before = Instant::now();
        send(&provider, 1).await;
        running.until(|counts| counts.acked == number).await;
        slowest = slowest.max(before.elapsed());
    }
    let settles = provider.counts.settles.load(Ordering::SeqCst);
    assert!(slowest < Duration::from_millis(200), "{slowest:?}, {settles} settles");
}

#[tokio::test(start_paused = true)]
async fn leases_stay_within_the_bound_when_a_row_fails() {
    let provider = crate::scripted::Scripted::counting(store());
    let ids = send(&provider, 20).await;
    *provider.counts.bad_row.lock().unwrap() = Some(ids[0]);
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_: Delivery| async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(())
        }))
        .max_workers(4)
        .overfetch_factor(1.0)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 19).await;
    assert_eq!(provider.counts.max_leased.load(Ordering::SeqCst), 4);
}

struct Brittle(Arc<AtomicUsize>);
impl Clone for Brittle {
    fn clone(&self) -> Self {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) < 2, "broken in the making");
        Self(self.0.clone())
    }
}

impl Service<Delivery> for Brittle {
    type Response = ();
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<(), HandlerError>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        Box::pin(async move {
            assert!(delivery.body != "0", "handler");
            Ok(())
        })
    }
}

/// A worker that ends is noticed.
#[tokio::test(start_paused = true)]
async fn a_worker_that_died_is_noticed() {
    let provider = store();
    send(&provider, 3).await;
    let subscriber =
        Subscriber::builder(provider, queue()).handler(Brittle(Arc::default())).max_workers(1).build().unwrap();
    let running = start(subscriber);
    let monitor = running.monitor.clone();
    let ended = tokio::time::timeout(Duration::from_secs(3600), running.stopped()).await;
    assert!(ended.is_ok(), "it sits idle: {:?}", monitor.counts());
}

/// A message whose work another worker does is not dead-lettered.
#[tokio::test(start_paused = true)]
async fn a_message_whose_work_takes_long_elsewhere_is_not_dead_lettered() {
    use postrider_subscriber::layers::IdempotencyLayer;
    let provider = store();
    send(&provider, 2).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(async || tokio::time::sleep(Duration::from_secs(600)).await)
        .layer(IdempotencyLayer::new(provider.clone()).by(|_| Some("the same".into())))
        .build()
        .unwrap();
    let running = start(subscriber);
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(1200)).await;
    let counts = running.monitor.counts();
    let dead = stats(&provider).await.dead;
    assert_eq!(counts.acked, 2, "{dead:?} dead, {counts:?} after {:?}", began.elapsed());
}

/// The shortest time between two fetches is kept.
#[tokio::test(start_paused = true)]
async fn fetches_keep_the_shortest_time_between_them() {
    let provider = crate::scripted::Scripted::counting(store());
    send(&provider, 200).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_: Delivery| async { Ok(()) }))
        .max_workers(10)
        .min_fetch_interval(Duration::from_millis(100))
        .build()
        .unwrap();
    let before = Instant::now();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 200).await;
    let fetches = provider.receives() as u32;
    assert!(before.elapsed() >= Duration::from_millis(100) * (fetches - 2), "{fetches} in {:?}", before.elapsed());
}
