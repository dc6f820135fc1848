//! The order of a key and the fences of its leases, whatever the clock says and wherever a call is cut in two.
//!
//! **Why a lease may seem to begin before the one before it.** The server takes the time once, when a statement begins
//! (`utc_timestamp`; `sysdate` would not), and a claim leases by the time of the statement that reads its rows. A claim that
//! the machine holds up between the two for 11 ms reads what is there after 11 ms: meanwhile another worker may have
//! claimed the head of a key and acknowledged it, so that the next of the key is there to be read. Its lease then begins,
//! by its own time, up to 11 ms before the lease of a message that is long done. A step of the server's clock does the same.
//! The two leases do not overlap all the same: none of the following asks for the time.
//!
//! - The next of a key is blocked until the transaction that takes the head away has committed, and a claim reads no
//!   blocked row. So it is read after the head's end, whatever time its lease begins with.
//! - Claims, settles and extensions lock a row before they judge it, and the lock is held to the commit. Two of them
//!   never go by the same state of a row.
//! - A settle must show the token of the last claim. The time can only refuse it in addition.
//!
//! A lease that begins too early ends too early by as much, which costs a redelivery at worst.

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

/// A database of a test's own. The test drops it.
struct Place {
    name: String,
    url: String,
    client: Conn,
}

impl Place {
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

    /// What the server's clock says, in microseconds.
    async fn now(&mut self) -> i64 {
        let now = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))";
        self.client.query_first(now).await.unwrap().unwrap()
    }

    async fn drop(mut self) {
        self.client.query_drop(format!("drop database {}", self.name)).await.unwrap();
    }
}

/// A worker with one connection, whose clock is what it is set to.
struct Worker {
    store: MysqlStore,
    provider: MysqlProvider,
}

impl Worker {
    async fn new(place: &Place) -> Self {
        // A poll would only look.
        let options = MysqlOptions { pool_size: 1, ..MysqlOptions::default() };
        let store = MysqlStore::open(&place.url, options).await.unwrap();
        Self { provider: store.connect().unwrap(), store }
    }

    /// Every statement of this worker begins at that time from now on.
    async fn set_clock(&self, micros: i64) {
        let mut session = self.store.shared.database.session("test", soon()).await.unwrap();
        let set = format!("set timestamp = {}.{:06}", micros / 1_000_000, micros % 1_000_000);
        session.ask(set).await.unwrap();
        let now = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))".to_owned();
        let now = crate::rows::number(&session.ask(now).await.unwrap().concat()[0], 0);
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
    let mut place = Place::new().await;
    let (first, second) = (Worker::new(&place).await, Worker::new(&place).await);
    let ids = send(&first, 2).await;
    let held_up = place.now().await + 1_000_000;
    first.set_clock(held_up + 5_000).await;
    let head = first.receive_one().await.unwrap();
    assert_eq!(head.id(), ids[0]);
    // The claim of the other begins now, is held up, and reads 11 ms later.
    second.set_clock(held_up).await;
    assert!(second.receive_one().await.is_none(), "the head is leased");
    first.set_clock(held_up + 10_000).await;
    first.ack(head.receipt()).await.unwrap();
    let next = second.receive_one().await.unwrap();
    assert_eq!(next.id(), ids[1]);
    let (before, after) = (head.envelope.lease_expires_at, next.envelope.lease_expires_at);
    assert_eq!(before.since(after), Duration::from_millis(5), "by their times the leases are the wrong way round");
    let late = first.ack(head.receipt()).await;
    assert!(is_over(&late), "the lease of the head had ended before: {late:?}");
    second.set_clock(held_up + 1).await;
    second.ack(next.receipt()).await.unwrap();
    place.drop().await;
}

#[tokio::test]
async fn a_claim_that_is_cut_before_its_lease_and_an_ack_do_not_both_have_the_head() {
    let mut place = Place::new().await;
    let [holder, claimer, other] = [Worker::new(&place).await, Worker::new(&place).await, Worker::new(&place).await];
    let ids = send(&holder, 2).await;
    let now = place.now().await;
    holder.set_clock(now + 1).await;
    let head = holder.receive_one().await.unwrap();
    // By the claimer's clock, which has stepped ahead, the lease is over; by the holder's it is not.
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
    let brought = claim.read(&taken);
    let lease = claim.lease(session.sql(), &brought);
    session.commit(lease).await.unwrap();
    drop(session);
    let late = holder.ack(head.receipt()).await;
    assert!(is_over(&late), "the head is the claimer's: {late:?}");
    assert!(other.receive_one().await.is_none(), "the head is leased");
    claimer.ack(&brought.messages[0].receipt).await.unwrap();
    assert_eq!(other.receive_one().await.unwrap().id(), ids[1]);
    place.drop().await;
}

#[tokio::test]
async fn what_waits_behind_a_head_is_not_read_before_the_ack_has_committed() {
    let mut place = Place::new().await;
    let (holder, other) = (Worker::new(&place).await, Worker::new(&place).await);
    let ids = send(&holder, 2).await;
    let now = place.now().await;
    for ahead in [0, 60_000_000, -5_000] {
        // A clock that is ahead sees the holder's lease as over, and one that is behind as not yet begun.
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
            // It may still come to nothing.
            session.rollback().await.unwrap();
            drop(session);
            let released = holder.provider.nack_message(&queue(), head.receipt().clone(), Nack::Release, soon()).await;
            released.unwrap();
        }
    }
    assert_eq!(other.receive_one().await.unwrap().id(), ids[1]);
    place.drop().await;
}

/// What is known from outside, of a key.
#[derive(Default)]
struct Known {
    sent: Vec<MessageId>,
    /// How many of them are done, from the first on.
    done: usize,
    newest: HashMap<MessageId, ReceiptHandle>,
}

/// Steps of clocks, forth and back, at every call: within a lease, and beyond its end.
const STEPS: [i64; 6] = [-11_000, -1_000, 0, 1_000, 11_000, 40_000_000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_a_clock_breaks_the_order_of_a_key_or_a_fence() {
    for seed in 0..3 {
        let mut place = Place::new().await;
        let workers = [Worker::new(&place).await, Worker::new(&place).await, Worker::new(&place).await];
        let (mut dice, start) = (StdRng::seed_from_u64(seed), place.now().await);
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
            // One worker ends what it has, or had, while the others claim.
            let ending = (!receipts.is_empty()).then(|| receipts.swap_remove(dice.random_range(0..receipts.len())));
            let is_ack = dice.random_bool(0.6);
            let end = async {
                let (place, id, receipt) = ending.as_ref()?;
                let worker = &workers[*place];
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
                assert_eq!(known.newest.get(&id), Some(&receipt), "{context}: a lease that was taken was settled");
                if is_ack {
                    assert_eq!(known.sent[known.done], id, "{context}: the head was another");
                    known.done += 1;
                }
            }
            let mut received: Vec<_> =
                one.into_iter().map(|it| (1, it)).chain(two.into_iter().map(|it| (2, it))).collect();
            // Where one clock is behind the lease of the other, both claim the head, in either order.
            received.sort_by_key(|(_, message)| message.receive_count());
            assert!(received.len() <= 2, "{context}: {} of one key", received.len());
            for (place, message) in received {
                // Of a claim and an ack of the head at once, the later finds nothing.
                assert_eq!(known.sent.get(known.done), Some(&message.id()), "{context}: it is not the head");
                known.newest.insert(message.id(), message.receipt().clone());
                receipts.push((place, message.id(), message.into_receipt()));
            }
        }
        assert!(known.done > 10, "seed {seed}: only {} are done", known.done);
        place.drop().await;
    }
}
