//! The list of connected workers and their leases.
//!
//! It is in memory: a worker appears with its requests, after a restart with the next one. Workers that use the store
//! without this server are not listed, except task workers, which the store itself records.
//!
//! Entries are kept by queue, because a token may be limited to some queues: activity on other queues must not show. A
//! request changes only its own entries; a periodic sweep removes old ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postrider::{MessageId, QueueName, ReceiptHandle, Timestamp};
use postrider_wire::worker::WorkerKind;

use crate::api::ApiError;

/// Time without a request after which a worker is removed.
const IDLE_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The same if the caller, or the whole list, is at its upper bound.
const IDLE_LIMIT_WHEN_FULL: Duration = Duration::from_secs(10);

/// Interval of the sweep.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Upper bounds of the listed workers, in all and of one caller. Further workers are served, and not listed.
const MAX: usize = 10_000;
const MAX_PER_CALLER: usize = 1_000;

/// Upper bound of the queues of one worker.
const MAX_QUEUES: usize = 100;

/// Upper bound of the leases.
const MAX_LEASES: usize = 200_000;

const LONGEST_NAME: usize = 128;

/// Checks the name of a worker.
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
struct WorkerEntry {
    /// Key of the caller: id of the token, or the address.
    caller: Arc<str>,
    queues: BTreeMap<QueueName, QueueActivity>,
}

/// Activity of a worker on one queue.
#[derive(Debug)]
struct QueueActivity {
    waiting: usize,
    in_flight: usize,
    first: Timestamp,
    last: Timestamp,
    last_request: Instant,
}

impl QueueActivity {
    fn new() -> Self {
        let now = Timestamp::now();
        Self { waiting: 0, in_flight: 0, first: now, last: now, last_request: Instant::now() }
    }

    fn is_busy(&self) -> bool {
        self.waiting > 0 || self.in_flight > 0
    }

    fn touch(&mut self) {
        (self.last, self.last_request) = (Timestamp::now(), Instant::now());
    }
}

/// A worker as it is listed.
#[derive(Debug, Clone)]
pub(crate) struct WorkerView {
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

/// A lease and its expected end.
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
struct State {
    workers: HashMap<Arc<Key>, WorkerEntry>,
    /// Number of workers of each caller.
    callers: HashMap<Arc<str>, usize>,
    leases: HashMap<LeaseId, Lease>,
}

/// The list of workers. The lock is held briefly.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<State>);

/// The worker that sends a receive or claim request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerRequest<'a> {
    pub(crate) kind: WorkerKind,
    /// Key of the caller: id of the token, or the address.
    pub(crate) caller: &'a Arc<str>,
    pub(crate) name: &'a str,
    pub(crate) address: &'a Arc<str>,
}

/// A request of a worker that waits; ends on drop.
#[derive(Debug)]
pub(crate) struct OngoingRequest<'a> {
    workers: &'a Workers,
    /// `None` if the list is full and the worker is not in it.
    key: Option<Arc<Key>>,
    queues: Vec<QueueName>,
}

impl Workers {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that a worker requests messages or tasks of these queues.
    pub(crate) fn begin_request(&self, request: WorkerRequest<'_>, queues: &[QueueName]) -> OngoingRequest<'_> {
        let WorkerRequest { kind, caller, name, address } = request;
        let key = Arc::new(Key { kind, name: name.to_owned(), address: address.clone() });
        let key = self.with(|state| {
            let key = match state.workers.get_key_value(&key) {
                Some((state, _)) => state.clone(),
                None if state.has_room(caller) => {
                    *state.callers.entry(caller.clone()).or_default() += 1;
                    state.workers.insert(key.clone(), WorkerEntry { caller: caller.clone(), queues: BTreeMap::new() });
                    key
                }
                None => return None,
            };
            let seen = state.workers.get_mut(&key)?;
            for queue in queues {
                let at = seen.queues.entry(queue.clone()).or_insert_with(QueueActivity::new);
                at.waiting += 1;
                at.touch();
            }
            seen.evict_queues();
            Some(key)
        });
        OngoingRequest { workers: self, key, queues: queues.to_vec() }
    }

    /// Records the extension of leases.
    pub(crate) fn extended(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        self.with(|state| {
            for receipt in receipts {
                if let Some(lease) = state.leases.get_mut(&id(receipt)) {
                    lease.end = Instant::now() + visibility;
                    if let Some(at) =
                        state.workers.get_mut(&lease.key).and_then(|seen| seen.queues.get_mut(&lease.queue))
                    {
                        at.touch();
                    }
                }
            }
        });
    }

    /// Removes settled leases. Returns how long each was held, if it is state.
    pub(crate) fn settled<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) -> Vec<Option<Duration>> {
        self.with(|state| receipts.into_iter().map(|receipt| state.remove_lease(&id(receipt), true)).collect())
    }

