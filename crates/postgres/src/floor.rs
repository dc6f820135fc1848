//! Lower bounds of claims.
//!
//! A claimed message leaves dead entries in the claim index, at due times that have passed. The server removes them by
//! vacuum, which a session in an old transaction prevents. A claim would then walk all of them, and a queue that does
//! ten thousand messages a second would fall to one thousand. So a claim begins a little before the latest due time
//! that was claimed, per priority, and skips the entries below.
//!
//! A message that becomes visible later than its due time would be skipped too. This crate writes due times of the
//! statement, so a late message is one whose transaction took longer than the margin; its hint then says by how much.
//! Transactions of callers may end at any time, so their hints say when they began. Such a hint lowers the bounds that
//! far and no further: a full scan takes the longer the more rows there are, and would make other messages late. Every
//! two seconds a claim scans everything anyway. When the server's clock is set back, the bounds follow at the next
//! claim or look that reads it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{QueueName, Timestamp};
use postrider_pg::Missed;

use crate::rows::Time;
use crate::store::MAX_QUEUES;

/// How much later than its due time a message may become visible and still be found by every claim.
pub(crate) const MARGIN: Duration = Duration::from_millis(50);

/// Upper bound of a late hint's own latency; a later one is covered by the next full scan.
const HINT_LATENCY: Duration = Duration::from_secs(1);

/// Interval of full scans.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(2);

/// Full scans take at most one part in this many of the time.
const FULL_SCAN_SHARE: u32 = 10;

const PRIORITIES: usize = 10;

/// The lower bounds of each queue's claims.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    // Held for a few comparisons, twice a claim.
    queues: Mutex<HashMap<QueueName, Floor>>,
}

#[derive(Debug)]
struct Floor {
    /// The latest due time that was claimed of each priority.
    highest: [Option<Timestamp>; PRIORITIES],
    /// The server's clock, as last read.
    clock: Option<Timestamp>,
    /// When the next full scan is due.
    full_scan_at: Instant,
    must_scan: bool,
    /// Rises when the bounds are lowered; a claim of an older round does not raise them.
    round: u64,
}

/// The due times at which a claim or a look begins.
#[derive(Debug)]
pub(crate) struct LowerBounds {
    /// From the most urgent priority to the least.
    pub(crate) floors: Vec<Time>,
    is_full_scan: bool,
    round: u64,
    began: Instant,
}

impl Floors {
    /// Returns the bounds of the next look at a queue.
    pub(crate) fn lower_bounds(&self, queue: &QueueName) -> LowerBounds {
        let now = Instant::now();
        let mut queues = self.lock();
        if !queues.contains_key(queue) {
            if queues.len() >= MAX_QUEUES {
                // Each then begins with a full scan.
                queues.clear();
            }
            queues.insert(
                queue.clone(),
                Floor { highest: Default::default(), clock: None, full_scan_at: now, must_scan: true, round: 0 },
            );
        }
        let Some(floor) = queues.get_mut(queue) else { return LowerBounds::everything(now, 0) };
        if std::mem::take(&mut floor.must_scan) || now >= floor.full_scan_at {
            // One caller of this process is enough.
            floor.full_scan_at = now + FULL_SCAN_INTERVAL;
            return LowerBounds::everything(now, floor.round);
        }
        let begin = |highest: &Option<Timestamp>| highest.map_or(EARLIEST, |time| time.saturating_sub(MARGIN));
        let floors = floor.highest.iter().rev().map(|highest| Time(begin(highest))).collect();
        LowerBounds { floors, is_full_scan: false, round: floor.round, began: now }
    }

