//! Limits, batches, and several subscribers in one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::{Message, MessagingService, QueueName};
use postrider_subscriber::{Delivery, HandlerError, Metrics, Outcome, Router, Shutdown, Subscriber, WorkLimit};
use tower_service::Service;

use crate::fixture::{handler, queue, send, soon, start, store};

/// Counts handlers that run at the same time.
#[derive(Debug, Clone, Default)]
struct Concurrency(Arc<(AtomicUsize, AtomicUsize)>);

impl Concurrency {
    async fn visit(self) {
        let inside = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(inside, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn max(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_the_application_is_limited_and_others_pass_it() {
    let provider = store();
    let message = |number: usize| {
        let tenant = if number < 8 { "large" } else { "small" };
        Message::new(tenant).header("tenant", tenant).unwrap()
    };
    provider.send_batch(&queue(), (0..40).map(message).collect(), soon()).await.unwrap();
    let concurrency = [Concurrency::default(), Concurrency::default()];
    let inside = concurrency.clone();
    let visiting = handler(move |delivery: Delivery| {
        let concurrency = inside[usize::from(delivery.body != "large")].clone();
        async move {
            concurrency.visit().await;
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(visiting)
        .max_workers(8)
        .overfetch_factor(2.0)
        .max_per_key(2, |envelope| {
            envelope.headers.get("tenant").filter(|tenant| *tenant == "large").map(str::to_owned)
        })
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 40).await;
    assert_eq!(concurrency[0].max(), 2);
    assert!(concurrency[1].max() >= 6, "{}", concurrency[1].max());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_shared_limit_holds_over_several_subscribers() {
    let provider = store();
    let other = QueueName::new("letters").unwrap();
    send(&provider, 30).await;
    let letters = (0..30).map(|_| Message::new("letter")).collect();
    provider.send_batch(&other, letters, soon()).await.unwrap();
    let (limit, concurrency) = (WorkLimit::new(3), Concurrency::default());
    let subscriber = |queue: QueueName| {
        let concurrency = concurrency.clone();
        let visiting = handler(move |_| {
            let concurrency = concurrency.clone();
            async move {
                concurrency.visit().await;
                Ok(())
            }
        });
        Subscriber::builder(provider.clone(), queue).handler(visiting).work_limit(&limit).build().unwrap()
    };
    let router = Router::new().with(subscriber(queue())).with(subscriber(other.clone()));
    let monitors = router.monitors();
    let shutdown = Shutdown::new();
    let task = tokio::spawn(router.run(shutdown.clone()));
    while monitors.iter().any(|monitor| monitor.counts().acked < 30) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(concurrency.max(), 3);
    shutdown.request();
    let reports = task.await.unwrap();
    assert_eq!(reports.iter().map(|routed| routed.queues[0].clone()).collect::<Vec<_>>(), [queue(), other]);
    assert!(reports.iter().all(|routed| routed.report.is_clean()));
}

#[tokio::test(start_paused = true)]
async fn when_one_subscriber_of_a_router_ends_the_others_are_stopped() {
    let (closing, other) = (store(), store());
    let nothing = || handler(|_| async { Ok(()) });
    let router = Router::new()
        .with(Subscriber::builder(closing.clone(), queue()).handler(nothing()).build().unwrap())
        .with(Subscriber::builder(other, queue()).handler(nothing()).build().unwrap());
    let task = tokio::spawn(router.run(Shutdown::new()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    closing.close(soon()).await.unwrap();
    assert_eq!(task.await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_subscriber_serves_several_queues() {
    let provider = store();
    let other = QueueName::new("letters").unwrap();
    send(&provider, 5).await;
    provider.send_message(&other, Message::new("letter"), soon()).await.unwrap();
    let subscriber =
        Subscriber::builder(provider, vec![queue(), other]).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 6).await;
    running.stop().await;
    let twice = Subscriber::builder(store(), ["orders", "orders"]).handler(handler(|_| async { Ok(()) })).build();
    assert!(twice.unwrap_err().to_string().contains("'orders' is named twice"));
}

/// Returns a result for each message of a batch by its number.
#[derive(Debug, Clone, Default)]
struct ByTens(Arc<Mutex<Vec<usize>>>);

impl Service<Vec<Delivery>> for ByTens {
    type Response = Vec<Result<(), HandlerError>>;
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<Self::Response, HandlerError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, batch: Vec<Delivery>) -> Self::Future {
        self.0.lock().unwrap().push(batch.len());
        let judge = |delivery: &Delivery| match delivery.body.ends_with(b"3") {
            true => Err(HandlerError::permanent("three")),
            false => Ok(()),
        };
        let results = batch.iter().map(judge).collect();
        Box::pin(async { Ok(results) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_handler_returns_a_result_for_each_message() {
    let provider = store();
    send(&provider, 95).await;
    let by_tens = ByTens::default();
    let subscriber =
        Subscriber::builder(provider, queue()).batch_handler(by_tens.clone(), 10).max_workers(1).build().unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked + counts.dead == 95).await;
    assert_eq!(counts.dead, 10);
    running.stop().await;
    let sizes = by_tens.0.lock().unwrap();
    assert_eq!((sizes.iter().max(), sizes.iter().sum()), (Some(&10), 95));
}

type Noted = Arc<Mutex<BTreeMap<(String, &'static str), u64>>>;

#[derive(Default)]
struct Notes(Noted);

impl Metrics for Notes {
    fn happened(&self, queue: &QueueName, outcome: Outcome, messages: u64) {
        *self.0.lock().unwrap().entry((queue.to_string(), outcome.name())).or_default() += messages;
    }

    fn waited(&self, queue: &QueueName, age: Duration) {
        assert!(age < Duration::from_secs(60), "{age:?}");
        *self.0.lock().unwrap().entry((queue.to_string(), "waited")).or_default() += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn the_metrics_hook_gets_every_count() {
    let provider = store();
    send(&provider, 20).await;
    let notes = Notes::default();
    let noted = notes.0.clone();
    let failing = handler(|delivery: Delivery| async move {
        if delivery.body.ends_with(b"9") { Err(HandlerError::permanent("nine")) } else { Ok(()) }
    });
    let running = start(Subscriber::builder(provider, queue()).handler(failing).metrics(notes).build().unwrap());
    running.until(|counts| counts.acked + counts.dead == 20).await;
    running.stop().await;
    let expected = [("acked", 18), ("dead", 2), ("failed", 2), ("received", 20), ("waited", 20)];
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(name, count)| (("orders".to_owned(), name), count)).collect();
    assert_eq!(*noted.lock().unwrap(), expected);
}

/// Panics at every call.
struct Broken;

impl Metrics for Broken {
    fn happened(&self, _: &QueueName, _: Outcome, _: u64) {
        panic!("no metrics today");
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_that_panic_lose_no_message() {
    let provider = store();
    send(&provider, 40).await;
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handler(async |_| Ok(())))
        .metrics(Broken)
        .max_per_key(1, |_| panic!("no key today"))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 40).await;
    assert!(running.stop().await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_delays_no_message_of_its_burst() {
    let provider = store();
    send(&provider, 100).await;
    // Enough messages for workers to take several at a time; then the first of such a burst waits for ever.
    let handling = handler(async |delivery: Delivery| {
        if delivery.body == "50" {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let subscriber =
        Subscriber::builder(provider, queue()).handler(handling).max_workers(2).overfetch_factor(60.0).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 99 && counts.in_flight == 1).await;
    running.shutdown.request_at_once();
    assert_eq!(running.stopped().await.abandoned, 1);
}