    /// Removes leases that did not reach the worker.
    pub(crate) fn returned<'a>(&self, receipts: impl IntoIterator<Item = &'a ReceiptHandle>) {
        self.with(|state| {
            for receipt in receipts {
                state.remove_lease(&id(receipt), false);
            }
        });
    }

    /// The recently active workers of the visible queues.
    pub(crate) fn list(&self, may_see: impl Fn(&QueueName) -> bool) -> Vec<WorkerView> {
        self.with(|state| {
            state.remove_expired_leases();
            let mut all: Vec<_> = state.workers.iter().filter_map(|(key, seen)| seen.view(key, &may_see)).collect();
            all.sort_by(|a, b| (&a.name, &a.address, a.kind).cmp(&(&b.name, &b.address, b.kind)));
            all
        })
    }

    /// Removes expired leases and idle workers.
    pub(crate) fn sweep(&self) {
        self.with(|state| {
            state.remove_expired_leases();
            let is_full = state.workers.len() >= MAX;
            let State { workers, callers, .. } = state;
            workers.retain(|_, seen| {
                let own = callers.get(&seen.caller).copied().unwrap_or_default();
                let timeout = if is_full || own >= MAX_PER_CALLER { IDLE_LIMIT_WHEN_FULL } else { IDLE_LIMIT };
                seen.queues.retain(|_, at| at.is_busy() || at.last_request.elapsed() < timeout);
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

impl State {
    fn has_room(&self, caller: &Arc<str>) -> bool {
        self.workers.len() < MAX && self.callers.get(caller).is_none_or(|own| *own < MAX_PER_CALLER)
    }

    /// Removes a lease; `by_worker` if a request of the worker ended it. Returns how long it was held.
    fn remove_lease(&mut self, id: &LeaseId, by_worker: bool) -> Option<Duration> {
        let Lease { key, queue, begin, .. } = self.leases.remove(id)?;
        if let Some(at) = self.workers.get_mut(&key).and_then(|seen| seen.queues.get_mut(&queue)) {
            at.in_flight = at.in_flight.saturating_sub(1);
            if by_worker {
                at.touch();
            }
        }
        Some(begin.elapsed())
    }

    fn remove_expired_leases(&mut self) {
        let now = Instant::now();
        let over: Vec<_> = self.leases.iter().filter(|(_, lease)| lease.end <= now).map(|(id, _)| *id).collect();
        for id in &over {
            self.remove_lease(id, false);
        }
    }
}

impl WorkerEntry {
    /// Removes the least recently used queues above the upper bound.
    fn evict_queues(&mut self) {
        while self.queues.len() > MAX_QUEUES {
            let idle = self.queues.iter().filter(|(_, at)| !at.is_busy());
            match idle.min_by_key(|(_, at)| at.last_request).map(|(queue, _)| queue.clone()) {
                Some(oldest) => drop(self.queues.remove(&oldest)),
                // All are busy; their number is bounded by the queues of running requests.
                None => return,
            }
        }
    }

    fn view(&self, key: &Key, may_see: impl Fn(&QueueName) -> bool) -> Option<WorkerView> {
        let seen: Vec<_> = self.queues.iter().filter(|(queue, _)| may_see(queue)).collect();
        let all = || seen.iter().map(|(_, at)| at);
        let (in_flight, is_waiting) = (all().map(|at| at.in_flight).sum(), all().any(|at| at.waiting > 0));
        let idle = all().map(|at| at.last_request.elapsed()).min()?;
        Some(WorkerView {
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

impl OngoingRequest<'_> {
    /// Records the leases that the worker received.
    pub(crate) fn received(&self, receipts: &[ReceiptHandle], visibility: Duration) {
        let Some(key) = &self.key else { return };
        self.workers.with(|state| {
            let begin = Instant::now();
            let (end, room) = (begin + visibility, MAX_LEASES.saturating_sub(state.leases.len()));
            let Some(seen) = state.workers.get_mut(key) else { return };
            for receipt in receipts.iter().take(room) {
                let queue = receipt.queue().clone();
                seen.queues.entry(queue.clone()).or_insert_with(QueueActivity::new).in_flight += 1;
                state.leases.insert(id(receipt), Lease { key: key.clone(), queue, begin, end });
            }
        });
    }
}

impl Drop for OngoingRequest<'_> {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        self.workers.with(|state| {
            let Some(seen) = state.workers.get_mut(key) else { return };
            for queue in &self.queues {
                if let Some(at) = seen.queues.get_mut(queue) {
                    at.waiting = at.waiting.saturating_sub(1);
                    at.touch();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use postrider::provider::{LeaseToken, NativeRef};

    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    fn receipt(queue_name: &str, token: u128) -> ReceiptHandle {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(token));
        ReceiptHandle::new("memory", queue(queue_name), id, LeaseToken(token), NativeRef::Row(1))
    }

    fn request<'w>(workers: &'w Workers, caller: &str, name: &str, queues: &[QueueName]) -> OngoingRequest<'w> {
        let (caller, address) = (caller.into(), "127.0.0.1".into());
        workers
            .begin_request(WorkerRequest { kind: WorkerKind::Http, caller: &caller, name, address: &address }, queues)
    }

    #[test]
    fn a_worker_waits_holds_leases_and_settles() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        let list = || workers.list(|_| true);
        let waiting = request(&workers, "token", "anna", &orders);
        assert!(list()[0].is_waiting);
        waiting.received(&[receipt("orders", 1), receipt("orders", 2)], Duration::from_secs(30));
        drop(waiting);
        let [anna] = &list()[..] else { panic!() };
        assert_eq!((anna.in_flight, anna.is_waiting, &anna.queues[..]), (2, false, &orders[..]));
        assert_eq!(anna.idle, Duration::ZERO, "it holds leases");
        workers.settled(&[receipt("orders", 1)]);
        workers.extended(&[receipt("orders", 2)], Duration::ZERO);
        assert_eq!(list()[0].in_flight, 0, "one is settled, the other has run out");
        request(&workers, "token", "anna", &orders).received(&[receipt("orders", 3)], Duration::from_secs(30));
        workers.returned(&[receipt("orders", 3)]);
        assert_eq!(list()[0].in_flight, 0);
    }

    #[test]
    fn workers_are_told_apart_by_name_and_kind() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        drop(request(&workers, "token", "host:7:a", &orders));
        drop(request(&workers, "token", "host:7:b", &orders));
        let (caller, address) = ("token".into(), "127.0.0.1".into());
        let tasks = WorkerRequest { kind: WorkerKind::Task, caller: &caller, name: "host:7:b", address: &address };
        drop(workers.begin_request(tasks, &orders));
        let kinds: Vec<_> = workers.list(|_| true).into_iter().map(|seen| (seen.name, seen.kind)).collect();
        assert_eq!(kinds.len(), 3, "{kinds:?}");
    }

    #[test]
    fn activity_on_a_hidden_queue_does_not_show() {
        let (workers, seen) = (Workers::default(), |queue: &QueueName| queue.as_str() == "mail");
        drop(request(&workers, "token", "anna", &[queue("mail")]));
        let before = workers.list(seen).remove(0);
        let waiting = request(&workers, "token", "anna", &[queue("orders")]);
        waiting.received(&[receipt("orders", 1)], Duration::from_secs(30));
        drop(request(&workers, "token", "ben", &[queue("orders")]));
        let [after] = &workers.list(seen)[..] else { panic!() };
        assert_eq!((after.in_flight, after.is_waiting, after.queues.len()), (0, false, 1));
        assert_eq!((after.first_seen_at, after.last_seen_at), (before.first_seen_at, before.last_seen_at));
        assert_eq!(workers.list(|_| true).len(), 2);
    }

    #[test]
    fn invented_names_take_no_room_from_other_callers() {
        let (workers, orders) = (Workers::default(), [queue("orders")]);
        for n in 0..MAX as u128 * 2 {
            request(&workers, "mallory", &format!("made up {n}"), &orders)
                .received(&[receipt("orders", n)], IDLE_LIMIT);
        }
        assert_eq!(workers.list(|_| true).len(), MAX_PER_CALLER);
        request(&workers, "anna", "anna:1", &orders).received(&[receipt("orders", u128::MAX)], IDLE_LIMIT);
        let all = workers.list(|_| true);
        let anna = all.iter().find(|worker| worker.name == "anna:1").unwrap();
        assert_eq!((anna.in_flight, all.len()), (1, MAX_PER_CALLER + 1));
        workers.sweep();
        assert_eq!(workers.list(|_| true).len(), MAX_PER_CALLER + 1, "they hold leases");
        // Many callers together fill the list up to its bound.
        for n in 0..MAX {
            drop(request(&workers, &format!("caller {n}"), &format!("worker {n}"), &orders));
        }
        workers.with(|state| {
            assert_eq!((state.workers.len(), state.leases.len()), (MAX, MAX_PER_CALLER + 1));
            assert_eq!(state.callers.values().sum::<usize>(), MAX);
        });
    }

    #[test]
    fn leases_and_queues_are_bounded() {
        let workers = Workers::default();
        let receipts: Vec<_> = (0..MAX_LEASES as u128 + 9).map(|n| receipt("orders", n)).collect();
        request(&workers, "mallory", "a", &[queue("orders")]).received(&receipts, IDLE_LIMIT);
        workers.with(|state| assert_eq!(state.leases.len(), MAX_LEASES));
        for n in 0..MAX_QUEUES * 2 {
            drop(request(&workers, "mallory", "b", &[queue(&format!("q{n}"))]));
        }
        let all = workers.list(|_| true);
        assert_eq!(all.iter().map(|seen| seen.queues.len()).collect::<Vec<_>>(), [1, MAX_QUEUES]);
    }
}
