//! Observers: what they get for each message, and how unstarted messages are released.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{Disposition, MessagingService, Nack, QueueAdmin, ReceiveOptions, RetryStrategy};
use postrider_subscriber::layers::RateLimitLayer;
use postrider_subscriber::{AckPolicy, Delivery, Ended, HandlerError, Observer, Shutdown, StopCause, Subscriber};
use tokio::time::Instant;
use tower_layer::Layer;

use crate::fixture::{handler, queue, send, soon, start, store};
use crate::scripted::{Call, Scripted, Verdict};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn sorted(&self) -> Vec<String> {
        let mut lines = self.0.lock().unwrap().clone();
        lines.sort();
        lines
    }
}

impl Observer for Log {
    fn ended(&self, message: Ended) {
        let disposition = match &message.disposition {
            None => "undecided",
            Some(Disposition::Ack) => "ack",
            Some(Disposition::Nack(Nack::Retry { .. })) => "retry",
            Some(Disposition::Nack(Nack::Release)) => "release",
            Some(Disposition::Nack(Nack::DeadLetter { .. })) => "dead-letter",
        };
        let seconds = message.since_received().as_secs();
        self.add(format!("{} {disposition} {seconds}", message.outcome.name()));
    }

    fn fetch_failed(&self, error: &postrider_core::MessagingError) {
        self.add(format!("fetch: {error}"));
    }

    fn settle_failed(&self, error: &postrider_core::MessagingError) {
        self.add(format!("settle: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_is_reported_once_with_its_outcome() {
    let provider = store();
    send(&provider, 5).await;
    let each = handler(|delivery: Delivery| async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        match &delivery.body[..] {
            b"0" => Err(HandlerError::permanent("never")),
            b"1" => Err(HandlerError::retryable("later")),
            _ => Ok(()),
        }
    });
    let log = Log::default();
    let subscriber = Subscriber::builder(provider, queue())
        .handler(each)
        .max_workers(4)
        .overfetch_factor(2.0)
        .retry_strategy(RetryStrategy::constant(Duration::from_secs(3600)))
        .observer(log.clone())
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 4 && counts.buffered == 1).await;
    running.stop().await;
    assert_eq!(
        log.sorted(),
        ["acked ack 2", "acked ack 2", "dead dead-letter 2", "released release 0", "retried retry 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_message_is_reported_when_its_handler_has_ended() {
    let provider = store();
    send(&provider, 2).await;
    let uneven = handler(|delivery: Delivery| async move {
        if &delivery.body[..] == b"0" {
            delivery.cancellation().cancelled().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            return Ok(());
        }
        std::future::pending().await
    });
    let log = Log::default();
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(uneven)
        .visibility(Duration::from_secs(3))
        .release_stuck_timeout(Duration::from_secs(20))
        .observer(log.clone())
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 2).await;
    provider.delete_queue(&queue(), soon()).await.unwrap();
    running.until(|counts| counts.lost == 2).await;
    assert_eq!(log.sorted(), [""; 0]);
    running.until(|counts| counts.stuck == 1).await;
    assert_eq!(log.sorted(), ["lost undecided 6", "stuck undecided 20"]);
    running.stop().await;
    assert_eq!(log.sorted().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_acknowledged_first_is_reported_when_its_handler_has_ended() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Settle(0) => Verdict::LoseAnswer,
        _ => Verdict::Pass,
    });
    let log = Log::default();
    let slow = handler(|delivery: Delivery| async move {
        let seconds = if &delivery.body[..] == b"0" { 4 } else { 4000 };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(slow)
        .ack_policy(AckPolicy::AckFirst)
        .graceful_timeout(Duration::from_secs(10))
        .observer(log.clone())
        .build()
        .unwrap();
    let running = start(subscriber);
    send(&provider, 1).await;
    running.until(|counts| counts.unknown == 1).await;
    send(&provider, 2).await;
    running.until(|counts| counts.in_flight == 2).await;
    running.stop().await;
    let lines = log.sorted();
    assert!(lines.iter().any(|line| line.starts_with("settle: ")), "{lines:?}");
    let of_messages: Vec<_> = lines.iter().filter(|line| !line.contains(':')).collect();
    assert_eq!(of_messages, ["abandoned ack 11", "acked ack 4", "unknown ack 0"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_handlers_have_the_configured_time_to_end() {
    let provider = store();
    send(&provider, 1).await;
    let obedient = handler(|delivery: Delivery| async move {
        delivery.cancellation().cancelled().await;
        tokio::time::sleep(Duration::from_secs(7)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider, queue())
        .handler(obedient)
        .graceful_timeout(Duration::from_secs(2))
        .cancel_timeout(Duration::from_secs(8))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 1).await;
    let report = running.stop().await;
    assert_eq!((report.finished, report.abandoned, report.took.as_secs()), (1, 0, 9));
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_permit_are_released_by_a_stop() {
    let provider = store();
    send(&provider, 4).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(RateLimitLayer::new(1, Duration::from_secs(60)).layer(slow))
        .max_workers(3)
        .graceful_timeout(Duration::from_secs(3600))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 3).await;
    let requested = Instant::now();
    let report = running.stop().await;
    assert_eq!((report.finished, report.released, report.abandoned), (1, 3, 0));
    assert!(requested.elapsed() < Duration::from_secs(6), "{:?}", requested.elapsed());
    let left = provider.receive_messages(&queue(), &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert!(left.len() == 3 && left.iter().all(|message| message.receive_count() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_message_acknowledged_first_is_handled_after_a_stop_is_requested() {
    let provider = store();
    send(&provider, 2).await;
    let runs = Arc::new(Mutex::new(0));
    let counted = runs.clone();
    let counting = handler(move |_| {
        *counted.lock().unwrap() += 1;
        async { Ok(()) }
    });
    let subscriber = Subscriber::builder(provider, queue())
        .handler(RateLimitLayer::new(1, Duration::from_secs(9)).layer(counting))
        .ack_policy(AckPolicy::AckFirst)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 2).await;
    running.stop().await;
    assert_eq!(*runs.lock().unwrap(), 2, "an acknowledged message cannot be released and must not be dropped");
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_store_are_reported() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Receive(0) => Verdict::Fail,
        _ => Verdict::Pass,
    });
    let log = Log::default();
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handler(|_| async { Ok(()) }))
        .stop_when_empty(true)
        .observer(log.clone())
        .build()
        .unwrap();
    subscriber.run(Shutdown::new()).await;
    assert!(log.sorted().len() == 1 && log.sorted()[0].starts_with("fetch: "), "{:?}", log.sorted());
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_delays_nothing() {
    struct Panicking;
    impl Observer for Panicking {
        fn ended(&self, _: Ended) {
            panic!("in an observer");
        }

        fn fetched(&self, _: usize) {
            panic!("in an observer");
        }
    }
    let provider = store();
    send(&provider, 5).await;
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handler(|_| async { Ok(()) }))
        .stop_when_empty(true)
        .observer(Panicking)
        .build()
        .unwrap();
    let report = subscriber.run(Shutdown::new()).await;
    assert_eq!((report.totals.acked, report.cause), (5, StopCause::NothingLeft));
}
