//! Leases: renewed while they are needed, and what happens when they are lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use postrider_core::{Message, MessagingService, QueueAdmin};
use postrider_subscriber::{Delivery, HandlerError, Subscriber};
use tokio::time::Instant;
use tower_service::Service;

use crate::fixture::{handler, queue, send, soon, start, store};
use crate::scripted::{Call, Scripted, Verdict};

const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_while_its_handler_runs_and_while_its_message_waits() {
    let provider = Scripted::counting(store());
    send(&provider, 6).await;
    let slow = handler(|delivery: Delivery| async move {
        tokio::time::sleep(LEASE * 20).await;
        assert!(!delivery.cancellation().is_cancelled());
        assert_eq!(delivery.envelope.receive_count, 1);
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(slow)
        .max_workers(2)
        .overfetch_factor(3.0)
        .visibility(LEASE)
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked == 6).await;
    assert_eq!((counts.lost, counts.panicked, counts.received), (0, 0, 6));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_cancels_the_handler_and_discards_its_outcome() {
    let provider = store();
    send(&provider, 1).await;
    let cancelled = Arc::new(AtomicUsize::new(0));
    let noted = cancelled.clone();
    let obeying = handler(move |delivery: Delivery| {
        let noted = noted.clone();
        async move {
            delivery.cancellation().cancelled().await;
            noted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue()).handler(obeying).visibility(LEASE).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 1).await;
    provider.delete_queue(&queue(), soon()).await.unwrap();
    let before = Instant::now();
    let counts = running.until(|counts| counts.lost == 1 && counts.in_flight == 0).await;
    assert!(before.elapsed() <= LEASE / 2, "{:?}", before.elapsed());
    assert_eq!((counts.acked, cancelled.load(Ordering::SeqCst)), (0, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_at_its_latest_end() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Extend(_) => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let before = Instant::now();
    let obeying = handler(move |delivery: Delivery| async move {
        if delivery.envelope.receive_count == 1 {
            delivery.cancellation().cancelled().await;
            let held = before.elapsed();
            assert!(held >= LEASE && held < LEASE + LEASE / 10, "{held:?}");
        }
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue()).handler(obeying).visibility(LEASE).build().unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.lost == 1 && counts.acked == 1 && counts.in_flight == 0).await;
    assert_eq!(counts.panicked, 0, "lost at its latest end, and handled when delivered again");
    let extends = provider.counts.extends.load(Ordering::SeqCst);
    assert!((3..20).contains(&extends), "{extends}: several attempts, with pauses");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_retried_in_time() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Extend(number) if number % 3 != 0 => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let slow = handler(|_| async {
        tokio::time::sleep(LEASE * 30).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue()).handler(slow).visibility(LEASE).build().unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked == 1).await;
    assert_eq!((counts.lost, counts.received), (0, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_taken_back_from_a_handler_that_outlives_its_lost_lease() {
    let provider = store();
    send(&provider, 1).await;
    let deaf = handler(|delivery: Delivery| async move {
        if delivery.body != "next" {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(deaf)
        .max_workers(1)
        .visibility(LEASE)
        .release_stuck_timeout(LEASE * 4)
        .release_stuck_interval(LEASE)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 1).await;
    tokio::time::sleep(LEASE * 10).await;
    assert_eq!(running.monitor.counts().stuck, 0, "a valid lease is never touched");
    provider.delete_queue(&queue(), soon()).await.unwrap();
    provider.send_message(&queue(), Message::new("next"), soon()).await.unwrap();
    let counts = running.until(|counts| counts.acked == 1).await;
    assert_eq!((counts.lost, counts.stuck), (1, 1));
    assert!(running.stop().await.is_clean());
}

/// Records for each message whether it was leased when its handler was called. Blocks once, before a handler is called.
#[derive(Debug, Clone, Default)]
struct StandsStill {
    leased: Arc<Mutex<Vec<bool>>>,
    has_stood: Arc<AtomicUsize>,
}

impl Service<Delivery> for StandsStill {
    type Response = ();
    type Error = HandlerError;
    type Future = std::future::Ready<Result<(), HandlerError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        // By then a worker takes several messages in a burst, and this is between two of them.
        if self.leased.lock().unwrap().len() == 10 && self.has_stood.swap(1, Ordering::SeqCst) == 0 {
            std::thread::sleep(LEASE * 5 / 4);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        self.leased.lock().unwrap().push(delivery.is_leased());
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn each_message_of_a_burst_starts_with_a_lease_or_not_at_all() {
    const MESSAGES: usize = 50;
    let provider = store();
    send(&provider, MESSAGES).await;
    let service = StandsStill::default();
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(service.clone())
        .max_workers(1)
        .overfetch_factor(MESSAGES as f64)
        .visibility(LEASE)
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked >= MESSAGES as u64 - 10).await;
    assert_eq!(service.has_stood.load(Ordering::SeqCst), 1);
    let leased = service.leased.lock().unwrap().clone();
    assert!(leased.iter().all(|is_leased| *is_leased), "{counts:?}: {leased:?}");
    running.stop().await;
}
