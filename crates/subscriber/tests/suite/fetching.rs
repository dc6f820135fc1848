//! Fetches: what is leased, and when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{
    Feature, MemoryProvider, MemoryStore, Message, MessagingService, Priority, ReceiveOptions, Support,
};
use postrider_subscriber::{Delivery, Subscriber};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::fixture::{handler, queue, send, soon, start, store};
use crate::scripted::{Call, Scripted, Verdict};

#[tokio::test(start_paused = true)]
async fn at_most_workers_times_factor_messages_are_leased() {
    for (workers, factor, most) in [(1, 1.5, 1), (4, 1.5, 6), (4, 1.0, 4), (10, 3.0, 30)] {
        let provider = Scripted::counting(store());
        send(&provider, 200).await;
        let subscriber = Subscriber::builder(provider.clone(), queue())
            .handler(handler(|_| async {
                tokio::time::sleep(Duration::from_millis(3)).await;
                Ok(())
            }))
            .max_workers(workers)
            .overfetch_factor(factor)
            .build()
            .unwrap();
        let running = start(subscriber);
        running.until(|counts| counts.acked == 200).await;
        running.stop().await;
        assert_eq!(provider.counts.max_leased.load(Ordering::SeqCst), most, "{workers} workers × {factor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_requests_at_most_a_batch() {
    let provider = Scripted::counting(store());
    send(&provider, 200).await;
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .max_workers(50)
        .fetch_batch_size(7)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 200).await;
    running.stop().await;
    assert_eq!(provider.counts.max_requested.load(Ordering::SeqCst), 7);
}

#[tokio::test(start_paused = true)]
async fn a_store_with_a_limit_of_a_thousand_is_asked_again_at_once() {
    let provider = Scripted::counting(store()).returning_at_most(1000);
    send(&provider, 3500).await;
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handler(|_| std::future::pending()))
        .max_workers(5000)
        .fetch_batch_size(10_000)
        .max_fetch_interval(Duration::from_secs(3600))
        .graceful_timeout(Duration::ZERO)
        .build()
        .unwrap();
    let before = Instant::now();
    let running = start(subscriber);
    running.until(|counts| counts.in_flight == 3500).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_never_waits_for_a_worker() {
    let provider = store();
    send(&provider, 40).await;
    // Half of them have been delivered before.
    drop(provider.receive_messages(&queue(), &ReceiveOptions::batch(20), soon()).await.unwrap());
    let gate = Arc::new(Semaphore::new(0));
    let passing = gate.clone();
    let started = Arc::new(AtomicUsize::new(0));
    let begun = started.clone();
    let waiting = handler(move |delivery: Delivery| {
        let again = usize::from(delivery.envelope.receive_count > 1);
        begun.fetch_add(again, Ordering::SeqCst);
        let (passing, begun) = (passing.clone(), begun.clone());
        async move {
            passing.acquire().await.unwrap().forget();
            begun.fetch_sub(again, Ordering::SeqCst);
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(waiting)
        .max_workers(4)
        .overfetch_factor(5.0)
        .max_deliveries(50)
        .build()
        .unwrap();
    let running = start(subscriber);
    let mut max_released = 0;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let peeked = postrider_core::QueueAdmin::peek(&provider, &queue(), 100, soon()).await.unwrap();
        let leased_again = peeked
            .iter()
            .filter(|message| message.state == postrider_core::LiveState::Processing && message.deliveries_count > 1)
            .count();
        let counts = running.monitor.counts();
        let running_again = started.load(Ordering::SeqCst);
        assert!(leased_again <= 4, "{leased_again} were leased and only 4 can run");
        // A message whose handler has ended stays leased until it is settled.
        let accounted_for = running_again + counts.unsettled as usize;
        assert!(
            accounted_for >= leased_again,
            "{running_again} run of {leased_again}: one waits for a worker, {counts:?}"
        );
        max_released = max_released.max(counts.released);
        gate.add_permits(1);
    }
    assert!(max_released > 0, "messages that could not start were released");
    gate.add_permits(1000);
    let counts = running.until(|counts| counts.acked == 40).await;
    assert_eq!(counts.dead + counts.lost, 0, "no message was charged");
    assert!(counts.released < 60, "{}: a fetch and a release do not follow each other for ever", counts.released);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_starts_before_the_others_of_its_fetch() {
    let provider = store();
    send_one(&provider, "again", Priority::LOWEST).await;
    drop(provider.receive_messages(&queue(), &ReceiveOptions::default(), soon()).await.unwrap());
    for body in ["first", "second"] {
        send_one(&provider, body, Priority::HIGHEST).await;
    }
    let begun = Arc::new(Mutex::new(Vec::new()));
    let noted = begun.clone();
    let noting = handler(move |delivery: Delivery| {
        noted.lock().unwrap().push(delivery.body.clone());
        async { Ok(()) }
    });
    let subscriber =
        Subscriber::builder(provider, queue()).handler(noting).max_workers(1).overfetch_factor(5.0).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 3).await;
    assert_eq!(*begun.lock().unwrap(), ["again", "first", "second"], "whatever their order in the store");
    assert_eq!(running.stop().await.totals.released, 0);
}

async fn send_one(provider: &MemoryProvider, body: &'static str, priority: Priority) {
    provider.send_message(&queue(), Message::new(body).priority(priority), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_subscriber_fetches_once_a_second() {
    let provider = Scripted::counting(store());
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    // The first fetches, before and after the subscription to hints, belong to the start.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = provider.receives();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let receives = provider.receives() - before;
    assert!((590..=600).contains(&receives), "{receives}");
    let others = [&provider.counts.settles, &provider.counts.extends].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(others, [0, 0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_ends_the_wait_at_once() {
    let provider = store();
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .max_fetch_interval(Duration::from_secs(3600))
        .build()
        .unwrap();
    let running = start(subscriber);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    send(&provider, 1).await;
    running.until(|counts| counts.acked == 1).await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_hints_polling_is_enough() {
    let store = MemoryStore::new().open();
    let without = store.capabilities().clone().with(Feature::WakeUp, Support::refused("none"));
    let provider = Scripted::counting(store).with_capabilities(without);
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = Instant::now();
    send(&provider, 1).await;
    running.until(|counts| counts.acked == 1).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_is_asked_again_with_growing_pauses() {
    let provider = Scripted::new(store(), |call| match call {
        Call::Receive(number) if number < 10 => Verdict::Fail,
        _ => Verdict::Pass,
    });
    send(&provider, 1).await;
    let before = Instant::now();
    let running =
        start(Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap());
    while provider.receives() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let health = running.monitor.health();
    assert_eq!(health.state, postrider_subscriber::HealthState::Failing);
    assert!(health.errors_in_a_row >= 3 && health.last_error.is_some(), "{health:?}");
    running.until(|counts| counts.acked == 1).await;
    assert!(
        (Duration::from_millis(1900)..Duration::from_secs(20)).contains(&before.elapsed()),
        "{:?}",
        before.elapsed()
    );
    assert_eq!(running.monitor.health().state, postrider_subscriber::HealthState::Up);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_delays_one_fetch_only() {
    let provider = Scripted::new(store(), |call| if call == Call::Receive(0) { Verdict::Hang } else { Verdict::Pass });
    send(&provider, 3).await;
    let subscriber = Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 3).await;
    running.stop().await;
}
