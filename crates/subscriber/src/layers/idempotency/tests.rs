use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider_core::{IdempotencyToken, Key, MemoryProvider, MemoryStore, MessagingError, Standing, async_trait};
use tower::ServiceExt;

use super::*;
use crate::testing::delivery;
use crate::{Context, Control, ErrorKind, Extension, handler};

const SECOND: Duration = Duration::from_secs(1);

/// Another delivery of the same message.
fn again(of: &Delivery) -> Delivery {
    Delivery::new(of.body.clone(), of.envelope.clone(), Control::new())
}

/// Counts the runs of a handler that takes a while, or fails a number of times.
#[derive(Clone, Default)]
struct Work {
    runs: Arc<AtomicUsize>,
    takes: Duration,
    fails: Arc<AtomicUsize>,
}

impl Work {
    fn taking(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    fn failing(times: usize) -> Self {
        Self { fails: Arc::new(times.into()), ..Self::default() }
    }

    async fn run(self) -> Result<(), HandlerError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        match self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(HandlerError::retryable("fails on purpose")),
            Err(_) => Ok(()),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

async fn handle<R: IdempotencyStore>(
    layer: &IdempotencyLayer<R>,
    work: &Work,
    delivery: Delivery,
) -> Result<(), HandlerError> {
    let work = work.clone();
    layer.layer(handler(move |_: Context| work.clone().run())).oneshot(delivery).await
}

fn memory() -> IdempotencyLayer<MemoryProvider> {
    IdempotencyLayer::new(MemoryStore::new().open())
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_of_completed_work_is_acknowledged_unhandled() {
    let (layer, work, message) = (memory(), Work::default(), delivery(""));
    handle(&layer, &work, again(&message)).await.unwrap();
    let redelivered = again(&message);
    let control = redelivered.control().clone();
    handle(&layer, &work, redelivered).await.unwrap();
    assert_eq!(work.runs(), 1);
    assert_eq!(control.decided(), Some(Disposition::Ack), "under every policy");
    handle(&layer, &work, delivery("")).await.unwrap();
    assert_eq!(work.runs(), 2, "another message is other work");
}

#[tokio::test(start_paused = true)]
async fn failed_work_is_repeated_at_once() {
    let (layer, work, message) = (memory(), Work::failing(2), delivery(""));
    for _ in 0..2 {
        assert_eq!(handle(&layer, &work, again(&message)).await.unwrap_err().to_string(), "fails on purpose");
    }
    handle(&layer, &work, message).await.unwrap();
    assert_eq!(work.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn work_of_another_worker_is_waited_for_however_long_it_takes() {
    let layer = memory().lease(SECOND * 3);
    let (work, message) = (Work::taking(SECOND * 60), delivery(""));
    let first = tokio::spawn({
        let (layer, work, message) = (layer.clone(), work.clone(), again(&message));
        async move { handle(&layer, &work, message).await }
    });
    tokio::time::sleep(SECOND * 10).await;
    let redelivered = again(&message);
    let control = redelivered.control().clone();
    handle(&layer, &work, redelivered).await.unwrap();
    assert_eq!(control.decided(), Some(Disposition::Ack), "after the other worker is done");
    first.await.unwrap().unwrap();
    assert_eq!(work.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handler_abandons_its_record() {
    let (layer, message) = (memory(), delivery(""));
    let endless = Work::taking(SECOND * 3600);
    assert!(tokio::time::timeout(SECOND, handle(&layer, &endless, again(&message))).await.is_err());
    tokio::task::yield_now().await;
    let work = Work::default();
    handle(&layer, &work, message).await.unwrap();
    assert_eq!((endless.runs(), work.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_decision_by_hand_decides_about_the_record() {
    let layer = memory();
    let runs = Arc::new(AtomicUsize::new(0));
    let service = |decide: fn(&Control) -> bool, outcome: fn() -> Result<(), &'static str>| {
        let runs = runs.clone();
        layer.layer(handler(move |control: Control| {
            runs.fetch_add(1, Ordering::SeqCst);
            decide(&control);
            async move { outcome() }
        }))
    };
    let message = delivery("");
    service(Control::release, || Ok(())).oneshot(again(&message)).await.unwrap();
    service(Control::ack, || Err("afterwards")).oneshot(again(&message)).await.unwrap_err();
    assert_eq!(runs.load(Ordering::SeqCst), 2, "released work is not done");
    service(Control::ack, || Ok(())).oneshot(again(&message)).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2, "acknowledged work is done");
}

#[tokio::test(start_paused = true)]
async fn the_key_identifies_work() {
    let with_dedup_key = |key| {
        let mut delivery = delivery("");
        delivery.envelope.dedup_key = Some(Key::new("dedup key", key).unwrap());
        delivery
    };
    let (layer, work) = (memory().by_dedup_key(), Work::default());
    for delivery in [with_dedup_key("a"), with_dedup_key("a"), with_dedup_key("b"), delivery(""), delivery("")] {
        handle(&layer, &work, delivery).await.unwrap();
    }
    assert_eq!(work.runs(), 4);

    let by_body = memory().by(|delivery| String::from_utf8(delivery.body.to_vec()).ok().filter(|text| text != "any"));
    let work = Work::default();
    for body in ["x", "x", "y", "any", "any"] {
        handle(&by_body, &work, delivery(body)).await.unwrap();
    }
    assert_eq!(work.runs(), 4, "x, y, and twice the message without a key");
    assert_eq!(*handle(&by_body, &work, delivery("")).await.unwrap_err().kind(), ErrorKind::Permanent);
}

#[tokio::test(start_paused = true)]
async fn records_are_forgotten_after_the_retention() {
    let (layer, work, message) = (memory().retention(SECOND * 60), Work::default(), delivery(""));
    handle(&layer, &work, again(&message)).await.unwrap();
    tokio::time::sleep(SECOND * 7200).await;
    handle(&layer, &work, again(&message)).await.unwrap();
    assert_eq!(work.runs(), 1, "nothing has been forgotten yet");
    handle(&layer, &work, delivery("")).await.unwrap();
    tokio::task::yield_now().await;
    handle(&layer, &work, message).await.unwrap();
    assert_eq!(work.runs(), 3);
}

/// A store with failing completions and extensions, which records its calls.
#[derive(Clone)]
struct FaultyStore {
    inner: MemoryProvider,
    calls: Arc<Mutex<Vec<&'static str>>>,
    failing_completions: Arc<AtomicUsize>,
    loses: bool,
}

impl FaultyStore {
    fn new(failing_completions: usize, loses: bool) -> Self {
        let failing_completions = Arc::new(failing_completions.into());
        Self { inner: MemoryStore::new().open(), calls: Arc::default(), failing_completions, loses }
    }

    fn record(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

#[async_trait]
impl IdempotencyStore for FaultyStore {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        self.inner.begin(key, lease, deadline).await
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        by: Deadline,
    ) -> Result<Standing, MessagingError> {
        if self.loses { Ok(Standing::Lost) } else { self.inner.extend(token, lease, by).await }
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        let left = self.failing_completions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if left.is_ok() {
            self.record("failed to complete");
            return Err(MessagingError::Closed { provider: "faulty" });
        }
        self.record("completed");
        self.inner.complete(token, deadline).await
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.inner.abandon(token, deadline).await
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        self.inner.forget(older_than, deadline).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_record_is_completed_after_the_work_and_before_the_result() {
    let store = FaultyStore::new(2, false);
    let recorder = store.clone();
    let service = IdempotencyLayer::new(store.clone()).layer(handler(move |_: Extension<IdempotencyToken>| {
        recorder.record("worked");
        async {}
    }));
    service.oneshot(delivery("")).await.unwrap();
    assert_eq!(*store.calls.lock().unwrap(), ["worked", "failed to complete", "failed to complete", "completed"]);
}

#[tokio::test(start_paused = true)]
async fn work_that_cannot_be_recorded_is_acknowledged() {
    let (store, work) = (FaultyStore::new(usize::MAX, false), Work::default());
    handle(&IdempotencyLayer::new(store.clone()), &work, delivery("")).await.unwrap();
    assert_eq!((work.runs(), store.calls.lock().unwrap().len()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_work_was_taken_over_is_cancelled() {
    let (store, work) = (FaultyStore::new(0, true), Work::taking(SECOND * 60));
    let message = delivery("");
    let token = message.cancellation().clone();
    let running = tokio::spawn(async move { handle(&IdempotencyLayer::new(store), &work, message).await });
    tokio::time::sleep(SECOND * 11).await;
    assert!(token.is_cancelled());
    running.await.unwrap().unwrap();
}
