//! The breaker on a real server with network faults.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::postgres::{PostgresOptions, PostgresProvider};
use postrider::subscriber::{Delivery, HandlerError, Shutdown, Subscriber};
use postrider::{
    BreakerSettings, BreakerState, Deadline, Guarded, Message, MessageId, MessagingError, MessagingService, QueueAdmin,
    QueueName, ReceiveOptions,
};
use postrider_conformance::proxy::FaultProxy;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::server::{Schema, postgres_url};

const SETTINGS: BreakerSettings =
    BreakerSettings { failure_threshold: 3, success_threshold: 2, timeout: Duration::from_millis(500) };

/// Time limit of an expected event.
const TIME_LIMIT: Duration = Duration::from_secs(30);

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn soon() -> Deadline {
    Deadline::default()
}

struct Fixture {
    schema: Schema,
    proxy: FaultProxy,
    guarded: Guarded<PostgresProvider>,
    /// The same schema without the proxy.
    beside: PostgresProvider,
}

impl Fixture {
    async fn new() -> Self {
        let (schema, url) = (Schema::new(), postgres_url());
        let proxy = FaultProxy::before(&url).await.unwrap();
        let options = PostgresOptions { pool_size: 4, ..PostgresOptions::default() };
        let guarded = Guarded::new(schema.open(&proxy.url(), options.clone()).await, SETTINGS);
        let beside = schema.open(&url, options).await;
        beside.ensure_queue(&orders(), soon()).await.unwrap();
        Self { schema, proxy, guarded, beside }
    }

