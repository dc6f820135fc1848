//! Whose turn it is in each queue, and from where on a claim looks.
//!
//! What was claimed leaves its old place in the index as a mark that it is gone, and the server takes its time to clear
//! marks away. A claim that began at the first place would step over all of them: when a long queue was drained, that
//! was half of the time. So a claim that was full leaves a floor, the due time at which it stopped, and the next one
//! begins there. What lies below (a transaction that committed late, the next of a key that was freed) is found as soon
//! as a claim finds less than it asked for, and by every sixteenth claim, which has no floor.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider_core::{QueueName, Timestamp};

/// Every so many claims the oldest due message goes first, whatever its priority, so that none waits for ever.
const OLDEST_FIRST_EVERY: u64 = 16;

/// A smaller claim leaves no floor: it has little to step over.
const LEAST_FOR_A_FLOOR: usize = 16;

/// So many queues are remembered. One process may meet any number of names.
const MOST_NAMES: usize = 10_000;

const PRIORITIES: usize = 10;

/// The due time from which on each priority is looked at.
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

/// What a claim has to know of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) oldest_first: bool,
    pub(crate) floors: Floors,
}

#[derive(Debug, Default)]
struct Past {
    claims: u64,
    floors: Floors,
}

/// What this process remembers of its claims.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    // One lock for all queues: it is held for an addition, once or twice a claim.
    queues: Mutex<HashMap<QueueName, Past>>,
}

impl Turns {
    /// Counts a claim.
    pub(crate) fn next(&self, queue: &QueueName) -> Turn {
        let mut queues = self.lock();
        // Only whose turn it is, and the floors, would be forgotten.
        if queues.len() >= MOST_NAMES && !queues.contains_key(queue) {
            queues.clear();
        }
        let past = queues.entry(queue.clone()).or_default();
        past.claims = past.claims.wrapping_add(1);
        let oldest_first = past.claims.is_multiple_of(OLDEST_FIRST_EVERY);
        Turn { oldest_first, floors: if oldest_first { Floors::default() } else { past.floors } }
    }

    /// A claim was full; these are the due times at which it stopped, by priority.
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

    /// Something may have become due below the floors.
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
    fn a_full_claim_leaves_a_floor_until_it_is_lifted_and_not_for_the_turn_of_the_oldest() {
        let (turns, queue) = (Turns::default(), QueueName::new("orders").unwrap());
        let time = Timestamp::from_micros;
        assert!(turns.next(&queue).floors.is_empty());
        turns.raise(&queue, LEAST_FOR_A_FLOOR - 1, [(4, time(7))]);
        assert!(turns.next(&queue).floors.is_empty(), "a small claim leaves none");
        turns.raise(&queue, LEAST_FOR_A_FLOOR, [(4, time(7))]);
        let floors = turns.next(&queue).floors;
        assert_eq!((floors.of(4), floors.of(5)), (time(7), Timestamp::EPOCH));
        let oldest: Vec<Turn> =
            (3..OLDEST_FIRST_EVERY).map(|_| turns.next(&queue)).filter(|t| t.oldest_first).collect();
        assert_eq!(oldest, [Turn { oldest_first: true, floors: Floors::default() }]);
        assert!(!turns.next(&queue).floors.is_empty(), "it was only that turn");
        turns.lift(&queue);
        assert!(turns.next(&queue).floors.is_empty());
    }
}
