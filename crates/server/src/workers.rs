//! Who is connected and what they hold.
//!
//! Kept in memory: a worker is known by its requests, and after a restart it is known again by the next one. Workers that
//! use the store without this server are not seen here, but for those of tasks, which the store itself knows.
//!
//! Everything is kept by queue, because a token may be for some queues only: what a worker does elsewhere must not show.
//! A request looks up and changes its own entries; what is old is removed beside the requests, now and then.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postrider::{MessageId, QueueName, ReceiptHandle, Timestamp};
use postrider_wire::worker::WorkerKind;

use crate::api::ApiError;

/// Time without a request after which a worker is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(15 * 60);

/// The same for the workers of a caller that has too many of them, and for all of them when there are too many in all.
const FORGOTTEN_EARLY: Duration = Duration::from_secs(10);

/// Interval of the search for workers to forget.
pub(crate) const SWEEP: Duration = Duration::from_secs(10);

/// Upper bounds of the workers that are remembered, in all and of one caller. Others are served alike, and not shown.
const MOST: usize = 10_000;
const MOST_OF_A_CALLER: usize = 1_000;

/// Upper bound of the queues that are remembered of a worker.
const MOST_QUEUES: usize = 100;

/// Upper bound of the leases that are remembered.
const MOST_LEASES: usize = 200_000;

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
    kind: WorkerKind,
    name: String,
    address: Arc<str>,
}

#[derive(Debug)]
struct Seen {
    /// By whose token, or from where.
    caller: Arc<str>,
    queues: BTreeMap<QueueName, AtQueue>,
}

/// What a worker does at one queue.
#[derive(Debug)]
struct AtQueue {
    waiting: usize,
    in_flight: usize,
    first: Timestamp,
    last: Timestamp,
    heard: Instant,
}

impl AtQueue {
    fn new() -> Self {
        let now = Timestamp::now();
        Self { waiting: 0, in_flight: 0, first: now, last: now, heard: Instant::now() }
    }

    fn is_busy(&self) -> bool {
        self.waiting > 0 || self.in_flight > 0
    }

    fn hear(&mut self) {
        (self.last, self.heard) = (Timestamp::now(), Instant::now());
    }
}

/// A worker as it is shown.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSeen {
    pub(crate) kind: WorkerKind,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) in_flight: usize,
    pub(crate) is_waiting: bool,
    pub(crate) first_seen_at: Timestamp,
    pub(crate) last_seen_at: Timestamp,
    pub(crate) idle: Duration,
}

/// A lease, and when it ends unless it is extended.
#[derive(Debug)]
struct Lease {
    key: Arc<Key>,
    queue: QueueName,
    begin: Instant,
    end: Instant,
}

type LeaseId = (MessageId, u128);

fn id(receipt: &ReceiptHandle) -> LeaseId {
    (receipt.message_id(), receipt.token().0)
}

#[derive(Debug, Default)]
struct Known {
    workers: HashMap<Arc<Key>, Seen>,
    /// How many of them are of each caller.
    callers: HashMap<Arc<str>, usize>,
    leases: HashMap<LeaseId, Lease>,
}

/// The workers that have asked for something to do. A lock, held for a look.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Known>);

/// Whoever asks for something to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks<'a> {
    pub(crate) kind: WorkerKind,
    /// Whose token it is, or from where.
    pub(crate) caller: &'a Arc<str>,
    pub(crate) name: &'a str,
    pub(crate) address: &'a Arc<str>,
}

/// A worker that waits; dropped, it does not any more.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    workers: &'a Workers,
    /// `None` when there are too many to remember this one.
    key: Option<Arc<Key>>,
    queues: Vec<QueueName>,
}

