//! Tests: order and fencing hold whatever the clock shows, and at which point a call is interrupted.
//!
//! **Why a lease may seem to begin before the previous one.** The server reads the clock once, when a statement begins
//! (`utc_timestamp`; `sysdate` would not), and a claim leases by the time of the statement that reads its rows. If that
//! statement is held up for 11 ms between the clock and the rows, another worker may claim and ack the head of a key
//! meanwhile, so that the next message is readable. Its lease then begins, by its own time, up to 11 ms before the
//! lease of a message that is done. A step of the server's clock does the same. The two leases do not overlap, because
//! these do not use the time:
//!
//! - The next message of a key is blocked until the transaction that removes the head has committed, and a claim reads
//!   no blocked rows. So it is read after the end of the head, whatever time its lease begins with.
//! - Claims, settles and extensions lock a row before they judge it, until the commit. No two of them judge the same
//!   state of a row.
//! - A settle must show the token of the last claim. The time can only refuse it in addition.
//!
//! A lease that begins too early ends too early by as much, which costs at most a redelivery.

use std::collections::HashMap;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use postrider_core::{
    Deadline, Message, MessageId, MessagingError, MessagingService, Nack, QueueName, QueuedMessage, ReceiptHandle,
    ReceiveOptions, Settlement,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::claim::Claim;
use crate::settle::Settling;
use crate::{MysqlOptions, MysqlProvider, MysqlStore};

const LEASE: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::default()
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

/// A test's own database, which the test drops.
struct Fixture {
    name: String,
    url: String,
    client: Conn,
}

impl Fixture {
    async fn new() -> Self {
        let server = std::env::var("POSTRIDER_MYSQL_URL").expect(
            "POSTRIDER_MYSQL_URL: start a server with `scripts/services up mysql`, then `eval \"$(scripts/services env)\"`",
        );
        let name = format!("test_{:016x}", rand::random::<u64>());
        let mut client = Conn::from_url(&server).await.unwrap();
        client.query_drop(format!("create database {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self { name, url, client }
    }

    /// Returns the server's clock in microseconds.
    async fn now(&mut self) -> i64 {
        let now = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))";
        self.client.query_first(now).await.unwrap().unwrap()
    }

    async fn drop(mut self) {
        self.client.query_drop(format!("drop database {}", self.name)).await.unwrap();
    }
}

/// A worker with one connection, whose clock can be set.
struct Worker {
    store: MysqlStore,
    provider: MysqlProvider,
}

impl Worker {
    async fn new(fixture: &Fixture) -> Self {
        // A poll only reads.
        let options = MysqlOptions { pool_size: 1, ..MysqlOptions::default() };
        let store = MysqlStore::open(&fixture.url, options).await.unwrap();
        Self { provider: store.connect().unwrap(), store }
    }

    /// Sets the clock of this worker's statements.
    async fn set_clock(&self, micros: i64) {
        let mut session = self.store.shared.database.session("test", soon()).await.unwrap();
        let set = format!("set timestamp = {}.{:06}", micros / 1_000_000, micros % 1_000_000);
        session.ask(set).await.unwrap();
        let now = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) as server_time".to_owned();
        let now = crate::rows::number(&session.ask(now).await.unwrap().concat()[0], "server_time");
        assert_eq!(now, micros, "the clock was not set");
    }

    async fn receive(&self, max: usize) -> Vec<QueuedMessage> {
        let options = ReceiveOptions::batch(max).visibility(LEASE).max_receive_count(10_000);
        self.provider.receive_messages(&queue(), &options, soon()).await.unwrap()
    }

    async fn receive_one(&self) -> Option<QueuedMessage> {
        self.receive(1).await.pop()
    }

    async fn ack(&self, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
        self.provider.ack_message(&queue(), receipt.clone(), soon()).await
    }
}

async fn send(worker: &Worker, count: usize) -> Vec<MessageId> {
    let message = |n: usize| Message::new(n.to_string()).ordering_key("k").unwrap();
    let rows = worker.provider.send_batch(&queue(), (0..count).map(message).collect(), soon()).await.unwrap();
    rows.into_iter().map(|row| row.unwrap()).collect()
}