    /// Notes the priorities and due times that a claim took: everything due, unless it was full.
    pub(crate) fn claimed(
        &self,
        queue: &QueueName,
        bounds: &LowerBounds,
        taken: impl Iterator<Item = (usize, Timestamp)>,
        is_full: bool,
    ) {
        let mut queues = self.lock();
        let Some(floor) = queues.get_mut(queue) else { return };
        let is_stale = bounds.round != floor.round;
        if bounds.is_full_scan {
            floor.postpone_full_scan(bounds);
            if is_full {
                // More may be due at these times, and in the priorities that the claim did not get to.
                floor.highest = Default::default();
                floor.round += 1;
            }
        }
        if is_stale {
            return;
        }
        for (priority, due) in taken {
            if let Some(highest) = floor.highest.get_mut(priority) {
                *highest = (*highest).max(Some(due));
            }
        }
    }

    /// Notes the server's clock: nothing written from now on is due before it.
    pub(crate) fn note_clock(&self, queue: &QueueName, now: Timestamp) {
        if let Some(floor) = self.lock().get_mut(queue) {
            floor.clock = Some(now);
            floor.highest.iter_mut().for_each(|highest| *highest = highest.map(|highest| highest.min(now)));
        }
    }

    /// Notes a look that found whether something is due and took nothing.
    pub(crate) fn note_look(&self, queue: &QueueName, bounds: &LowerBounds, is_due: bool) {
        if let Some(floor) = self.lock().get_mut(queue).filter(|_| bounds.is_full_scan) {
            floor.postpone_full_scan(bounds);
            // The claim that follows must scan as far.
            floor.must_scan |= is_due;
        }
    }

    /// Notes a look that failed.
    pub(crate) fn failed(&self, queue: &QueueName, bounds: &LowerBounds) {
        if bounds.is_full_scan {
            self.request_full_scan(queue);
        }
    }

    /// Lowers the bounds so that the next look finds what may have been skipped. They are lowered from the clock and
    /// not from themselves, or one hint after another would lower them ever further.
    pub(crate) fn miss(&self, queue: &QueueName, missed: Missed) {
        if let Some(floor) = self.lock().get_mut(queue) {
            let clock = floor.clock;
            let lowered = |highest: Timestamp| match missed {
                Missed::For(by) => {
                    highest.min(clock.unwrap_or(highest).saturating_sub(by.saturating_add(HINT_LATENCY)))
                }
                Missed::Since(time) => highest.min(time),
                Missed::Anything => EARLIEST,
            };
            floor.must_scan |= missed == Missed::Anything;
            floor.highest.iter_mut().for_each(|highest| *highest = highest.map(lowered));
            floor.round += 1;
        }
    }

    /// Makes the next look at a queue a full scan.
    pub(crate) fn request_full_scan(&self, queue: &QueueName) {
        if let Some(floor) = self.lock().get_mut(queue) {
            floor.must_scan = true;
        }
    }

    /// Makes the next look at any queue a full scan.
    pub(crate) fn request_full_scans(&self) {
        self.lock().values_mut().for_each(|floor| floor.must_scan = true);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Floor>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Floor {
    fn postpone_full_scan(&mut self, bounds: &LowerBounds) {
        let took = bounds.began.elapsed();
        self.full_scan_at = Instant::now() + FULL_SCAN_INTERVAL.max(took * FULL_SCAN_SHARE);
    }
}

/// Before every due time.
const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);

impl LowerBounds {
    /// For a statement that addresses rows by id.
    pub(crate) fn none() -> Self {
        Self { floors: Vec::new(), is_full_scan: false, round: 0, began: Instant::now() }
    }