    /// Makes the server unreachable and calls until the breaker is open.
    async fn opened(&self) -> usize {
        self.proxy.refuse();
        for failures in 1.. {
            let failed = self.guarded.health_check(soon()).await.unwrap_err();
            assert!(!matches!(failed, MessagingError::CircuitBreakerOpen { .. }) && failed.is_retryable(), "{failed}");
            // On a busy machine the next probe may be due already.
            if !matches!(self.guarded.breaker().state(), BreakerState::Closed { .. }) {
                return failures;
            }
        }
        unreachable!("the loop never ends")
    }
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + TIME_LIMIT;
    while !holds().await {
        assert!(Instant::now() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn it_opens_when_the_server_is_unreachable_and_closes_when_it_is_back() {
    let fixture = Fixture::new().await;
    let Fixture { guarded, proxy, .. } = &fixture;
    let began = Instant::now();
    assert_eq!(fixture.opened().await, 3);
    // Refused calls do not wait: many fit between two probes, unless a busy machine stops meanwhile.
    let (mut refused, mut probes) = (0, 0_u32);
    while refused < 50 {
        let error = guarded.send_message(&orders(), Message::new("x"), soon()).await.unwrap_err();
        let text = error.to_string();
        if matches!(error, MessagingError::CircuitBreakerOpen { .. }) {
            assert!(text.starts_with("calls to postgres are held back after repeated failures"), "{text}");
            refused += 1;
        } else {
            probes += 1;
            // 100 ms, 200 ms, 400 ms, and then the timeout.
            let held: Duration = (0..probes).map(|n| Duration::from_millis(100 << n).min(SETTINGS.timeout)).sum();
            assert!(began.elapsed() >= held, "{text}");
            assert!(probes < 10, "{refused} calls failed between two probes: refused calls must not wait");
            refused = 0;
        }
    }
    // The server is still down: the probe fails, and the breaker stays open.
    until("a failed probe", async || {
        matches!(guarded.health_check(soon()).await, Err(MessagingError::Connection { .. }))
    })
    .await;
    assert!(!matches!(guarded.breaker().state(), BreakerState::Closed { .. }));
    proxy.restore();
    until("closing", async || guarded.send_message(&orders(), Message::new("x"), soon()).await.is_ok()).await;
    assert_eq!(guarded.breaker().state(), BreakerState::Closed { failures: 0 });
    assert_eq!(fixture.beside.queue_stats(&orders(), soon()).await.unwrap().message_count(), Some(1));
    fixture.schema.remove().await;
}

#[tokio::test]
async fn settles_and_extends_are_deferred_until_the_server_is_back() {
    let fixture = Fixture::new().await;
    let Fixture { guarded, proxy, beside, .. } = &fixture;
    for n in 0..2 {
        beside.send_message(&orders(), Message::new(format!("{n}")), soon()).await.unwrap();
    }
    let options = ReceiveOptions::batch(2).visibility(TIME_LIMIT);
    let received = guarded.receive_messages(&orders(), &options, soon()).await.unwrap();
    let [acked, extended] = <[_; 2]>::try_from(received).unwrap().map(|message| message.into_receipt());
    fixture.opened().await;
    let queue = orders();
    let kept = async {
        let ack = guarded.ack_message(&queue, acked, Deadline::never());
        let extend = guarded.extend_visibility(&queue, &extended, TIME_LIMIT * 2, Deadline::never());
        tokio::try_join!(ack, extend)
    };
    let back = async {
        // Longer than one probe: they stay deferred over a failed one.
        tokio::time::sleep(SETTINGS.timeout * 2).await;
        proxy.restore();
    };
    tokio::join!(kept, back).0.unwrap();
    let stats = beside.queue_stats(&orders(), soon()).await.unwrap();
    assert_eq!(stats.message_count(), Some(1), "one was acknowledged");
    guarded.ack_message(&orders(), extended, soon()).await.unwrap();
    fixture.schema.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_settles_messages_that_it_finished_during_the_outage() {
    const MESSAGES: usize = 20;
    let fixture = Fixture::new().await;
    let Fixture { guarded, proxy, beside, .. } = &fixture;
    for n in 0..MESSAGES {
        beside.send_message(&orders(), Message::new(format!("{n}")), soon()).await.unwrap();
    }
    let deliveries: Arc<Mutex<HashMap<MessageId, u32>>> = Arc::default();
    let may_end = watch::Sender::new(false);
    let handler = {
        let (deliveries, may_end) = (deliveries.clone(), may_end.clone());
        tower::service_fn(move |delivery: Delivery| {
            *deliveries.lock().unwrap().entry(delivery.id()).or_default() += 1;
            let mut may_end = may_end.subscribe();
            async move {
                may_end.wait_for(|may| *may).await.unwrap();
                Ok::<_, HandlerError>(())
            }
        })
    };
    let shutdown = Shutdown::new();
    let subscriber = Subscriber::builder(guarded.clone(), orders())
        .handler(handler)
        .max_workers(MESSAGES)
        .visibility(TIME_LIMIT)
        .build()
        .unwrap();
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    until("every handler's beginning", async || deliveries.lock().unwrap().len() == MESSAGES).await;
    proxy.refuse();
    may_end.send_replace(true);
    until("an open breaker", async || matches!(guarded.breaker().state(), BreakerState::Open { .. })).await;
    // Down for longer than a probe's interval, and much shorter than a lease.
    tokio::time::sleep(SETTINGS.timeout * 3).await;
    assert_eq!(beside.queue_stats(&orders(), soon()).await.unwrap().message_count(), Some(MESSAGES as u64));
    proxy.restore();
    until("the last settle", async || beside.queue_stats(&orders(), soon()).await.unwrap().message_count() == Some(0))
        .await;
    // The worker continues as before.
    let late = beside.send_message(&orders(), Message::new("late"), soon()).await.unwrap();
    until("a delivery after that", async || deliveries.lock().unwrap().contains_key(&late)).await;
    until("its settle", async || beside.queue_stats(&orders(), soon()).await.unwrap().message_count() == Some(0)).await;
    shutdown.request();
    let report = running.await.unwrap();
    assert_eq!(report.totals.acked, MESSAGES as u64 + 1, "{report}");
    assert!(deliveries.lock().unwrap().values().all(|count| *count == 1), "something was delivered twice");
    fixture.schema.remove().await;
}
