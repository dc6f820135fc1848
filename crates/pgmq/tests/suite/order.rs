//! Keys keep their order when many send to them and many claim from them at the same time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingService, ReceiveOptions};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Place, is_long, soon};

const KEYS: usize = 10;
const SENDERS: usize = 4;

/// What is known of each key: who is in hand, and the last number that each sender was seen with.
#[derive(Default)]
struct Seen {
    in_hand: Option<String>,
    last: HashMap<usize, usize>,
}

/// Each sender numbers its messages of a key.
async fn send(place: Arc<Place>, sender: usize, rounds: usize, room: Arc<Semaphore>) {
    let (provider, orders) = (place.connect().await, place.queue("orders"));
    for round in 0..rounds {
        // Few at a time, and few in all, so that keys run empty and are filled again.
        for keys in (0..KEYS).collect::<Vec<_>>().chunks(2) {
            room.acquire_many(keys.len() as u32).await.unwrap().forget();
            let messages = keys
                .iter()
                .map(|key| Message::new(format!("{key} {sender} {round}")).ordering_key(format!("k{key}")).unwrap());
            for row in provider.send_batch(&orders, messages.collect(), soon()).await.unwrap() {
                row.unwrap();
            }
        }
    }
}

async fn claim(
    place: Arc<Place>,
    seen: Arc<Mutex<HashMap<usize, Seen>>>,
    left: Arc<AtomicUsize>,
    room: Arc<Semaphore>,
    end: Instant,
) {
    let (provider, orders) = (place.connect().await, place.queue("orders"));
    let options = ReceiveOptions::batch(7).wait(Duration::from_millis(200)).max_receive_count(1000);
    while left.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < end, "{} messages are stuck", left.load(Ordering::SeqCst));
        let messages = provider.receive_messages(&orders, &options, soon()).await.unwrap();
        for message in messages {
            let body = String::from_utf8(message.message.to_vec()).unwrap();
            let numbers: Vec<usize> = body.split(' ').map(|number| number.parse().unwrap()).collect();
            let [key, sender, round] = numbers[..] else { panic!("{body}") };
            {
                let mut seen = seen.lock().await;
                let seen = seen.entry(key).or_default();
                assert_eq!(seen.in_hand, None, "two of a key are in hand, the other is {body}");
                let next = seen.last.get(&sender).map_or(0, |last| last + 1);
                assert_eq!(round, next, "out of order: {body}");
                seen.last.insert(sender, round);
                seen.in_hand = Some(body);
            }
            tokio::task::yield_now().await;
            seen.lock().await.entry(key).or_default().in_hand = None;
            provider.ack_message(&orders, message, soon()).await.unwrap();
            left.fetch_sub(1, Ordering::SeqCst);
            room.add_permits(1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_and_many_claimers_of_the_same_keys() {
    let rounds = if is_long() { 400 } else { 40 };
    let place = Arc::new(Place::new());
    // Made once: what is tried is not how a schema and a queue are made.
    place.connect().await.ensure_queue(&place.queue("orders"), soon()).await.unwrap();
    let left = Arc::new(AtomicUsize::new(KEYS * SENDERS * rounds));
    let (seen, end) = (Arc::default(), Instant::now() + Duration::from_secs(if is_long() { 600 } else { 60 }));
    let room = Arc::new(Semaphore::new(KEYS + 2));
    let mut tasks = JoinSet::new();
    for sender in 0..SENDERS {
        tasks.spawn(send(place.clone(), sender, rounds, room.clone()));
    }
    for _ in 0..4 {
        tasks.spawn(claim(place.clone(), Arc::clone(&seen), left.clone(), room.clone(), end));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(left.load(Ordering::SeqCst), 0);
}
