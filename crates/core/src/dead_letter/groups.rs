//! Dead letters counted by reason and kind of error.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::fingerprint::error_fingerprint;
use super::{DeadLetterReason, DeadLetterSummary};
use crate::clock::Timestamp;
use crate::id::MessageId;

/// Upper bound of the kinds that are counted individually. Later kinds are counted together.
const MAX_KINDS: usize = 2_000;

/// Dead letters with the same reason and kind of error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterGroup {
    /// The reason.
    pub reason: DeadLetterReason,
    /// The kind of error: see [`error_fingerprint`].
    pub fingerprint: String,
    /// The error text of the newest one.
    pub error: Option<String>,
    /// Number of dead letters.
    pub count: u64,
    /// The first death.
    pub first_dead_at: Timestamp,
    /// The last death.
    pub last_dead_at: Timestamp,
    /// The id of the newest one.
    pub example_id: MessageId,
}

/// The largest groups, and the totals of the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LargestGroups {
    /// The groups, largest first.
    pub groups: Vec<DeadLetterGroup>,
    /// Number of kinds that are not listed.
    pub more_kinds: u64,
    /// Number of dead letters of those kinds.
    pub more_count: u64,
}

/// Counts dead letters, in bounded memory.
#[derive(Debug, Default)]
pub struct DeadLetterGroups {
    groups: HashMap<(DeadLetterReason, String), DeadLetterGroup>,
    hasher: RandomState,
    uncounted_kinds: HashSet<u64>,
    uncounted: u64,
}

impl DeadLetterGroups {
    /// Adds a dead letter.
    pub fn add(&mut self, letter: DeadLetterSummary) {
        let DeadLetterSummary { id, reason, error, dead_at, .. } = letter;
        let key = (reason, error_fingerprint(error.as_deref()));
        if let Some(group) = self.groups.get_mut(&key) {
            group.count += 1;
            group.first_dead_at = group.first_dead_at.min(dead_at);
            if dead_at >= group.last_dead_at {
                (group.last_dead_at, group.error, group.example_id) = (dead_at, error, id);
            }
        } else if self.groups.len() < MAX_KINDS {
            let group = DeadLetterGroup {
                reason: key.0.clone(),
                fingerprint: key.1.clone(),
                error,
                count: 1,
                first_dead_at: dead_at,
                last_dead_at: dead_at,
                example_id: id,
            };
            self.groups.insert(key, group);
        } else {
            self.uncounted += 1;
            self.uncounted_kinds.insert(self.hasher.hash_one(&key));
        }
    }

    /// The `most` largest groups.
    pub fn largest(self, most: usize) -> LargestGroups {
        let mut groups: Vec<_> = self.groups.into_values().collect();
        groups.sort_by(|a, b| {
            let names = |group: &DeadLetterGroup| (group.reason.as_str().to_owned(), group.fingerprint.clone());
            b.count.cmp(&a.count).then_with(|| names(a).cmp(&names(b)))
        });
        let rest = groups.split_off(groups.len().min(most));
        LargestGroups {
            groups,
            more_kinds: (rest.len() + self.uncounted_kinds.len()) as u64,
            more_count: rest.iter().map(|group| group.count).sum::<u64>() + self.uncounted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(number: i64, error: String) -> DeadLetterSummary {
        DeadLetterSummary {
            id: MessageId::generate(),
            reason: DeadLetterReason::REJECTED,
            error: Some(error),
            ordering_key: None,
            dead_at: Timestamp::from_micros(number),
        }
    }

    /// A word without digits for each number.
    fn word(mut number: i64) -> String {
        let mut word = String::from("z");
        while number > 0 {
            word.push(char::from(b'g' + (number % 10) as u8));
            number /= 10;
        }
        word
    }

    #[test]
    fn errors_that_differ_in_numbers_are_one_group_with_the_newest_as_its_example() {
        let mut groups = DeadLetterGroups::default();
        let letters: Vec<_> = (0..100).map(|number| letter(number, format!("order {number} is late"))).collect();
        letters.iter().cloned().for_each(|letter| groups.add(letter));
        groups.add(letter(7, "no tea".into()));
        let found = groups.largest(20);
        assert_eq!((found.groups.len(), found.more_kinds, found.more_count), (2, 0, 0));
        let first = &found.groups[0];
        assert_eq!((first.count, first.fingerprint.as_str()), (100, "order # is late"));
        assert_eq!((first.error.as_deref(), first.example_id), (Some("order 99 is late"), letters[99].id));
        assert_eq!((first.first_dead_at.as_micros(), first.last_dead_at.as_micros()), (0, 99));
    }

    #[test]
    fn the_rest_is_counted_together_and_bounded() {
        let mut groups = DeadLetterGroups::default();
        let kinds = i64::try_from(MAX_KINDS).unwrap() + 50;
        for number in 0..kinds {
            groups.add(letter(number, word(number)));
        }
        (0..9).for_each(|number| groups.add(letter(number, word(3))));
        assert_eq!(groups.groups.len(), MAX_KINDS);
        let found = groups.largest(20);
        assert_eq!((found.groups.len(), found.groups[0].count), (20, 10));
        assert_eq!((found.more_kinds, found.more_count), (kinds as u64 - 20, kinds as u64 - 20));
    }
}
