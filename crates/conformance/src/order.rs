//! A test that ordering keys keep their order under concurrent senders and claims. A failure panics.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, Provider, QueueName, ReceiveOptions};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::probe::soon;
use crate::transactions::Caller;

const KEYS: usize = 10;

/// The number of senders.
pub const SENDERS: usize = 4;

/// The number of senders and claimers together.
pub const WORKERS: usize = SENDERS + 4;

/// The state of each key: the leased message, and the last number of each sender.
#[derive(Default)]
struct Seen {
    leased: Option<String>,
    last: HashMap<usize, usize>,
}

/// The queue, and what its senders and claimers share.
struct Shared {
    queue: QueueName,
    rounds: usize,
    seen: Mutex<HashMap<usize, Seen>>,
    /// The number of messages that are not handled yet.
    left: AtomicUsize,
    /// Few unhandled messages, so that keys run empty and fill again.
    room: Semaphore,
    end: Instant,
}

/// Sends messages of a few keys and claims them with many workers at the same time; of each key one is leased at a time,
/// and each sender's messages come in its order.
///
/// The workers are [`WORKERS`] providers. A sender who has a caller sends every other batch in the caller's transaction;
/// there is one caller for each of the [`SENDERS`], or none.
pub async fn many_senders_and_many_claimers<P: Provider>(
    workers: Vec<P>,
    callers: Vec<Box<dyn Caller>>,
    queue: QueueName,
    is_long: bool,
) {
    let rounds = if callers.is_empty() { 40 } else { 20 };
    let (rounds, seconds) = if is_long { (rounds * 10, 600) } else { (rounds, 60) };
    let shared = Arc::new(Shared {
        queue,
        rounds,
        seen: Mutex::default(),
        left: AtomicUsize::new(KEYS * SENDERS * rounds),
        room: Semaphore::new(KEYS + 2),
        end: Instant::now() + Duration::from_secs(seconds),
    });
    assert_eq!(workers.len(), WORKERS);
    let mut callers = callers.into_iter();
    let mut tasks = JoinSet::new();
    for (number, worker) in workers.into_iter().enumerate() {
        if number < SENDERS {
            tasks.spawn(send(shared.clone(), number, worker, callers.next()));
        } else {
            tasks.spawn(claim(shared.clone(), worker));
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a worker without a failure");
    }
    assert_eq!(shared.left.load(Ordering::SeqCst), 0);
}

/// Each sender numbers its messages of a key.
async fn send<P: Provider>(shared: Arc<Shared>, sender: usize, provider: P, mut own: Option<Box<dyn Caller>>) {
    let queue = &shared.queue;
    for round in 0..shared.rounds {
        // In small batches.
        for keys in (0..KEYS).collect::<Vec<_>>().chunks(2) {
            shared.room.acquire_many(keys.len() as u32).await.expect("an open semaphore").forget();
            let message = |key: &usize| Message::new(format!("{key} {sender} {round}")).ordering_key(format!("k{key}"));
            let messages = keys.iter().map(message).collect::<Result<Vec<_>, _>>().expect("a key");
            match &mut own {
                Some(own) if !(round + sender).is_multiple_of(2) => {
                    let mut transaction = own.begin().await;
                    for message in &messages {
                        transaction.send(queue, message).await.expect("a send");
                    }
                    transaction.commit().await;
                }
                _ => {
                    for row in provider.send_batch(queue, messages, soon()).await.expect("an answer") {
                        row.expect("a send");
                    }
                }
            }
        }
    }
}

async fn claim<P: Provider>(shared: Arc<Shared>, provider: P) {
    let options = ReceiveOptions::batch(7).wait(Duration::from_millis(200)).max_receive_count(1000);
    let left = || shared.left.load(Ordering::SeqCst);
    while left() > 0 {
        assert!(Instant::now() < shared.end, "{} messages are stuck", left());
        for message in provider.receive_messages(&shared.queue, &options, soon()).await.expect("a receive") {
            let body = String::from_utf8(message.message.to_vec()).expect("a text");
            let numbers: Vec<usize> = body.split(' ').map(|number| number.parse().expect("a number")).collect();
            let [key, sender, round] = numbers[..] else { panic!("{body}") };
            {
                let mut seen = shared.seen.lock().await;
                let seen = seen.entry(key).or_default();
                assert_eq!(seen.leased, None, "two messages of a key are leased, the other is {body}");
                let next = seen.last.get(&sender).map_or(0, |last| last + 1);
                assert_eq!(round, next, "out of order: {body}");
                seen.last.insert(sender, round);
                seen.leased = Some(body);
            }
            tokio::task::yield_now().await;
            shared.seen.lock().await.entry(key).or_default().leased = None;
            provider.ack_message(&shared.queue, message, soon()).await.expect("an ack");
            shared.left.fetch_sub(1, Ordering::SeqCst);
            shared.room.add_permits(1);
        }
    }
}
