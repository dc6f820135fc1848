//! Stops: no new handlers, a time limit for running ones, and an end in any case.

use std::time::Duration;

use postrider_core::{Message, MessagingService, ReceiveOptions};
use postrider_subscriber::{AckPolicy, Delivery, HealthState, StopCause, Subscriber};
use tokio::time::Instant;

use crate::fixture::{handler, queue, send, soon, start, stats, store};
use crate::scripted::{Call, Scripted, Verdict};

#[tokio::test(start_paused = true)]
async fn running_handlers_finish_and_unstarted_messages_go_back_uncounted() {
    let provider = store();
    send(&provider, 10).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(slow)
        .max_workers(2)
        .overfetch_factor(3.0)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 2 && counts.buffered == 4).await;
    let monitor = running.monitor.clone();
    let report = running.stop().await;
    assert_eq!((report.finished, report.released, report.abandoned), (2, 4, 0));
    assert!(report.is_clean() && report.took < Duration::from_secs(6), "{report}");
    assert_eq!(monitor.health().state, HealthState::Stopped);
    let left = provider.receive_messages(&queue(), &ReceiveOptions::batch(100), soon()).await.unwrap();
    assert_eq!(left.len(), 8);
    assert!(left.iter().all(|message| message.receive_count() == 1), "none was charged");
}

#[tokio::test(start_paused = true)]
async fn unstarted_messages_are_released_before_running_ones_end() {
    let provider = store();
    send(&provider, 3).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(slow)
        .max_workers(1)
        .overfetch_factor(3.0)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.buffered == 2).await;
    running.shutdown.request();
    running.until(|counts| counts.released == 2 && counts.in_flight == 1).await;
    assert_eq!(running.monitor.health().state, HealthState::Stopping);
    assert_eq!(running.stopped().await.finished, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_is_cancelled_then_dropped_and_its_message_charged() {
    let provider = store();
    send(&provider, 2).await;
    let uneven = handler(|delivery: Delivery| async move {
        if &delivery.body[..] == b"0" {
            delivery.cancellation().cancelled().await;
            return Ok(());
        }
        std::future::pending().await
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(uneven)
        .graceful_timeout(Duration::from_secs(7))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 2).await;
    let report = running.stop().await;
    assert_eq!((report.finished, report.abandoned, report.was_forced), (1, 1, false));
    assert!((Duration::from_secs(7)..Duration::from_secs(9)).contains(&report.took), "{report}");
    let left = provider.receive_messages(&queue(), &ReceiveOptions::batch(100), soon()).await.unwrap();
    assert_eq!(left.len(), 1, "it can be received at once");
    assert_eq!(left[0].receive_count(), 2, "and its delivery counts");
}

#[tokio::test(start_paused = true)]
async fn the_second_request_stops_at_once() {
    let provider = store();
    send(&provider, 1).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| std::future::pending()))
        .graceful_timeout(Duration::from_secs(3600))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 1).await;
    running.shutdown.request();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    running.shutdown.request();
    let report = running.stopped().await;
    assert!(report.was_forced && report.abandoned == 1);
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_cannot_block_a_stop() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Settle(_) | Call::Receive(1..) => Verdict::Hang,
        _ => Verdict::Pass,
    });
    send(&provider, 5).await;
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    running.until(|counts| counts.unsettled == 5).await;
    let report = running.stop().await;
    assert_eq!(report.unsettled, 5);
    assert!(!report.is_clean() && report.took < Duration::from_secs(15), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_a_lease_is_dropped_too() {
    let provider = store();
    send(&provider, 1).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| std::future::pending()))
        .ack_policy(AckPolicy::AckFirst)
        .graceful_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 1 && counts.acked == 1).await;
    let report = running.stop().await;
    assert_eq!(report.abandoned, 1);
    assert!(report.took < Duration::from_secs(4), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_provider_ends_the_subscriber() {
    let provider = store();
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    provider.close(soon()).await.unwrap();
    running.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_subscriber_returns_every_message() {
    let provider = store();
    send(&provider, 6).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| std::future::pending()))
        .max_workers(4)
        .build()
        .unwrap();
    let monitor = subscriber.monitor();
    let task = tokio::spawn(subscriber.run(postrider_subscriber::Shutdown::new()));
    while monitor.counts().in_flight < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(monitor);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    tokio::time::sleep(Duration::from_millis(1)).await;
    provider.send_message(&queue(), Message::new("last"), soon()).await.unwrap();
    let left = provider.receive_messages(&queue(), &ReceiveOptions::batch(100), soon()).await.unwrap();
    assert_eq!((left.len(), stats(&provider).await.message_count()), (7, Some(7)));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_panics_stops_the_subscriber_and_is_reported() {
    let provider =
        Scripted::new(store(), |call| if matches!(call, Call::Receive(3)) { Verdict::Panic } else { Verdict::Pass });
    send(&provider, 2).await;
    let subscriber = Subscriber::builder(provider, queue()).handler(handler(async |_| Ok(()))).build().unwrap();
    let report = start(subscriber).stopped().await;
    assert_eq!(report.cause, StopCause::Panicked("a bug in the store".into()));
    assert!(report.to_string().ends_with("; a loop panicked: a bug in the store"), "{report}");
}
