//! Flushes: how decided messages are settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_core::{Deadline, Message, MessagingService};
use postrider_subscriber::{Delivery, HealthState, Subscriber};
use tokio::time::Instant;

use crate::fixture::{handler, queue, send, soon, start, stats, store};
use crate::scripted::{Call, Scripted, Verdict};

#[tokio::test(start_paused = true)]
async fn a_single_message_is_settled_at_once() {
    let provider = store();
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .flush_interval(Duration::from_secs(60))
        .max_fetch_interval(Duration::from_secs(60))
        .build()
        .unwrap();
    let running = start(subscriber);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = Instant::now();
    send(&provider, 1).await;
    running.until(|counts| counts.acked == 1).await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_waits_at_most_the_interval_for_a_hanging_fetch() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Receive(1) => Verdict::Hang,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(slow)
        .flush_interval(Duration::from_millis(500))
        .graceful_timeout(Duration::ZERO)
        .build()
        .unwrap();
    let before = Instant::now();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 1).await;
    let took = before.elapsed();
    assert!((Duration::from_millis(3400)..Duration::from_millis(3700)).contains(&took), "{took:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_flush_is_repeated_while_the_leases_are_kept() {
    // The store fails all settles for the length of several leases.
    let away = Deadline::after(Duration::from_secs(100));
    let provider = Scripted::new(store(), move |call| match call {
        Call::Settle(_) if !away.has_passed() => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 20).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|delivery: Delivery| async move {
            assert_eq!(delivery.envelope.receive_count, 1, "it is delivered once");
            Ok(())
        }))
        .visibility(Duration::from_secs(10))
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked == 20).await;
    assert_eq!((counts.lost, counts.failed + counts.panicked, counts.received), (0, 0, 20));
    assert!(provider.counts.settles.load(Ordering::SeqCst) < 300, "with pauses");
    assert!(provider.counts.extends.load(Ordering::SeqCst) > 20 * 20);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_ack_that_is_repeated_after_a_lost_answer_stays_unknown() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Settle(0) => Verdict::LoseAnswer,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    let counts = running.until(|counts| counts.unknown == 1).await;
    assert_eq!((counts.acked, counts.lost), (0, 0));
    assert_eq!(provider.counts.settles.load(Ordering::SeqCst), 2, "it was repeated once");
    running.stop().await;
    assert_eq!(stats(&provider.inner).await.message_count(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_row_does_not_delay_the_others() {
    let provider = store();
    send(&provider, 10).await;
    let store = provider.clone();
    let purging = handler(move |delivery: Delivery| {
        let store = store.clone();
        async move {
            if &delivery.body[..] == b"5" {
                // Its lease is gone before it is settled.
                postrider_core::QueueAdmin::delete_queue(&store, &queue(), soon()).await.unwrap();
                let again = (0..3).map(|_| Message::new("again")).collect();
                store.send_batch(&queue(), again, soon()).await.unwrap();
            }
            Ok(())
        }
    });
    let running = start(Subscriber::builder(provider, queue()).handler(purging).max_workers(1).build().unwrap());
    let counts = running.until(|counts| counts.acked == 8).await;
    assert_eq!(counts.lost, 1, "five and three are settled, one was lost");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_settles_make_the_health_failing() {
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = is_repaired.clone();
    let provider = Scripted::new(store(), move |call| match call {
        Call::Settle(_) if !repaired.load(Ordering::SeqCst) => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 3).await;
    let subscriber = Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.unsettled == 3).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let health = running.monitor.health();
    assert_eq!(health.state, HealthState::Failing, "{health:?}");
    is_repaired.store(true, Ordering::SeqCst);
    running.until(|counts| counts.acked == 3).await;
    assert_eq!(running.monitor.health().state, HealthState::Up);
    running.stop().await;
}
