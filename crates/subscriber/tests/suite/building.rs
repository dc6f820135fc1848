//! The builder: what it accepts, and what it refuses.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{MemoryProvider, MessagingError, RetryStrategy};
use postrider_subscriber::layers::{ConcurrencyLimitLayer, TimeoutLayer};
use postrider_subscriber::{
    AckPolicy, BatchResults, CancellationToken, Context, Delivery, HandlerError, OneByOne, Run, State, Subscriber,
    SubscriberBuilder, WorkLimit, batch_handler, handler,
};
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::util::MapRequestLayer;
use tower_service::Service;

use crate::fixture::{queue, send, start, store};

async fn nothing() {}

#[tokio::test(start_paused = true)]
async fn the_layer_that_is_added_last_sees_a_message_first() {
    let provider = store();
    send(&provider, 1).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = |name: &'static str| {
        let seen = seen.clone();
        MapRequestLayer::new(move |delivery: Delivery| {
            seen.lock().unwrap().push(name);
            delivery
        })
    };
    let subscriber = Subscriber::builder(provider, queue())
        .handler(async |_: Context| ())
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(noting("inner"))
        .layer(noting("middle"))
        .layer(ServiceBuilder::new().layer(noting("outermost")).layer(noting("outer")))
        // A layer of tower and a limit of ours both fit around everything.
        .layer(GlobalConcurrencyLimitLayer::new(4))
        .layer(ConcurrencyLimitLayer::new(4))
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 1).await;
    running.stop().await;
    assert_eq!(*seen.lock().unwrap(), ["outermost", "outer", "middle", "inner"]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_around_a_stateful_function_ends_it_in_time() {
    async fn never(State(()): State<()>, token: CancellationToken) {
        token.cancelled().await;
        std::future::pending().await
    }
    let provider = store();
    send(&provider, 1).await;
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handler(never).with_state(()))
        .layer(TimeoutLayer::new(Duration::from_secs(1)))
        .ack_policy(AckPolicy::RejectOnError)
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.dead == 1).await;
    assert_eq!(counts.timed_out, 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_handler_is_a_function_or_a_service_and_takes_layers() {
    async fn all(batch: Vec<Delivery>) -> Result<(), HandlerError> {
        if batch.iter().any(|delivery| delivery.body == "1") { std::future::pending().await } else { Ok(()) }
    }
    let builder = |provider| Subscriber::builder(provider, queue()).ack_policy(AckPolicy::RejectOnError);
    let limit = || TimeoutLayer::new(Duration::from_secs(1));
    drained(|provider| builder(provider).batch_handler(all, 1).layer(limit()).build()).await;
    drained(|provider| builder(provider).batch_handler(batch_handler(all), 1).layer(limit()).build()).await;
}

/// Handles three messages: two succeed, and one times out.
async fn drained<R: Run>(build: impl FnOnce(MemoryProvider) -> Result<Subscriber<MemoryProvider, R>, MessagingError>) {
    let provider = store();
    send(&provider, 3).await;
    let running = start(build(provider).unwrap());
    let counts = running.until(|counts| counts.acked + counts.dead == 3).await;
    assert_eq!((counts.acked, counts.timed_out), (2, 1));
    running.stop().await;
}

type Builder = SubscriberBuilder<MemoryProvider, OneByOne<Handled>>;

/// A named service, so that the type of a builder can be written.
#[derive(Debug, Clone)]
struct Handled;

impl Service<Delivery> for Handled {
    type Response = ();
    type Error = HandlerError;
    type Future = std::future::Ready<Result<(), HandlerError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), HandlerError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Delivery) -> Self::Future {
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn what_is_refused_is_named_with_the_remedy() {
    let second = Duration::from_secs(1);
    let refused: [(&str, &dyn Fn(Builder) -> Builder); 18] = [
        ("no worker", &|builder| builder.max_workers(0)),
        ("too many workers", &|builder| builder.max_workers(usize::MAX)),
        ("no message a fetch", &|builder| builder.fetch_batch_size(0)),
        ("an overfetch below one", &|builder| builder.overfetch_factor(0.5)),
        ("an overfetch that is no number", &|builder| builder.overfetch_factor(f64::NAN)),
        ("an overfetch without end", &|builder| builder.overfetch_factor(f64::INFINITY)),
        ("no lease", &|builder| builder.visibility(Duration::ZERO)),
        ("a lease too short", &|builder| builder.visibility(Duration::from_millis(1))),
        ("a lease too long", &|builder| builder.visibility(Duration::MAX)),
        ("no interval between fetches", &|builder| builder.max_fetch_interval(Duration::ZERO)),
        ("no time to flush", &|builder| builder.flush_interval(Duration::ZERO)),
        ("no interval of release-stuck", &|builder| builder.release_stuck_interval(Duration::ZERO)),
        ("fetch intervals the wrong way round", &|builder| builder.min_fetch_interval(2 * second)),
        ("stuck before the lease is over", &|builder| builder.release_stuck_timeout(second)),
        ("no delivery", &|builder| builder.max_deliveries(0)),
        ("a strategy that shrinks", &|builder| {
            builder.retry_strategy(RetryStrategy::exponential(second, 0.5, 60 * second))
        }),
        ("no handler of one key", &|builder| builder.max_per_key(0, |_| None)),
        ("no handler in all", &|builder| builder.work_limit(&WorkLimit::new(0))),
    ];
    let mut texts = String::new();
    let mut note = |what: &str, error: MessagingError| {
        assert!(matches!(error, MessagingError::InvalidInput { .. }), "{error:?}");
        writeln!(texts, "{what}\n    {error}").unwrap();
    };
    for (what, change) in refused {
        note(what, change(Subscriber::builder(store(), queue()).handler(Handled)).build().unwrap_err());
    }
    let no_batch = Subscriber::builder(store(), queue()).batch_handler(async |_: Vec<Delivery>| BatchResults::new(), 0);
    note("a batch of nothing", no_batch.build().unwrap_err());
    note("no queue", Subscriber::builder(store(), Vec::<String>::new()).handler(nothing).build().unwrap_err());
    note("a queue twice", Subscriber::builder(store(), ["a", "b", "a"]).handler(nothing).build().unwrap_err());
    note("no name of a queue", Subscriber::builder(store(), "a queue").handler(nothing).build().unwrap_err());
    note("no ack policy", "nack".parse::<AckPolicy>().unwrap_err());
    insta::assert_snapshot!(texts);
}
