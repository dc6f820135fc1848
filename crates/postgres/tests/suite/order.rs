//! Keys keep their order under concurrent senders and claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingService, ReceiveOptions};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Fixture, client, is_long, queue, soon};

const KEYS: usize = 10;
const SENDERS: usize = 4;

/// How the senders send.
#[derive(Clone, Copy, PartialEq)]
enum SendMode {
    Calls,
    /// Alternating with calls.
    Transactions,
}

/// The state of each key: the leased message, and the last number of each sender.
#[derive(Default)]
struct Seen {
    leased: Option<String>,
    last: HashMap<usize, usize>,
}

/// Each sender numbers its messages of a key.
async fn send(fixture: Arc<Fixture>, sender: usize, rounds: usize, mode: SendMode, room: Arc<Semaphore>) {
    let provider = fixture.connect().await;
    let mut own = client().await;
    for round in 0..rounds {
        // In small batches, with few unhandled messages, so that keys run empty and fill again.
        for keys in (0..KEYS).collect::<Vec<_>>().chunks(2) {
            room.acquire_many(keys.len() as u32).await.unwrap().forget();
            let messages = keys
                .iter()
                .map(|key| Message::new(format!("{key} {sender} {round}")).ordering_key(format!("k{key}")).unwrap());
            if mode == SendMode::Calls || (round + sender).is_multiple_of(2) {
                for row in provider.send_batch(&queue("orders"), messages.collect(), soon()).await.unwrap() {
                    row.unwrap();
                }
            } else {
                let mut transaction = own.transaction().await.unwrap();
                for message in messages {
                    provider.store().send_in(&mut transaction, &queue("orders"), &message).await.unwrap();
                }
                transaction.commit().await.unwrap();
            }
        }
    }
}

async fn claim(
    fixture: Arc<Fixture>,
    seen: Arc<Mutex<HashMap<usize, Seen>>>,
    left: Arc<AtomicUsize>,
    room: Arc<Semaphore>,
    end: Instant,
) {
    let provider = fixture.connect().await;
    let options = ReceiveOptions::batch(7).wait(Duration::from_millis(200)).max_receive_count(1000);
    while left.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < end, "{} messages are stuck", left.load(Ordering::SeqCst));
        let messages = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap();
        for message in messages {
            let body = String::from_utf8(message.message.to_vec()).unwrap();
            let numbers: Vec<usize> = body.split(' ').map(|number| number.parse().unwrap()).collect();
            let [key, sender, round] = numbers[..] else { panic!("{body}") };
            {
                let mut seen = seen.lock().await;
                let seen = seen.entry(key).or_default();
                assert_eq!(seen.leased, None, "two messages of a key are leased, the other is {body}");
                let next = seen.last.get(&sender).map_or(0, |last| last + 1);
                assert_eq!(round, next, "out of order: {body}");
                seen.last.insert(sender, round);
                seen.leased = Some(body);
            }
            tokio::task::yield_now().await;
            seen.lock().await.entry(key).or_default().leased = None;
            provider.ack_message(&queue("orders"), message, soon()).await.unwrap();
            left.fetch_sub(1, Ordering::SeqCst);
            room.add_permits(1);
        }
    }
}

async fn many_of_each(mode: SendMode, rounds: usize) {
    let rounds = if is_long() { rounds * 10 } else { rounds };
    let fixture = Arc::new(Fixture::new());
    // Create the schema once; that is not what is tested.
    drop(fixture.connect().await);
    let left = Arc::new(AtomicUsize::new(KEYS * SENDERS * rounds));
    let (seen, end) = (Arc::default(), Instant::now() + Duration::from_secs(if is_long() { 600 } else { 60 }));
    let room = Arc::new(Semaphore::new(KEYS + 2));
    let mut tasks = JoinSet::new();
    for sender in 0..SENDERS {
        tasks.spawn(send(fixture.clone(), sender, rounds, mode, room.clone()));
    }
    for _ in 0..4 {
        tasks.spawn(claim(fixture.clone(), Arc::clone(&seen), left.clone(), room.clone(), end));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(left.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_and_many_claimers_of_the_same_keys() {
    many_of_each(SendMode::Calls, 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_of_which_some_send_in_transactions() {
    many_of_each(SendMode::Transactions, 20).await;
}
