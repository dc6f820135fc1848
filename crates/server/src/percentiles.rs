//! How long things took: the middle and the slow end, of the last hour.
//!
//! Durations are counted in steps that grow by a fifth, so that a percentile is right within a tenth, and kept in slots of
//! five minutes, the oldest of which is forgotten when a new one begins.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider::{QueueName, ReceiptHandle};
use postrider_wire::task::Percentiles;
use tokio::time::Instant;

/// Growth from one step to the next.
const GROWTH: f64 = 1.2;

/// Steps from a millisecond to twelve days.
const STEPS: usize = 115;

/// A slot of the last hour, and how many there are.
const SLOT: Duration = Duration::from_secs(300);
const SLOTS: usize = 12;

/// Bound of the queues whose durations are kept.
const MOST_QUEUES: usize = 1000;

/// Bound of the deliveries whose beginning is remembered.
const MOST_BEGUN: usize = 100_000;

/// Durations, counted by steps.
#[derive(Debug, Clone)]
struct Counts(Box<[u32; STEPS]>);

impl Default for Counts {
    fn default() -> Self {
        Self(Box::new([0; STEPS]))
    }
}

fn step(duration: Duration) -> usize {
    let millis = duration.as_secs_f64() * 1000.0;
    // Bounded on both sides before it is a whole number.
    if millis <= 1.0 { 0 } else { (millis.ln() / GROWTH.ln()).ceil().min((STEPS - 1) as f64) as usize }
}

impl Counts {
    fn add(&mut self, duration: Duration) {
        let count = &mut self.0[step(duration)];
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
            let step = self.0.iter().position(|own| {
                passed += u64::from(*own);
                passed >= wanted
            });
            // The upper end of the step.
            GROWTH.powf(step.unwrap_or_default() as f64).round() as u64
        };
        (count > 0).then(|| Percentiles { count, p50_ms: at(50), p95_ms: at(95), p99_ms: at(99) })
    }
}

/// Percentiles of durations that are all at hand.
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
struct Kept {
    queues: HashMap<QueueName, Queue>,
    /// When deliveries were handed over, by a hash of their receipt; oldest first.
    begun: HashMap<u64, Instant>,
    in_order: VecDeque<u64>,
}

impl Kept {
    fn queue(&mut self, queue: &QueueName) -> Option<&mut Queue> {
        if self.queues.len() >= MOST_QUEUES && !self.queues.contains_key(queue) {
            return None;
        }
        Some(self.queues.entry(queue.clone()).or_default())
    }
}

/// How long messages of a queue waited and how long their handlers took, as far as they went through this server.
#[derive(Debug)]
pub(crate) struct Durations {
    began: Instant,
    hasher: RandomState,
    /// A lock, held for a look.
    kept: Mutex<Kept>,
}

impl Default for Durations {
    fn default() -> Self {
        Self { began: Instant::now(), hasher: RandomState::new(), kept: Mutex::default() }
    }
}

impl Durations {
    fn slot(&self) -> u64 {
        self.began.elapsed().as_secs() / SLOT.as_secs()
    }

    fn hash(&self, receipt: &ReceiptHandle) -> u64 {
        self.hasher.hash_one((receipt.queue(), receipt.message_id(), receipt.token()))
    }

    /// A message is a client's now, for the first time after it had waited for so long.
    pub(crate) fn handed_over(&self, receipt: &ReceiptHandle, waited: Option<Duration>) {
        let (slot, hash) = (self.slot(), self.hash(receipt));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.begun.insert(hash, Instant::now()).is_none() {
            kept.in_order.push_back(hash);
        }
        // What was settled stays in the order until it is the oldest.
        while kept.in_order.len() > MOST_BEGUN
            && let Some(oldest) = kept.in_order.pop_front()
        {
            kept.begun.remove(&oldest);
        }
        if let (Some(waited), Some(queue)) = (waited, kept.queue(receipt.queue())) {
            queue.waited.add(slot, waited);
        }
    }

    /// A handler has ended.
    pub(crate) fn settled(&self, receipt: &ReceiptHandle) {
        let (slot, hash) = (self.slot(), self.hash(receipt));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(began) = kept.begun.remove(&hash) else { return };
        if let Some(queue) = kept.queue(receipt.queue()) {
            queue.took.add(slot, began.elapsed());
        }
    }

    /// How long messages of a queue waited, and how long their handlers took.
    pub(crate) fn of(&self, queue: &QueueName) -> (Option<Percentiles>, Option<Percentiles>) {
        let slot = self.slot();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = kept.queues.get_mut(queue) else { return (None, None) };
        (queue.waited.percentiles(slot), queue.took.percentiles(slot))
    }

    /// Forgets queues that are no more.
    pub(crate) fn keep(&self, is_listed: impl Fn(&QueueName) -> bool) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.queues.retain(|queue, _| is_listed(queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_within_a_fifth() {
        let found = of((1..=1000).map(Duration::from_millis)).unwrap();
        for (told, wanted) in [(found.p50_ms, 500.0), (found.p95_ms, 950.0), (found.p99_ms, 990.0)] {
            let told = told as f64;
            assert!(told >= wanted && told <= wanted * GROWTH + 1.0, "{told} for {wanted}");
        }
        assert_eq!(found.count, 1000);
        assert!(of([]).is_none());
        let odd = of([Duration::ZERO, Duration::MAX]).unwrap();
        assert!(odd.p50_ms == 1 && odd.p99_ms > 10 * 24 * 3600 * 1000, "{odd:?}");
    }

    #[test]
    fn what_is_older_than_an_hour_is_forgotten() {
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
