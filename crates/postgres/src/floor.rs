//! Where a claim begins to look.
//!
//! A message that was claimed leaves entries in the index behind, at times that have passed. They go when the server
//! cleans up, and a session that stays in an old transaction keeps the server from it: then every claim would walk them
//! all, a few more each time, until a queue that did ten thousand a second does one thousand. So a claim begins a little
//! before the latest time that was claimed, for each priority apart, and jumps over what it knows to be gone.
//!
//! What becomes visible later than it was due would be passed over: everything that this crate writes is due when it is
//! written and not before, and whoever needed longer than the margin to commit says so, and how long. Transactions of
//! others say when they began, since they end when they like. That lowers the floors so far; to look at everything for it
//! would take the longer the more lies there, which makes others late in turn. Every two seconds a claim looks from the
//! beginning all the same. When the server's clock is set back, the floors follow it at the next claim or look that
//! tells what it shows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{QueueName, Timestamp};
use postrider_pg::Missed;

use crate::rows::Time;
use crate::store::MOST_NAMES;

/// How much later than its due time a message may become visible and is still met by every claim.
pub(crate) const MARGIN: Duration = Duration::from_millis(50);

/// How long a word of what came late may be on its way; what needs longer waits for the next look at everything.
const WAY: Duration = Duration::from_secs(1);

/// How long it is from one look at everything to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// Looks at everything take so many parts of the time at most, in which one is the look.
const SWEEP_SHARE: u32 = 10;

const PRIORITIES: usize = 10;

/// Where each queue's claims begin.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    // One lock for all: it is held for a few comparisons, twice a claim.
    queues: Mutex<HashMap<QueueName, Floor>>,
}

#[derive(Debug)]
struct Floor {
    /// The latest due time that was claimed of each priority.
    highest: [Option<Timestamp>; PRIORITIES],
    /// What the server's clock showed last.
    clock: Option<Timestamp>,
    /// When everything is looked at next.
    sweep_at: Instant,
    must_sweep: bool,
    /// Rises when the floors are lowered: what a claim from before then has learnt is worth nothing.
    round: u64,
}

/// How far back a look goes.
#[derive(Debug)]
pub(crate) struct Reach {
    /// From the most urgent priority to the least.
    pub(crate) floors: Vec<Time>,
    is_sweep: bool,
    round: u64,
    began: Instant,
}

impl Floors {
    /// How far back the next look at a queue goes.
    pub(crate) fn reach(&self, queue: &QueueName) -> Reach {
        let now = Instant::now();
        let mut queues = self.lock();
        if !queues.contains_key(queue) {
            if queues.len() >= MOST_NAMES {
                // They begin with a look at everything.
                queues.clear();
            }
            queues.insert(
                queue.clone(),
                Floor { highest: Default::default(), clock: None, sweep_at: now, must_sweep: true, round: 0 },
            );
        }
        let Some(floor) = queues.get_mut(queue) else { return Reach::everything(now, 0) };
        if std::mem::take(&mut floor.must_sweep) || now >= floor.sweep_at {
            // Others in this process need not do it too.
            floor.sweep_at = now + SWEEP_EVERY;
            return Reach::everything(now, floor.round);
        }
        let begin = |highest: &Option<Timestamp>| highest.map_or(EARLIEST, |time| time.saturating_sub(MARGIN));
        let floors = floor.highest.iter().rev().map(|highest| Time(begin(highest))).collect();
        Reach { floors, is_sweep: false, round: floor.round, began: now }
    }