impl Workers {
    fn with<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Somebody asks for something of these queues.
    pub(crate) fn asks(&self, asks: Asks<'_>, queues: &[QueueName]) -> Waiting<'_> {
        let Asks { kind, caller, name, address } = asks;
        let key = Arc::new(Key { kind, name: name.to_owned(), address: address.clone() });
        let key = self.with(|known| {
            let key = match known.workers.get_key_value(&key) {
                Some((known, _)) => known.clone(),
                None if known.has_room(caller) => {
                    *known.callers.entry(caller.clone()).or_default() += 1;
                    known.workers.insert(key.clone(), Seen { caller: caller.clone(), queues: BTreeMap::new() });
                    key
                }
                None => return None,
            };
            let seen = known.workers.get_mut(&key)?;
            for queue in queues {
                let at = seen.queues.entry(queue.clone()).or_insert_with(AtQueue::new);
                at.waiting += 1;
                at.hear();
            }
            seen.forget_queues();
            Some(key)
        });
        Waiting { workers: self, key, queues: queues.to_vec() }
    }

    /// These leases were extended to so long from now.
    pub(crate) fn extended(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        self.with(|known| {
            for receipt in receipts {
                if let Some(lease) = known.leases.get_mut(&id(receipt)) {
                    lease.end = Instant::now() + visibility;
                    if let Some(at) =
                        known.workers.get_mut(&lease.key).and_then(|seen| seen.queues.get_mut(&lease.queue))
                    {
                        at.hear();
                    }
                }
            }
        });
    }

    /// These leases are over. Answers for how long each was held that is known.
    pub(crate) fn settled<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) -> Vec<Option<Duration>> {
        self.with(|known| receipts.into_iter().map(|receipt| known.let_go(&id(receipt), true)).collect())
    }

    /// These leases did not reach whoever asked for them.
    pub(crate) fn never_had<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) {
        self.with(|known| {
            for receipt in receipts {
                known.let_go(&id(receipt), false);
            }
        });
    }

    /// Everybody who was heard of lately at these queues, and what they do there.
    pub(crate) fn list(&self, may_see: impl Fn(&QueueName) -> bool) -> Vec<WorkerSeen> {
        self.with(|known| {
            known.end_leases();
            let mut all: Vec<_> = known.workers.iter().filter_map(|(key, seen)| seen.shown(key, &may_see)).collect();
            all.sort_by(|a, b| (&a.name, &a.address, a.kind).cmp(&(&b.name, &b.address, b.kind)));
            all
        })
    }

    /// Forgets leases that have run out, and workers that were not heard of for long.
    pub(crate) fn sweep(&self) {
        self.with(|known| {
            known.end_leases();
            let is_full = known.workers.len() >= MOST;
            let Known { workers, callers, .. } = known;
            workers.retain(|_, seen| {
                let own = callers.get(&seen.caller).copied().unwrap_or_default();
                let patience = if is_full || own >= MOST_OF_A_CALLER { FORGOTTEN_EARLY } else { FORGOTTEN };
                seen.queues.retain(|_, at| at.is_busy() || at.heard.elapsed() < patience);
                if seen.queues.is_empty()
                    && let Some(own) = callers.get_mut(&seen.caller)
                {
                    *own -= 1;
                }
                !seen.queues.is_empty()
            });
            callers.retain(|_, own| *own > 0);
        });
    }
}

impl Known {
    fn has_room(&self, caller: &Arc<str>) -> bool {
        self.workers.len() < MOST && self.callers.get(caller).is_none_or(|own| *own < MOST_OF_A_CALLER)
    }

    /// A lease is over, with or without a word of its worker. Answers for how long it was held.
    fn let_go(&mut self, id: &LeaseId, is_told: bool) -> Option<Duration> {
        let Lease { key, queue, begin, .. } = self.leases.remove(id)?;
        if let Some(at) = self.workers.get_mut(&key).and_then(|seen| seen.queues.get_mut(&queue)) {
            at.in_flight = at.in_flight.saturating_sub(1);
            if is_told {
                at.hear();
            }
        }
        Some(begin.elapsed())
    }

