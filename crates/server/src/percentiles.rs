//! Percentiles of durations in the last hour.
//!
//! Durations are counted in buckets that grow by a fifth, so a percentile is exact within a fifth, and state in slots
//! of five minutes; the oldest slot is dropped when a new one begins.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider::{QueueName, ReceiptHandle};
use postrider_wire::task::Percentiles;
use tokio::time::Instant;

/// Growth from one bucket to the next.
const GROWTH: f64 = 1.2;

/// Number of buckets, from a millisecond to twelve days.
const BUCKETS: usize = 115;

/// Length and number of the slots.
const SLOT: Duration = Duration::from_secs(300);
const SLOTS: usize = 12;

/// Upper bound of the queues.
const MAX_QUEUES: usize = 1000;

/// Upper bound of the running deliveries.
const MAX_STARTED: usize = 100_000;

/// Counts of durations by bucket.
#[derive(Debug, Clone)]
struct Counts(Box<[u32; BUCKETS]>);

impl Default for Counts {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

fn bucket(duration: Duration) -> usize {
    let millis = duration.as_secs_f64() * 1000.0;
    // Clamped before the cast.
    if millis <= 1.0 { 0 } else { (millis.ln() / GROWTH.ln()).ceil().min((BUCKETS - 1) as f64) as usize }
}

impl Counts {
    fn add(&mut self, duration: Duration) {
        let count = &mut self.0[bucket(duration)];
        *count = count.saturating_add(1);
    }

    fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(own, other)| *own = own.saturating_add(*other));
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let count: u64 = self.0.iter().copied().map(u64::from).sum();
        let at = |part: u64| {
            let wanted = (count * part).div_ceil(100).max(1);
            let mut passed = 0;
            let bucket = self.0.iter().position(|own| {
                passed += u64::from(*own);
                passed >= wanted
            });
            // Upper end of the bucket.
            GROWTH.powf(bucket.unwrap_or_default() as f64).round() as u64
        };
        (count > 0).then(|| Percentiles { count, p50_ms: at(50), p95_ms: at(95), p99_ms: at(99) })
    }
}

/// Returns the percentiles of the given durations.
pub(crate) fn of(durations: impl IntoIterator<Item = Duration>) -> Option<Percentiles> {
    let mut counts = Counts::default();
    durations.into_iter().for_each(|duration| counts.add(duration));
    counts.percentiles()
}

/// Durations of the last hour.
#[derive(Debug, Default)]
struct LastHour(VecDeque<(u64, Counts)>);

impl LastHour {
    fn add(&mut self, slot: u64, duration: Duration) {
        if self.0.back().is_none_or(|(newest, _)| *newest < slot) {
            self.0.push_back((slot, Counts::default()));
        }
        self.forget(slot);
        if let Some((_, counts)) = self.0.back_mut() {
            counts.add(duration);
        }
    }

    fn forget(&mut self, slot: u64) {
        self.0.retain(|(own, _)| own + SLOTS as u64 > slot);
    }

    fn percentiles(&mut self, slot: u64) -> Option<Percentiles> {
        self.forget(slot);
        let mut all = Counts::default();
        self.0.iter().for_each(|(_, counts)| all.add_all(counts));
        all.percentiles()
    }
}

#[derive(Debug, Default)]
struct Queue {
    waited: LastHour,
    took: LastHour,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<QueueName, Queue>,
    /// Start times of deliveries, by a hash of the receipt.
    started: HashMap<u64, Instant>,
    in_order: VecDeque<u64>,
}

impl State {
    fn queue(&mut self, queue: &QueueName) -> Option<&mut Queue> {
        if self.queues.len() >= MAX_QUEUES && !self.queues.contains_key(queue) {
            return None;
        }
        Some(self.queues.entry(queue.clone()).or_default())
    }
}

/// Waiting and handling times of messages that went through this server.
#[derive(Debug)]
pub(crate) struct Durations {
    began: Instant,
    hasher: RandomState,
    /// The lock is held briefly.
    state: Mutex<State>,
}

impl Default for Durations {
    fn default() -> Self {
        Self { began: Instant::now(), hasher: RandomState::new(), state: Mutex::default() }
    }
}

impl Durations {
    fn slot(&self) -> u64 {
        self.began.elapsed().as_secs() / SLOT.as_secs()
    }

    fn hash(&self, receipt: &ReceiptHandle) -> u64 {
        self.hasher.hash_one((receipt.queue(), receipt.message_id(), receipt.token()))
    }

    /// Records a delivery, and its waiting time if it is the first.
    pub(crate) fn delivered(&self, receipt: &ReceiptHandle, waited: Option<Duration>) {
        let (slot, hash) = (self.slot(), self.hash(receipt));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.started.insert(hash, Instant::now()).is_none() {
            state.in_order.push_back(hash);
        }
        // Settled deliveries stay in the order until they are the oldest.
        while state.in_order.len() > MAX_STARTED
            && let Some(oldest) = state.in_order.pop_front()
        {
            state.started.remove(&oldest);
        }
        if let (Some(waited), Some(queue)) = (waited, state.queue(receipt.queue())) {
            queue.waited.add(slot, waited);
        }
    }

    /// Records the end of a handler.
    pub(crate) fn settled(&self, receipt: &ReceiptHandle) {
        let (slot, hash) = (self.slot(), self.hash(receipt));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(began) = state.started.remove(&hash) else { return };
        if let Some(queue) = state.queue(receipt.queue()) {
            queue.took.add(slot, began.elapsed());
        }
    }

    /// Returns the percentiles of a queue's waiting and handling times.
    pub(crate) fn of(&self, queue: &QueueName) -> (Option<Percentiles>, Option<Percentiles>) {
        let slot = self.slot();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = state.queues.get_mut(queue) else { return (None, None) };
        (queue.waited.percentiles(slot), queue.took.percentiles(slot))
    }

    /// Drops queues that are no longer listed.
    pub(crate) fn retain_listed(&self, is_listed: impl Fn(&QueueName) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queues.retain(|queue, _| is_listed(queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_within_a_fifth() {
        let found = of((1..=1000).map(Duration::from_millis)).unwrap();
        for (actual, wanted) in [(found.p50_ms, 500.0), (found.p95_ms, 950.0), (found.p99_ms, 990.0)] {
            let actual = actual as f64;
            assert!(actual >= wanted && actual <= wanted * GROWTH + 1.0, "{actual} for {wanted}");
        }
        assert_eq!(found.count, 1000);
        assert!(of([]).is_none());
        let odd = of([Duration::ZERO, Duration::MAX]).unwrap();
        assert!(odd.p50_ms == 1 && odd.p99_ms > 10 * 24 * 3600 * 1000, "{odd:?}");
    }

    #[test]
    fn durations_older_than_an_hour_are_dropped() {
        let mut hour = LastHour::default();
        hour.add(0, Duration::from_secs(100));
        hour.add(5, Duration::from_secs(1));
        assert_eq!(hour.percentiles(11).unwrap().count, 2);
        assert_eq!(hour.percentiles(12).unwrap().count, 1);
        hour.add(40, Duration::from_secs(1));
        assert_eq!((hour.0.len(), hour.percentiles(40).unwrap().count), (1, 1));
        assert!(hour.percentiles(60).is_none());
    }
}
