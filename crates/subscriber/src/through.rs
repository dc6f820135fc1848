//! The suite of the law, run through a subscriber.
//!
//! A provider whose every receive is a subscriber of its own (fetched, put in line, taken by workers, and then taken
//! from them) and whose every settle goes through an outbox and the flush loop. What the suite finds of a provider it
//! must find through this one. Leases are not renewed here, because the suite waits for them to run out, and the suite's
//! settlements stand in for handlers' answers: what handlers, decisions and renewals add is tried in `tests/suite`.

mod forward;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use postrider_conformance::{Settings, StormSettings, exercise};
use postrider_core::*;
use postrider_spool::{SpoolOptions, SpoolStore};
use postrider_sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::delivery::Delivery;
use crate::engine::{Desk, Engine};
use crate::error::HandlerError;
use crate::flush::FlushLoop;
use crate::held::{Held, LeaseTimes, Phase};
use crate::servers::{OnMariadb, OnPgmq, OnPostgres, OnRabbitmq, OnSqs};
use crate::shutdown::Shutdown;
use crate::subscriber::Subscriber;

/// A receive is made by at most that many workers.
const MOST_WORKERS: usize = 50;

/// What handlers got to see.
type Seen = Arc<Mutex<HashMap<MessageId, (Bytes, Envelope)>>>;

/// A provider that is reached through subscribers only.
struct Through<P> {
    inner: P,
    settling: Arc<Engine<P>>,
    /// The flush loop; it ends with this.
    _flush: JoinSet<()>,
}

impl<P: Provider + Clone> Through<P> {
    fn new(inner: P) -> Self {
        let nobody = tower::service_fn(|_: Delivery| async { Ok::<_, HandlerError>(()) });
        let settling = Subscriber::builder(inner.clone(), "unused").handler(nobody).build().unwrap().engine;
        // Nobody fetches here, so nothing waits to travel with a fetch.
        settling.desk.buffer().fetch.is_wanted = false;
        let mut flush = JoinSet::new();
        flush.spawn(FlushLoop::new(settling.clone()).run(CancellationToken::new()));
        Self { inner, settling, _flush: flush }
    }

    async fn receive(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let shutdown = Shutdown::new();
        let until_stopped = shutdown.clone();
        let seen = Seen::default();
        let seen_by_handlers = seen.clone();
        let holding = tower::service_fn(move |delivery: Delivery| {
            let (stopped, seen) = (until_stopped.clone(), seen_by_handlers.clone());
            async move {
                seen.lock().unwrap().insert(delivery.id(), (delivery.body.clone(), delivery.envelope.clone()));
                stopped.requested().await;
                Ok::<_, HandlerError>(())
            }
        });
        let subscriber = Subscriber::builder(self.inner.clone(), queue)
            .handler(holding)
            .max_workers(options.max.min(MOST_WORKERS))
            .overfetch_factor(1.0)
            .visibility(options.visibility)
            .release_stuck_timeout(options.visibility)
            .retry_strategy(RetryStrategy::NoRetry)
            .max_deliveries(options.max_receive_count)
            .build()?;
        let desk = subscriber.engine.desk.clone();
        let mut running = JoinSet::new();
        running.spawn(subscriber.run(shutdown.clone()));
        let wait = deadline.at_most(options.wait);
        let answer = loop {
            let health = desk.health.read();
            let received = taken_from_handlers(&desk, &seen);
            let has_looked = health.since_last_fetch.is_some();
            if !received.is_empty() || (has_looked && wait.has_passed() && is_empty_handed(&desk)) {
                break Ok(received);
            }
            if let Some(error) = health.last_error {
                let was_closed = matches!(error, MessagingError::Closed { .. });
                // A wait ends empty-handed when the connection is closed under it.
                break if was_closed && has_looked { Ok(Vec::new()) } else { Err(error) };
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        shutdown.request();
        while running.join_next().await.is_some() {}
        answer
    }
}

fn is_empty_handed(desk: &Desk) -> bool {
    let buffer = desk.buffer();
    buffer.held.is_empty() && !buffer.fetch.is_calling
}

/// Everything that handlers have, once all that was fetched is with one.
fn taken_from_handlers(desk: &Desk, seen: &Seen) -> Vec<QueuedMessage> {
    let mut buffer = desk.buffer();
    let mut seen = seen.lock().unwrap();
    let is_running = |held: &Held| {
        matches!(held.phase, Phase::Running(_)) && seen.contains_key(&held.message.receipt().message_id())
    };
    if buffer.fetch.is_calling || !buffer.held.values().all(|held| is_running(held)) {
        return Vec::new();
    }
    // Nothing more is fetched into the place of these.
    buffer.is_stopping = !buffer.held.is_empty();
    let taken = std::mem::take(&mut buffer.held);
    let mut taken: Vec<_> = taken
        .into_values()
        .map(|held| {
            let (body, envelope) = seen.remove(&held.message.receipt().message_id()).unwrap();
            QueuedMessage::from_leased_parts(body, envelope, held.message)
        })
        .collect();
    // In the order in which the store handed them out, as far as one can see it from here.
    taken.sort_by_key(|message| message.receipt().row().unwrap_or_default());
    taken
}

/// Settles its message by nobody's hand.
struct Nobody;

impl ReturnLease for Nobody {
    fn return_lease(&self, _: ReceiptHandle) {}
}

fn held(receipt: ReceiptHandle) -> Box<Held> {
    let envelope = Envelope {
        id: receipt.message_id(),
        queue: receipt.queue().clone(),
        content_type: ContentType::OCTET_STREAM,
        headers: Headers::new(),
        ordering_key: None,
        dedup_key: None,
        priority: Priority::default(),
        expires_at: None,
        receive_count: 1,
        attempts_count: 0,
        enqueued_at: Timestamp::EPOCH,
        first_attempt_at: Timestamp::EPOCH,
        lease_expires_at: Timestamp::EPOCH,
    };
    let now = Instant::now();
    let lease = LeaseTimes::granted(now, now, Duration::MAX, Duration::ZERO);
    Held::new(QueuedMessage::new(Bytes::new(), envelope, receipt, Arc::new(Nobody)), lease, None)
}

impl<P: Provider + Clone> Through<P> {
    async fn settle_by_flush(&self, settlements: Vec<Settlement>, deadline: Deadline) -> RowResults<()> {
        let mut answers = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let token = settlement.receipt.token();
            // No subscriber settles a lease twice; the suite does, and the second waits for the first.
            while self.settling.desk.buffer().held.contains_key(&token) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (waiting, answer) = oneshot::channel();
            self.settling.desk.change(|buffer, now, _| {
                buffer.held.insert(token, held(settlement.receipt));
                buffer.put_in_outbox(token, settlement.disposition, now, Some(waiting));
            });
            answers.push(answer);
        }
        let mut rows = Vec::with_capacity(answers.len());
        for answer in answers {
            rows.push(match deadline.limit(answer).await {
                Some(Ok(row)) => row,
                Some(Err(_)) | None => {
                    Err(MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None })
                }
            });
        }
        rows
    }
}