    fn end_leases(&mut self) {
        let now = Instant::now();
        let over: Vec<_> = self.leases.iter().filter(|(_, lease)| lease.end <= now).map(|(id, _)| *id).collect();
        for id in &over {
            self.let_go(id, false);
        }
    }
}

impl Seen {
    /// Forgets the queues that were asked for longest ago, when there are too many.
    fn forget_queues(&mut self) {
        while self.queues.len() > MOST_QUEUES {
            let idle = self.queues.iter().filter(|(_, at)| !at.is_busy());
            match idle.min_by_key(|(_, at)| at.heard).map(|(queue, _)| queue.clone()) {
                Some(oldest) => drop(self.queues.remove(&oldest)),
                // As many as are asked for at once, at most.
                None => return,
            }
        }
    }

    fn shown(&self, key: &Key, may_see: impl Fn(&QueueName) -> bool) -> Option<WorkerSeen> {
        let seen: Vec<_> = self.queues.iter().filter(|(queue, _)| may_see(queue)).collect();
        let all = || seen.iter().map(|(_, at)| at);
        let (in_flight, is_waiting) = (all().map(|at| at.in_flight).sum(), all().any(|at| at.waiting > 0));
        let idle = all().map(|at| at.heard.elapsed()).min()?;
        Some(WorkerSeen {
            kind: key.kind,
            name: key.name.clone(),
            address: key.address.to_string(),
            queues: seen.iter().map(|(queue, _)| QueueName::clone(queue)).collect(),
            in_flight,
            is_waiting,
            first_seen_at: all().map(|at| at.first).min()?,
            last_seen_at: all().map(|at| at.last).max()?,
            idle: if in_flight > 0 || is_waiting { Duration::ZERO } else { idle },
        })
    }
}

