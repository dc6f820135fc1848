//! The option `stop_when_empty`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Measured, Message, MessagingService, RetryStrategy};
use postrider_subscriber::{AckPolicy, HandlerError, Router, Shutdown, StopReport, Subscriber};
use tokio::time::Instant;

use crate::fixture::{handler, queue, send, soon, stats, store};
use crate::scripted::{Call, Scripted, Verdict};

async fn ended<P: MessagingService, R: postrider_subscriber::Run>(subscriber: Subscriber<P, R>) -> StopReport {
    tokio::time::timeout(Duration::from_secs(60), subscriber.run(Shutdown::new())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_all_due_messages_are_settled_and_leaves_the_rest() {
    let provider = store();
    send(&provider, 20).await;
    let later = Message::new("later").delay(Duration::from_secs(3600));
    provider.send_message(&queue(), later, soon()).await.unwrap();
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .max_workers(3)
        .stop_when_empty(true)
        .build()
        .unwrap();
    let began = Instant::now();
    let report = ended(subscriber).await;
    assert_eq!((report.totals.acked, report.unsettled), (20, 0));
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!(stats(&provider).await.delayed, Measured::Exact(1));
}

#[tokio::test(start_paused = true)]
async fn messages_that_handlers_unblock_send_or_retry_are_handled_too() {
    let provider = store();
    for _ in 0..3 {
        provider.send_message(&queue(), Message::new("5").ordering_key("k").unwrap(), soon()).await.unwrap();
    }
    let sender = provider.clone();
    let again = handler(move |delivery| {
        let sender = sender.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let left: u32 = std::str::from_utf8(&delivery.body).unwrap().parse().unwrap();
            if left > 0 {
                sender.send_message(&queue(), Message::new((left - 1).to_string()), soon()).await.unwrap();
            }
            if delivery.attempt() == 1 { Err(HandlerError::retryable("again")) } else { Ok(()) }
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(again)
        .max_workers(2)
        .retry_strategy(RetryStrategy::constant(Duration::ZERO))
        .stop_when_empty(true)
        .build()
        .unwrap();
    let shutdown = Shutdown::new();
    let report = tokio::time::timeout(Duration::from_secs(3600), subscriber.run(shutdown)).await.unwrap();
    // Each of them is attempted twice and sends its successor twice.
    let all = 3 * (1..=5).map(|round| 2_u64.pow(round)).sum::<u64>() + 3;
    assert_eq!((report.totals.acked, report.totals.retried), (all, all));
    assert_eq!(stats(&provider).await.ready, Measured::Exact(0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_or_an_unanswered_settle_does_not_stop_it() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Receive(0 | 2) | Call::Settle(0..3) => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .stop_when_empty(true)
        .build()
        .unwrap();
    let report = ended(subscriber).await;
    assert_eq!((report.totals.acked, report.unsettled), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_a_lease_is_waited_for() {
    let provider = store();
    send(&provider, 1).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let sender = provider.clone();
    let slow = handler(move |delivery| {
        let (runs, sender) = (counted.clone(), sender.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            if &delivery.body[..] == b"0" {
                sender.send_message(&queue(), Message::new("next"), soon()).await.unwrap();
            }
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider, queue())
        .handler(slow)
        .ack_policy(AckPolicy::AckFirst)
        .stop_when_empty(true)
        .build()
        .unwrap();
    let report = ended(subscriber).await;
    assert_eq!((report.abandoned, runs.load(Ordering::SeqCst)), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn it_fetches_again_at_once_when_the_last_handler_ends() {
    let provider = store();
    send(&provider, 1).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let subscriber = Subscriber::builder(provider, queue())
        .handler(slow)
        .max_workers(4)
        .max_fetch_interval(Duration::from_secs(3600))
        .stop_when_empty(true)
        .build()
        .unwrap();
    let began = Instant::now();
    ended(subscriber).await;
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_with_nothing_left_does_not_end_the_others() {
    let provider = store();
    send(&provider, 3).await;
    let slow = handler(|_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let subscriber = |queue: &str| {
        let builder = Subscriber::builder(provider.clone(), queue).handler(slow.clone()).max_workers(1);
        builder.stop_when_empty(true).build().unwrap()
    };
    let router = Router::new().with(subscriber("nothing")).with(subscriber("orders"));
    let reports = tokio::time::timeout(Duration::from_secs(60), router.run(Shutdown::new())).await.unwrap();
    assert_eq!(reports.iter().map(|stopped| stopped.report.totals.acked).collect::<Vec<_>>(), [0, 3]);
}