fn settings() -> Settings {
    let storm = StormSettings { messages: 300, senders: 2, receivers: 3 };
    Settings { storm, ..Settings::default() }
}

/// Tries the whole law on the provider that `open` opens, reached through subscribers.
async fn assert_lawful<P, Fut>(open: impl Fn() -> Fut + Send + Sync + 'static)
where
    P: Provider + Clone,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
{
    assert_lawful_with(settings(), open).await;
}

async fn assert_lawful_with<P, Fut>(settings: Settings, open: impl Fn() -> Fut + Send + Sync + 'static)
where
    P: Provider + Clone,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
{
    let through = move || {
        let opened = open();
        async move { Ok(Through::new(opened.await?)) }
    };
    let report = exercise(through, settings).await.unwrap();
    assert!(report.is_lawful(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn the_law_holds_through_a_subscriber_in_memory() {
    let store = MemoryStore::new();
    assert_lawful(move || std::future::ready(Ok(store.open()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("law.db"), SqliteOptions::default()).await.unwrap();
    let open = move || {
        let store = store.clone();
        async move { store.connect().await }
    };
    assert_lawful(open).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_a_spool() {
    let folder = tempfile::tempdir().unwrap();
    let store = SpoolStore::open(folder.path().join("law"), SpoolOptions::default()).await.unwrap();
    assert_lawful(move || std::future::ready(store.connect())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_postgres() {
    let place = OnPostgres::new();
    let store = place.store(&place.url()).await.unwrap();
    assert_lawful(move || std::future::ready(store.connect())).await;
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_mariadb() {
    let place = OnMariadb::new().await;
    let store = place.store(&place.url()).await.unwrap();
    assert_lawful(move || std::future::ready(store.connect())).await;
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_pgmq() {
    let place = OnPgmq::new();
    let store = place.store(&place.url()).await.unwrap();
    assert_lawful(move || std::future::ready(store.connect())).await;
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_sqs() {
    let place = OnSqs::new();
    let store = place.store(&place.url()).await.unwrap();
    // An emulator in Python, ten messages a call.
    let settings = Settings { rows: 1000, ..settings() };
    assert_lawful_with(settings, move || std::future::ready(store.connect())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_rabbitmq() {
    let store = OnRabbitmq.store(&OnRabbitmq.url());
    let open = move || {
        let store = store.clone();
        async move { store.connect().await }
    };
    assert_lawful(open).await;
}