    /// A claim took messages of these priorities and due times; all that it could, unless it is full.
    pub(crate) fn claimed(
        &self,
        queue: &QueueName,
        reach: &Reach,
        taken: impl Iterator<Item = (usize, Timestamp)>,
        is_full: bool,
    ) {
        let mut queues = self.lock();
        let Some(floor) = queues.get_mut(queue) else { return };
        let is_stale = reach.round != floor.round;
        if reach.is_sweep {
            floor.put_off_sweep(reach);
            if is_full {
                // There may be more where these came from, and in the priorities that it did not come to.
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

    /// The server's clock showed this time, and nothing that is written from now on is due before it.
    pub(crate) fn see_clock(&self, queue: &QueueName, now: Timestamp) {
        if let Some(floor) = self.lock().get_mut(queue) {
            floor.clock = Some(now);
            floor.highest.iter_mut().for_each(|highest| *highest = highest.map(|highest| highest.min(now)));
        }
    }

    /// A look found out whether something can be received, and took nothing.
    pub(crate) fn looked(&self, queue: &QueueName, reach: &Reach, is_due: bool) {
        if let Some(floor) = self.lock().get_mut(queue).filter(|_| reach.is_sweep) {
            floor.put_off_sweep(reach);
            // The claim that follows must find what was seen.
            floor.must_sweep |= is_due;
        }
    }

    /// A look came to nothing.
    pub(crate) fn failed(&self, queue: &QueueName, reach: &Reach) {
        if reach.is_sweep {
            self.sweep(queue);
        }
    }

    /// The next look at a queue must reach what may have been missed. What was due a while ago lies no further than that
    /// below what the clock has shown; to go down from the floors themselves would add up with each word.
    pub(crate) fn miss(&self, queue: &QueueName, missed: Missed) {
        if let Some(floor) = self.lock().get_mut(queue) {
            let clock = floor.clock;
            let lowered = |highest: Timestamp| match missed {
                Missed::For(by) => highest.min(clock.unwrap_or(highest).saturating_sub(by.saturating_add(WAY))),
                Missed::Since(time) => highest.min(time),
                Missed::Anything => EARLIEST,
            };
            floor.must_sweep |= missed == Missed::Anything;
            floor.highest.iter_mut().for_each(|highest| *highest = highest.map(lowered));
            floor.round += 1;
        }
    }

    /// The next look at a queue must be at everything.
    pub(crate) fn sweep(&self, queue: &QueueName) {
        if let Some(floor) = self.lock().get_mut(queue) {
            floor.must_sweep = true;
        }
    }

    /// The next look at any queue must be at everything.
    pub(crate) fn sweep_all(&self) {
        self.lock().values_mut().for_each(|floor| floor.must_sweep = true);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Floor>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Floor {
    fn put_off_sweep(&mut self, reach: &Reach) {
        let took = reach.began.elapsed();
        self.sweep_at = Instant::now() + SWEEP_EVERY.max(took * SWEEP_SHARE);
    }
}

/// Before everything.
const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);

impl Reach {
    /// Of somebody who knows the rows.
    pub(crate) fn none() -> Self {
        Self { floors: Vec::new(), is_sweep: false, round: 0, began: Instant::now() }
    }

    fn everything(began: Instant, round: u64) -> Self {
        Self { floors: vec![Time(EARLIEST); PRIORITIES], is_sweep: true, round, began }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    fn begins(reach: &Reach, priority: usize) -> Timestamp {
        reach.floors[PRIORITIES - 1 - priority].0
    }

    #[test]
    fn a_claim_begins_a_little_before_the_latest_of_its_priority() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.reach(&queue);
        assert!(first.is_sweep, "nothing is known yet");
        floors.claimed(&queue, &first, [(4, at(1000)), (4, at(3000)), (9, at(2000))].into_iter(), false);
        let next = floors.reach(&queue);
        assert!(!next.is_sweep);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(2950), at(1950), EARLIEST]);
        floors.claimed(&queue, &next, [(4, at(2990))].into_iter(), true);
        assert_eq!(begins(&floors.reach(&queue), 4), at(2950), "it never falls by itself");
    }

    #[test]
    fn a_clock_that_is_set_back_takes_the_floors_along() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.reach(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (9, at(2000))].into_iter(), false);
        floors.see_clock(&queue, at(9500));
        assert_eq!(begins(&floors.reach(&queue), 4), at(8950));
        floors.see_clock(&queue, at(5000));
        let next = floors.reach(&queue);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(4950), at(1950), EARLIEST]);
    }

    #[test]
    fn whoever_says_so_has_the_next_claim_look_at_everything_once() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let is_sweep = || floors.reach(&queue).is_sweep;
        assert_eq!([is_sweep(), is_sweep()], [true, false]);
        floors.sweep(&queue);
        assert_eq!([is_sweep(), is_sweep()], [true, false]);
        floors.sweep_all();
        let failed = floors.reach(&queue);
        floors.failed(&queue, &failed);
        let seen = floors.reach(&queue);
        assert!(seen.is_sweep, "the one that failed is made up for");
        floors.looked(&queue, &seen, true);
        assert_eq!([is_sweep(), is_sweep()], [true, false]);
    }

    #[test]
    fn what_came_late_lowers_the_floors_so_far_and_no_further() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.reach(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (9, at(2000))].into_iter(), false);
        let slow = floors.reach(&queue);
        floors.miss(&queue, Missed::For(Duration::from_millis(500)));
        // One from before would raise them again, past what it has not seen.
        floors.claimed(&queue, &slow, [(4, at(9100))].into_iter(), false);
        let next = floors.reach(&queue);
        assert!(!next.is_sweep);
        assert_eq!([4, 9, 0].map(|priority| begins(&next, priority)), [at(7450), at(450), EARLIEST]);
        floors.miss(&queue, Missed::Since(at(1000)));
        let next = floors.reach(&queue);
        assert_eq!([4, 9].map(|priority| begins(&next, priority)), [at(950), at(450)]);
        floors.miss(&queue, Missed::Anything);
        let sweep = floors.reach(&queue);
        assert!(sweep.is_sweep);
        // It began before this came late, and must not raise them past it.
        floors.miss(&queue, Missed::Since(at(500)));
        floors.claimed(&queue, &sweep, [(4, at(9200))].into_iter(), false);
        assert!(begins(&floors.reach(&queue), 4) <= at(450));
    }

    #[test]
    fn one_late_word_after_another_lowers_the_floors_no_further() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.reach(&queue);
        floors.claimed(&queue, &first, [(4, at(9000))].into_iter(), false);
        floors.see_clock(&queue, at(9400));
        for _ in 0..3 {
            floors.miss(&queue, Missed::For(Duration::from_millis(500)));
            assert_eq!(begins(&floors.reach(&queue), 4), at(7850));
        }
    }

    #[test]
    fn a_full_look_at_everything_lowers_the_floors_to_what_it_took() {
        let (floors, queue) = (Floors::default(), QueueName::new("orders").unwrap());
        let first = floors.reach(&queue);
        floors.claimed(&queue, &first, [(4, at(9000)), (5, at(9000))].into_iter(), false);
        let slow = floors.reach(&queue);
        floors.sweep(&queue);
        let sweep = floors.reach(&queue);
        floors.claimed(&queue, &sweep, [(5, at(1000))].into_iter(), true);
        // One from before knows nothing of what lies below.
        floors.claimed(&queue, &slow, [(5, at(9100))].into_iter(), false);
        let next = floors.reach(&queue);
        assert_eq!([5, 4].map(|priority| begins(&next, priority)), [at(950), EARLIEST]);
    }
}