fn is_over(result: &Result<(), MessagingError>) -> bool {
    matches!(result, Err(MessagingError::VisibilityExpired { .. }))
}

#[tokio::test]
async fn a_lease_that_begins_before_the_last_one_by_its_time_was_made_after_its_end() {
    let mut fixture = Fixture::new().await;
    let (first, second) = (Worker::new(&fixture).await, Worker::new(&fixture).await);
    let ids = send(&first, 2).await;
    let held_up = fixture.now().await + 1_000_000;
    first.set_clock(held_up + 5_000).await;
    let head = first.receive_one().await.unwrap();
    assert_eq!(head.id(), ids[0]);
    // The other worker's claim begins now, is held up, and reads 11 ms later.
    second.set_clock(held_up).await;
    assert!(second.receive_one().await.is_none(), "the head is leased");
    first.set_clock(held_up + 10_000).await;
    first.ack(head.receipt()).await.unwrap();
    let next = second.receive_one().await.unwrap();
    assert_eq!(next.id(), ids[1]);
    let (before, after) = (head.envelope.lease_expires_at, next.envelope.lease_expires_at);
    assert_eq!(before.since(after), Duration::from_millis(5), "by their times the leases are in reverse order");
    let late = first.ack(head.receipt()).await;
    assert!(is_over(&late), "the lease of the head has ended: {late:?}");
    second.set_clock(held_up + 1).await;
    second.ack(next.receipt()).await.unwrap();
    fixture.drop().await;
}

#[tokio::test]
async fn an_interrupted_claim_and_an_ack_do_not_both_get_the_head() {
    let mut fixture = Fixture::new().await;
    let [holder, claimer, other] =
        [Worker::new(&fixture).await, Worker::new(&fixture).await, Worker::new(&fixture).await];
    let ids = send(&holder, 2).await;
    let now = fixture.now().await;
    holder.set_clock(now + 1).await;
    let head = holder.receive_one().await.unwrap();
    // The claimer's clock is ahead: by it the lease has expired, by the holder's it has not.
    let ahead = now + 60_000_000;
    claimer.set_clock(ahead).await;
    other.set_clock(ahead).await;
    let options = ReceiveOptions::batch(1).visibility(LEASE).max_receive_count(10_000);
    let shared = &claimer.store.shared;
    let claim = Claim::new(shared, &queue(), 1, &options);
    let mut session = shared.database.session("test", soon()).await.unwrap();
    let text = claim.take(session.sql(), 4, 1);
    let taken = session.begin(text).await.unwrap().concat();
    assert_eq!(taken.len(), 1, "the head is read and locked, and not leased yet");
    let refused = holder.ack(head.receipt()).await;
    assert!(matches!(refused, Err(MessagingError::MessageLeased { .. })), "{refused:?}");
    assert!(other.receive_one().await.is_none(), "neither the head nor what waits behind it");
    let result = claim.read(&taken);
    let lease = claim.lease(session.sql(), &result);
    session.commit(lease).await.unwrap();
    drop(session);
    let late = holder.ack(head.receipt()).await;
    assert!(is_over(&late), "the claimer has leased the head: {late:?}");
    assert!(other.receive_one().await.is_none(), "the head is leased");
    claimer.ack(&result.messages[0].receipt).await.unwrap();
    assert_eq!(other.receive_one().await.unwrap().id(), ids[1]);
    fixture.drop().await;
}