    fn everything(began: Instant, round: u64) -> Self {
        Self { floors: vec![Time(EARLIEST); PRIORITIES], is_full_scan: true, round, began }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    fn begins(bounds: &LowerBounds, priority: usize) -> Timestamp {
        bounds.floors[PRIORITIES - 1 - priority].0
    }

    #[test]
    fn a_claim_begins_a_little_before_the_latest_due_time_of_its_priority() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.lower_bounds(&queue);
        assert!(first.is_full_scan, "nothing is known yet");
        floors.claimed(&queue, &first, [(4, at(1000)), (4, at(3000)), (9, at(2000))].into_iter(), false);
        let next = floors.lower_bounds(&queue);
        assert!(!next.is_full_scan);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(2950), at(1950), EARLIEST]);
        floors.claimed(&queue, &next, [(4, at(2990))].into_iter(), true);
        assert_eq!(begins(&floors.lower_bounds(&queue), 4), at(2950), "it never falls by itself");
    }

    #[test]
    fn a_clock_that_is_set_back_lowers_the_bounds() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.lower_bounds(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (9, at(2000))].into_iter(), false);
        floors.note_clock(&queue, at(9500));
        assert_eq!(begins(&floors.lower_bounds(&queue), 4), at(8950));
        floors.note_clock(&queue, at(5000));
        let next = floors.lower_bounds(&queue);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(4950), at(1950), EARLIEST]);
    }

    #[test]
    fn a_requested_full_scan_happens_once() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let is_full_scan = || floors.lower_bounds(&queue).is_full_scan;
        assert_eq!([is_full_scan(), is_full_scan()], [true, false]);
        floors.request_full_scan(&queue);
        assert_eq!([is_full_scan(), is_full_scan()], [true, false]);
        floors.request_full_scans();
        let failed = floors.lower_bounds(&queue);
        floors.failed(&queue, &failed);
        let seen = floors.lower_bounds(&queue);
        assert!(seen.is_full_scan, "the failed one is repeated");
        floors.note_look(&queue, &seen, true);
        assert_eq!([is_full_scan(), is_full_scan()], [true, false]);
    }

    #[test]
    fn a_late_hint_lowers_the_bounds_that_far_and_no_further() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.lower_bounds(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (9, at(2000))].into_iter(), false);
        let slow = floors.lower_bounds(&queue);
        floors.miss(&queue, Missed::For(Duration::from_millis(500)));
        // A claim from before must not raise them again.
        floors.claimed(&queue, &slow, [(4, at(9100))].into_iter(), false);
        let next = floors.lower_bounds(&queue);
        assert!(!next.is_full_scan);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(7450), at(450), EARLIEST]);
        floors.miss(&queue, Missed::Since(at(1000)));
        let next = floors.lower_bounds(&queue);
        assert_eq!([4, 9].map(|priority| begins(&next, priority)), [at(950), at(450)]);
        floors.miss(&queue, Missed::Anything);
        let sweep = floors.lower_bounds(&queue);
        assert!(sweep.is_full_scan);
        // It began before this hint and must not raise the bounds past it.
        floors.miss(&queue, Missed::Since(at(500)));
        floors.claimed(&queue, &sweep, [(4, at(9200))].into_iter(), false);
        assert!(begins(&floors.lower_bounds(&queue), 4) <= at(450));
    }

    #[test]
    fn repeated_late_hints_lower_the_bounds_once() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.lower_bounds(&queue);
        floors.claimed(&queue, &first, [(4, at(9000))].into_iter(), false);
        floors.note_clock(&queue, at(9400));
        for _ in 0..3 {
            floors.miss(&queue, Missed::For(Duration::from_millis(500)));
            assert_eq!(begins(&floors.lower_bounds(&queue), 4), at(7850));
        }
    }

    #[test]
    fn a_full_scan_that_fills_a_claim_lowers_the_bounds_to_what_it_took() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.lower_bounds(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (5, at(9000))].into_iter(), false);
        let slow = floors.lower_bounds(&queue);
        floors.request_full_scan(&queue);
        let sweep = floors.lower_bounds(&queue);
        floors.claimed(&queue, &sweep, [(5, at(1000))].into_iter(), true);
        // A claim from before does not know of older messages.
        floors.claimed(&queue, &slow, [(5, at(9100))].into_iter(), false);
        let next = floors.lower_bounds(&queue);
        assert_eq!([5, 4].map(|priority| begins(&next, priority)), [at(950), EARLIEST]);
    }
}
