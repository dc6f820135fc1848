//! Who is connected and what they hold.
//!
//! Kept in memory: a worker is known by its requests, and after a restart it is known again by the next one. Workers that
//! use the store without this server are not seen here, but for those of tasks, which the store itself knows.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postrider::{QueueName, ReceiptHandle, Timestamp};

use crate::api::ApiError;

/// A worker that was not heard of for so long is gone.
const FORGOTTEN: Duration = Duration::from_secs(15 * 60);

/// So many are remembered; the rest would be names that somebody makes up.
const MOST: usize = 10_000;

const LONGEST_NAME: usize = 128;

/// Refuses what is no name of a worker.
pub(crate) fn check_name(name: &str) -> Result<(), ApiError> {
    match name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        false => Ok(()),
        true => Err(ApiError::malformed(format!("worker: use 1 to {LONGEST_NAME} bytes of text in one line"))),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    address: String,
}

#[derive(Debug)]
struct Seen {
    queues: BTreeSet<String>,
    waiting: usize,
    first: Timestamp,
    last: Timestamp,
    heard: Instant,
}

/// A worker as it is shown.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSeen {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) queues: Vec<String>,
    pub(crate) in_flight: usize,
    pub(crate) is_waiting: bool,
    pub(crate) first_seen_at: Timestamp,
    pub(crate) last_seen_at: Timestamp,
    pub(crate) idle: Duration,
}

#[derive(Debug, Default)]
struct Known {
    workers: HashMap<Key, Seen>,
    /// Whose each lease is, and when it ends unless it is extended.
    leases: HashMap<u128, (Key, Instant)>,
}

/// The workers that have asked for messages. A lock, held for a look.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Known>);

/// A worker that waits; dropped, it does not any more.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    workers: &'a Workers,
    key: Key,
}

impl Workers {
    fn with<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Somebody asks for messages of these queues.
    pub(crate) fn asks(&self, name: &str, address: &str, queues: &[QueueName]) -> Waiting<'_> {
        let key = Key { name: name.to_owned(), address: address.to_owned() };
        self.with(|known| {
            let now = Timestamp::now();
            if known.workers.len() >= MOST && !known.workers.contains_key(&key) {
                known.forget(Duration::ZERO);
            }
            let seen = known.workers.entry(key.clone()).or_insert_with(|| Seen {
                queues: BTreeSet::new(),
                waiting: 0,
                first: now,
                last: now,
                heard: Instant::now(),
            });
            seen.queues.extend(queues.iter().map(|queue| queue.as_str().to_owned()));
            while seen.queues.len() > 100 {
                seen.queues.pop_first();
            }
            seen.waiting += 1;
            (seen.last, seen.heard) = (now, Instant::now());
        });
        Waiting { workers: self, key }
    }

    /// These leases were extended to so long from now.
    pub(crate) fn extended(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        self.with(|known| {
            for receipt in receipts {
                if let Some((key, end)) = known.leases.get_mut(&receipt.token().0) {
                    *end = Instant::now() + visibility;
                    let key = key.clone();
                    known.heard(&key);
                }
            }
        });
    }

    /// These leases are over.
    pub(crate) fn settled<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) {
        self.with(|known| {
            for receipt in receipts {
                if let Some((key, _)) = known.leases.remove(&receipt.token().0) {
                    known.heard(&key);
                }
            }
        });
    }

    /// These leases did not reach whoever asked for them.
    pub(crate) fn never_had<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) {
        self.with(|known| {
            for receipt in receipts {
                known.leases.remove(&receipt.token().0);
            }
        });
    }

    /// Everybody who was heard of lately.
    pub(crate) fn list(&self) -> Vec<WorkerSeen> {
        self.with(|known| {
            known.forget(FORGOTTEN);
            let mut in_flight: HashMap<&Key, usize> = HashMap::new();
            for (key, _) in known.leases.values() {
                *in_flight.entry(key).or_default() += 1;
            }
            let mut all: Vec<_> = known
                .workers
                .iter()
                .map(|(key, seen)| WorkerSeen {
                    name: key.name.clone(),
                    address: key.address.clone(),
                    queues: seen.queues.iter().cloned().collect(),
                    in_flight: in_flight.get(key).copied().unwrap_or_default(),
                    is_waiting: seen.waiting > 0,
                    first_seen_at: seen.first,
                    last_seen_at: seen.last,
                    idle: if seen.waiting > 0 { Duration::ZERO } else { seen.heard.elapsed() },
                })
                .collect();
            all.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
            all
        })
    }
}

impl Known {
    fn heard(&mut self, key: &Key) {
        if let Some(seen) = self.workers.get_mut(key) {
            (seen.last, seen.heard) = (Timestamp::now(), Instant::now());
        }
    }

    fn forget(&mut self, silent_for: Duration) {
        let now = Instant::now();
        self.leases.retain(|_, (_, end)| *end > now);
        let holding: BTreeSet<_> =
            self.leases.values().map(|(key, _)| (key.name.clone(), key.address.clone())).collect();
        self.workers.retain(|key, seen| {
            seen.waiting > 0
                || seen.heard.elapsed() < silent_for
                || holding.contains(&(key.name.clone(), key.address.clone()))
        });
    }
}

impl Waiting<'_> {
    /// It got these.
    pub(crate) fn got(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        self.workers.with(|known| {
            let end = Instant::now() + visibility;
            known.leases.extend(receipts.iter().map(|receipt| (receipt.token().0, (self.key.clone(), end))));
            // A lease that nobody settles is forgotten here when it ends; looked for when there are many.
            if known.leases.len() > 100_000 {
                known.forget(FORGOTTEN);
            }
        });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.workers.with(|known| {
            if let Some(seen) = known.workers.get_mut(&self.key) {
                seen.waiting = seen.waiting.saturating_sub(1);
                (seen.last, seen.heard) = (Timestamp::now(), Instant::now());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use postrider::{LeaseToken, MessageId, NativeRef};

    use super::*;

    fn receipt(token: u128) -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new("memory", queue, MessageId::generate(), LeaseToken(token), NativeRef::Row(1))
    }

    #[test]
    fn a_worker_waits_holds_and_lets_go() {
        let workers = Workers::default();
        let orders = [QueueName::new("orders").unwrap()];
        let waiting = workers.asks("anna", "127.0.0.1", &orders);
        assert!(workers.list()[0].is_waiting);
        waiting.got(&[receipt(1), receipt(2)], Duration::from_secs(30));
        drop(waiting);
        let [anna] = &workers.list()[..] else { panic!() };
        assert_eq!((anna.in_flight, anna.is_waiting, &anna.queues[..]), (2, false, &["orders".to_owned()][..]));
        workers.settled(&[receipt(1)]);
        workers.extended(&[receipt(2)], Duration::ZERO);
        assert_eq!(workers.list()[0].in_flight, 0, "one is settled, the other has run out");
        workers.asks("anna", "127.0.0.1", &orders).got(&[receipt(3)], Duration::from_secs(30));
        workers.never_had(&[receipt(3)]);
        assert_eq!(workers.list()[0].in_flight, 0);
    }
}