#[tokio::test]
async fn the_message_behind_a_head_is_not_read_before_the_ack_has_committed() {
    let mut fixture = Fixture::new().await;
    let (holder, other) = (Worker::new(&fixture).await, Worker::new(&fixture).await);
    let ids = send(&holder, 2).await;
    let now = fixture.now().await;
    for ahead in [0, 60_000_000, -5_000] {
        // By a clock ahead the holder's lease has expired; by one behind it has not begun.
        other.set_clock(now + 1_000_000 + ahead).await;
        holder.set_clock(now + 1_000_000).await;
        let head = holder.receive_one().await.unwrap();
        assert_eq!(head.id(), ids[0]);
        let shared = &holder.store.shared;
        let mut settling = Settling::new(shared, &[Settlement::ack(head.receipt().clone())]);
        let mut session = shared.database.session("test", soon()).await.unwrap();
        let steps = settling.carry_out(&mut session).await.unwrap();
        assert!(other.receive_one().await.is_none(), "{ahead}: the ack has not committed");
        if ahead < 0 {
            session.commit(steps.join(";\n")).await.unwrap();
        } else {
            // It may still be rolled back.
            session.rollback().await.unwrap();
            drop(session);
            let released = holder.provider.nack_message(&queue(), head.receipt().clone(), Nack::Release, soon()).await;
            released.unwrap();
        }
    }
    assert_eq!(other.receive_one().await.unwrap().id(), ids[1]);
    fixture.drop().await;
}

/// What an observer of one key knows.
#[derive(Default)]
struct Known {
    sent: Vec<MessageId>,
    /// How many of them are done, in order.
    done: usize,
    newest: HashMap<MessageId, ReceiptHandle>,
}

/// Clock steps at every call, within a lease and beyond its end.
const STEPS: [i64; 6] = [-11_000, -1_000, 0, 1_000, 11_000, 40_000_000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_a_clock_breaks_the_order_of_a_key_or_a_fence() {
    for seed in 0..3 {
        let mut fixture = Fixture::new().await;
        let workers = [Worker::new(&fixture).await, Worker::new(&fixture).await, Worker::new(&fixture).await];
        let (mut dice, start) = (StdRng::seed_from_u64(seed), fixture.now().await);
        let mut known = Known { sent: send(&workers[0], 40).await, ..Known::default() };
        let mut receipts: Vec<(usize, MessageId, ReceiptHandle)> = Vec::new();
        for step in 0..400 {
            if known.done == known.sent.len() {
                break;
            }
            let at = start + 1_000_000 + step * 1_000;
            for worker in &workers {
                worker.set_clock(at + STEPS[dice.random_range(0..STEPS.len())]).await;
            }
            // One worker settles a receipt, current or old, while the others claim.
            let ending = (!receipts.is_empty()).then(|| receipts.swap_remove(dice.random_range(0..receipts.len())));
            let is_ack = dice.random_bool(0.6);
            let end = async {
                let (worker, id, receipt) = ending.as_ref()?;
                let worker = &workers[*worker];
                let result = if is_ack {
                    worker.ack(receipt).await
                } else {
                    worker
                        .provider
                        .nack_message(&queue(), receipt.clone(), Nack::retry_after(Duration::ZERO), soon())
                        .await
                };
                Some((*id, receipt.clone(), result))
            };
            let (ended, one, two) = tokio::join!(end, workers[1].receive(3), workers[2].receive(3));
            let context = format!("seed {seed}, step {step}");
            if let Some((id, receipt, Ok(()))) = ended {
                assert_eq!(known.newest.get(&id), Some(&receipt), "{context}: a lease that was replaced was settled");
                if is_ack {
                    assert_eq!(known.sent[known.done], id, "{context}: the head was another");
                    known.done += 1;
                }
            }
            let mut received: Vec<_> =
                one.into_iter().map(|it| (1, it)).chain(two.into_iter().map(|it| (2, it))).collect();
            // If one clock is behind the other's lease, both claim the head, in either order.
            received.sort_by_key(|(_, message)| message.receive_count());
            assert!(received.len() <= 2, "{context}: {} of one key", received.len());
            for (worker, message) in received {
                // Of a concurrent claim and ack of the head, the later one finds nothing.
                assert_eq!(known.sent.get(known.done), Some(&message.id()), "{context}: it is not the head");
                known.newest.insert(message.id(), message.receipt().clone());
                receipts.push((worker, message.id(), message.into_receipt()));
            }
        }
        assert!(known.done > 10, "seed {seed}: only {} are done", known.done);
        fixture.drop().await;
    }
}