impl Waiting<'_> {
    /// It got these.
    pub(crate) fn got(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        let Some(key) = &self.key else { return };
        self.workers.with(|known| {
            let begin = Instant::now();
            let (end, room) = (begin + visibility, MOST_LEASES.saturating_sub(known.leases.len()));
            let Some(seen) = known.workers.get_mut(key) else { return };
            for receipt in receipts.iter().take(room) {
                let queue = receipt.queue().clone();
                seen.queues.entry(queue.clone()).or_insert_with(AtQueue::new).in_flight += 1;
                known.leases.insert(id(receipt), Lease { key: key.clone(), queue, begin, end });
            }
        });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        self.workers.with(|known| {
            let Some(seen) = known.workers.get_mut(key) else { return };
            for queue in &self.queues {
                if let Some(at) = seen.queues.get_mut(queue) {
                    at.waiting = at.waiting.saturating_sub(1);
                    at.hear();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use postrider::{LeaseToken, NativeRef};

    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    fn receipt(queue_name: &str, token: u128) -> ReceiptHandle {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(token));
        ReceiptHandle::new("memory", queue(queue_name), id, LeaseToken(token), NativeRef::Row(1))
    }

    fn asks<'w>(workers: &'w Workers, caller: &str, name: &str, queues: &[QueueName]) -> Waiting<'w> {
        let (caller, address) = (caller.into(), "127.0.0.1".into());
        workers.asks(Asks { kind: WorkerKind::Http, caller: &caller, name, address: &address }, queues)
    }

    #[test]
    fn a_worker_waits_holds_and_lets_go() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        let list = || workers.list(|_| true);
        let waiting = asks(&workers, "token", "anna", &orders);
        assert!(list()[0].is_waiting);
        waiting.got(&[receipt("orders", 1), receipt("orders", 2)], Duration::from_secs(30));
        drop(waiting);
        let [anna] = &list()[..] else { panic!() };
        assert_eq!((anna.in_flight, anna.is_waiting, &anna.queues[..]), (2, false, &orders[..]));
        assert_eq!(anna.idle, Duration::ZERO, "it works");
        workers.settled(&[receipt("orders", 1)]);
        workers.extended(&[receipt("orders", 2)], Duration::ZERO);
        assert_eq!(list()[0].in_flight, 0, "one is settled, the other has run out");
        asks(&workers, "token", "anna", &orders).got(&[receipt("orders", 3)], Duration::from_secs(30));
        workers.never_had(&[receipt("orders", 3)]);
        assert_eq!(list()[0].in_flight, 0);
    }

    #[test]
    fn two_workers_of_a_host_are_two_and_a_messages_worker_is_no_tasks_worker() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        drop(asks(&workers, "token", "host:7:a", &orders));
        drop(asks(&workers, "token", "host:7:b", &orders));
        let (caller, address) = ("token".into(), "127.0.0.1".into());
        let tasks = Asks { kind: WorkerKind::Task, caller: &caller, name: "host:7:b", address: &address };
        drop(workers.asks(tasks, &orders));
        let kinds: Vec<_> = workers.list(|_| true).into_iter().map(|seen| (seen.name, seen.kind)).collect();
        assert_eq!(kinds.len(), 3, "{kinds:?}");
    }

    #[test]
    fn what_a_worker_does_at_a_hidden_queue_does_not_show() {
        let (workers, seen) = (Workers::default(), |queue: &QueueName| queue.as_str() == "mail");
        drop(asks(&workers, "token", "anna", &[queue("mail")]));
        let before = workers.list(seen).remove(0);
        let waiting = asks(&workers, "token", "anna", &[queue("orders")]);
        waiting.got(&[receipt("orders", 1)], Duration::from_secs(30));
        drop(asks(&workers, "token", "ben", &[queue("orders")]));
        let [after] = &workers.list(seen)[..] else { panic!() };
        assert_eq!((after.in_flight, after.is_waiting, after.queues.len()), (0, false, 1));
        assert_eq!((after.first_seen_at, after.last_seen_at), (before.first_seen_at, before.last_seen_at));
        assert_eq!(workers.list(|_| true).len(), 2);
    }

    #[test]
    fn made_up_names_take_no_room_from_others_and_no_request_looks_through_them() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        for n in 0..MOST as u128 * 2 {
            asks(&workers, "mallory", &format!("made up {n}"), &orders).got(&[receipt("orders", n)], FORGOTTEN);
        }
        assert_eq!(workers.list(|_| true).len(), MOST_OF_A_CALLER);
        asks(&workers, "anna", "anna:1", &orders).got(&[receipt("orders", u128::MAX)], FORGOTTEN);
        let all = workers.list(|_| true);
        let anna = all.iter().find(|worker| worker.name == "anna:1").unwrap();
        assert_eq!((anna.in_flight, all.len()), (1, MOST_OF_A_CALLER + 1));
        workers.sweep();
        assert_eq!(workers.list(|_| true).len(), MOST_OF_A_CALLER + 1, "they hold something");
        // Many callers fill the memory together, and no more.
        for n in 0..MOST {
            drop(asks(&workers, &format!("caller {n}"), &format!("worker {n}"), &orders));
        }
        workers.with(|known| {
            assert_eq!((known.workers.len(), known.leases.len()), (MOST, MOST_OF_A_CALLER + 1));
            assert_eq!(known.callers.values().sum::<usize>(), MOST);
        });
    }

    #[test]
    fn no_more_leases_and_queues_are_remembered_than_there_is_room_for() {
        let workers = Workers::default();
        let receipts: Vec<_> = (0..MOST_LEASES as u128 + 9).map(|n| receipt("orders", n)).collect();
        asks(&workers, "mallory", "a", &[queue("orders")]).got(&receipts, FORGOTTEN);
        workers.with(|known| assert_eq!(known.leases.len(), MOST_LEASES));
        for n in 0..MOST_QUEUES * 2 {
            drop(asks(&workers, "mallory", "b", &[queue(&format!("q{n}"))]));
        }
        let all = workers.list(|_| true);
        assert_eq!(all.iter().map(|seen| seen.queues.len()).collect::<Vec<_>>(), [1, MOST_QUEUES]);
    }
}
