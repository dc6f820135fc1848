//! The history of claims of each queue: how many there were, and from which due times on the next one reads.
//!
//! A claimed row leaves a delete mark at its old place in the index, and the server purges marks with delay. A claim
//! from the first entry would step over all of them: in a drain of a long queue that was half of the time. So a full
//! claim leaves a floor, the due time at which it stopped, and the next claim begins there. Messages below it (of a
//! transaction that committed late, or promoted ones) are found as soon as a claim finds less than it asked for, and by
//! every sixteenth claim, which has no floor.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider_core::{QueueName, Timestamp};

/// Interval, in claims, of the claim that takes the oldest due message first whatever its priority. It prevents
/// starvation.
const OLDEST_FIRST_EVERY: u64 = 16;

/// Size below which a claim leaves no floor: it steps over few marks.
const LEAST_FOR_A_FLOOR: usize = 16;

/// Upper bound of remembered queues. A process may see any number of names.
const MAX_QUEUES: usize = 10_000;

const PRIORITIES: usize = 10;

/// The due time from which each priority is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Floors([Option<Timestamp>; PRIORITIES]);

impl Floors {
    pub(crate) fn of(&self, priority: usize) -> Timestamp {
        self.0.get(priority).copied().flatten().unwrap_or(Timestamp::EPOCH)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a claim uses of earlier claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimHistory {
    pub(crate) oldest_first: bool,
    pub(crate) floors: Floors,
}

#[derive(Debug, Default)]
struct Past {
    claims: u64,
    floors: Floors,
}

/// The history of claims of this process.
#[derive(Debug, Default)]
pub(crate) struct ClaimHistories {
    // One lock for all queues, held for an addition, once or twice a claim.
    queues: Mutex<HashMap<QueueName, Past>>,
}

impl ClaimHistories {
    /// Counts a claim.
    pub(crate) fn next(&self, queue: &QueueName) -> ClaimHistory {
        let mut queues = self.lock();
        // Only the count down to the next oldest-first claim, and the floors, are lost.
        if queues.len() >= MAX_QUEUES && !queues.contains_key(queue) {
            queues.clear();
        }
        let past = queues.entry(queue.clone()).or_default();
        past.claims = past.claims.wrapping_add(1);
        let oldest_first = past.claims.is_multiple_of(OLDEST_FIRST_EVERY);
        ClaimHistory { oldest_first, floors: if oldest_first { Floors::default() } else { past.floors } }
    }

    /// Notes a full claim, with the due times at which it stopped, by priority.
    pub(crate) fn raise(
        &self,
        queue: &QueueName,
        claimed: usize,
        stopped: impl IntoIterator<Item = (usize, Timestamp)>,
    ) {
        if claimed < LEAST_FOR_A_FLOOR {
            return;
        }
        if let Some(past) = self.lock().get_mut(queue) {
            for (priority, time) in stopped {
                if let Some(floor) = past.floors.0.get_mut(priority) {
                    *floor = Some(time);
                }
            }
        }
    }

    /// Removes the floors: messages below them may have become due.
    pub(crate) fn lift(&self, queue: &QueueName) {
        if let Some(past) = self.lock().get_mut(queue) {
            past.floors = Floors::default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Past>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_claim_leaves_a_floor_until_it_is_lifted_but_not_for_oldest_first_claims() {
        let (histories, queue) = (ClaimHistories::default(), QueueName::new("orders").unwrap());
        let time = Timestamp::from_micros;
        assert!(histories.next(&queue).floors.is_empty());
        histories.raise(&queue, LEAST_FOR_A_FLOOR - 1, [(4, time(7))]);
        assert!(histories.next(&queue).floors.is_empty(), "a small claim leaves none");
        histories.raise(&queue, LEAST_FOR_A_FLOOR, [(4, time(7))]);
        let floors = histories.next(&queue).floors;
        assert_eq!((floors.of(4), floors.of(5)), (time(7), Timestamp::EPOCH));
        let oldest: Vec<ClaimHistory> =
            (3..OLDEST_FIRST_EVERY).map(|_| histories.next(&queue)).filter(|t| t.oldest_first).collect();
        assert_eq!(oldest, [ClaimHistory { oldest_first: true, floors: Floors::default() }]);
        assert!(!histories.next(&queue).floors.is_empty(), "only that claim has none");
        histories.lift(&queue);
        assert!(histories.next(&queue).floors.is_empty());
    }
}
