//! Bounds in bytes of what one call to the store reads, and of what one answer carries.
//!
//! Requests name a number of rows, but memory is bytes: a thousand of the largest messages would be a gigabyte. So rows
//! are read in chunks, and an answer ends when it is full. Leased rows that do not fit are released at once. That is
//! rare, because the sizes of recent rows of each queue are remembered and no more rows are requested than are likely
//! to fit. On a store that counts a release as a delivery it never happens: every row is assumed to have the largest
//! size.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider::{Capabilities, Feature};

/// Upper bound of an answer's bodies and headers, unless a single row is larger.
const MAX_ANSWERED: usize = 16 * 1024 * 1024;

/// Upper bound of the bytes that one call to the store returns.
const MAX_READ: usize = 128 * 1024 * 1024;

/// Size from which rows are large: a thousand of them do not fit into an answer.
const LARGE: usize = MAX_ANSWERED / 1000;

/// Upper bound of the remembered names.
const MAX_NAMES: usize = 10_000;

/// Upper bound of the bytes that a call which waits may return: no room is reserved for it.
const MAX_WAITED_FOR: usize = 1024 * 1024;

/// Factor from a row's bytes to its memory: the row itself, and up to six bytes of escaped JSON per byte.
pub(crate) const READ_AND_ENCODED: usize = 7;

/// Name under which sizes of tasks are remembered that are read by id, before their types are known.
pub(crate) const BY_ID: &str = "";

/// Cost of releasing rows that were leased and do not fit into an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseCost {
    /// None.
    Free,
    /// The store counts a delivery, and dead-letters a message after too many of them.
    Delivery,
}

impl ReleaseCost {
    /// Returns the cost in a store with these capabilities.
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        if capabilities.offers(Feature::FreeRelease) { Self::Free } else { Self::Delivery }
    }
}

/// Sizes of recent rows, by queue or by task type.
#[derive(Debug)]
pub(crate) struct RowSizes {
    surplus: ReleaseCost,
    /// The largest recent row of each name, at least [`LARGE`]. The lock is held briefly.
    largest: Mutex<HashMap<String, usize>>,
}

impl RowSizes {
    pub(crate) fn new(surplus: ReleaseCost) -> Self {
        Self { surplus, largest: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.largest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the expected size of rows of these names: the largest recent one, or `most` if none is known. `most` is
    /// the store's upper bound of a row.
    pub(crate) fn size<'n>(&self, names: impl IntoIterator<Item = &'n str>, most: usize) -> usize {
        let largest = self.lock();
        let known = names.into_iter().filter_map(|name| largest.get(name).copied());
        known.max().unwrap_or(usize::MAX).clamp(1, most.max(1))
    }

    /// Whether releasing rows is free.
    pub(crate) fn releases_free(&self) -> bool {
        self.surplus == ReleaseCost::Free
    }

    /// Returns the number of rows to read without leasing them.
    pub(crate) fn rows_to_read(&self, name: &str, wanted: usize, most: usize) -> usize {
        wanted.min(AnswerSpace::default().fits(self.size([name], most))).min(readable(most))
    }

    /// Returns the number of rows to claim next; 0 if no further one is likely to fit. `most` is the store's upper
    /// bound of a row.
    pub(crate) fn rows_to_claim<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        wanted: usize,
        most: usize,
        answer: &AnswerSpace,
    ) -> usize {
        let size = match self.surplus {
            ReleaseCost::Free => self.size(names, most),
            ReleaseCost::Delivery => most.max(1),
        };
        wanted.min(answer.fits(size)).min(readable(most))
    }

    /// Returns the number of rows to claim in a call that waits. The rest is claimed once the first rows are there.
    pub(crate) fn rows_to_wait_for<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        wanted: usize,
        most: usize,
    ) -> usize {
        let size = self.size(names, most);
        // Small rows are not worth a second call.
        if size <= LARGE { wanted.min(readable(most)) } else { wanted.min((MAX_WAITED_FOR / size).max(1)) }
    }

    /// Records the names and sizes of rows that were read.
    pub(crate) fn record<'n>(&self, rows: impl IntoIterator<Item = (&'n str, usize)>) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (name, size) in rows {
            let known = seen.entry(name).or_insert(LARGE);
            *known = size.max(*known);
        }
        let mut largest = self.lock();
        for (name, size) in seen {
            match largest.get_mut(name) {
                Some(known) => *known = size,
                None => {
                    if largest.len() >= MAX_NAMES {
                        largest.clear();
                    }
                    largest.insert(name.to_owned(), size);
                }
            }
        }
    }
}

/// Number of rows that one call may return, if none has more bytes than `most`.
fn readable(most: usize) -> usize {
    (MAX_READ / most.max(1)).max(1)
}

/// The free space of an answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerSpace {
    used: usize,
}

impl AnswerSpace {
    fn left(&self) -> usize {
        MAX_ANSWERED.saturating_sub(self.used)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left() == 0
    }

    /// Number of rows of this size that fit. The first row always does.
    fn fits(&self, size: usize) -> usize {
        (self.left() / size).max(usize::from(self.used == 0))
    }

    /// Keeps the rows that fit and returns the others. The first row always fits.
    pub(crate) fn take<T>(&mut self, rows: &mut Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
        let mut count = 0;
        for row in rows.iter() {
            let used = self.used.saturating_add(size(row));
            if self.used > 0 && used > MAX_ANSWERED {
                break;
            }
            (self.used, count) = (used, count + 1);
        }
        rows.split_off(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn large_rows_are_read_in_smaller_chunks() {
        let (sizes, space) = (RowSizes::new(ReleaseCost::Free), AnswerSpace::default());
        assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &space), 16, "no size is known, so each may be the largest");
        sizes.record([("a", 100), ("a", MIB), ("b", 100)]);
        assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &space), 16);
        assert_eq!(sizes.rows_to_claim(["b"], 1000, MIB, &space), 128, "bounded by the bytes of a call");
        assert_eq!(sizes.rows_to_claim(["b", "a"], 1000, MIB, &space), 16);
        assert_eq!(sizes.rows_to_claim(["b", "c"], 1000, MIB, &space), 128, "one size is not known");
        assert_eq!((sizes.size(["a"], MIB), sizes.size(["b"], MIB), sizes.size(["c"], MIB)), (MIB, LARGE, MIB));
        assert_eq!(sizes.rows_to_claim(["a"], 3, MIB, &space), 3);
        sizes.record([("a", 100 * MIB)]);
        assert_eq!(sizes.rows_to_claim(["a"], 1000, 100 * MIB, &space), 1);
        sizes.record([("a", 100)]);
        assert_eq!(sizes.rows_to_claim(["a"], 1000, 1000, &space), 1000);
    }

    /// An answer that contains a row of this size.
    fn with(size: usize) -> AnswerSpace {
        let mut space = AnswerSpace::default();
        assert!(space.take(&mut vec![size], |size| *size).is_empty());
        space
    }

    #[test]
    fn no_row_is_requested_that_does_not_fit_into_the_rest_of_the_answer() {
        let sizes = RowSizes::new(ReleaseCost::Free);
        sizes.record([("a", 3 * MIB)]);
        for (used, expected) in [(4 * MIB, 4), (13 * MIB, 1), (13 * MIB + 1, 0), (20 * MIB, 0)] {
            assert_eq!(sizes.rows_to_claim(["a"], 1000, 3 * MIB, &with(used)), expected, "beside {used} bytes");
        }
        assert_eq!(sizes.rows_to_claim(["b"], 30, 3 * MIB, &with(15 * MIB)), 0, "no size is known");
        sizes.record([("b", 1)]);
        assert_eq!(sizes.rows_to_claim(["b"], 30, 3 * MIB, &with(15 * MIB)), 30);
    }

    #[test]
    fn a_call_that_waits_requests_few_large_rows() {
        let sizes = RowSizes::new(ReleaseCost::Free);
        assert_eq!(sizes.rows_to_wait_for(["a"], 100, MIB), 1, "no size is known");
        sizes.record([("a", 100), ("b", MIB / 4)]);
        assert_eq!(sizes.rows_to_wait_for(["a"], 100, MIB), 100);
        assert_eq!(sizes.rows_to_wait_for(["b"], 100, MIB), 4);
        assert_eq!(sizes.rows_to_wait_for(["b"], 100, 100 * MIB), 4);
    }

    #[test]
    fn names_are_bounded() {
        let sizes = RowSizes::new(ReleaseCost::Free);
        for number in 0..MAX_NAMES * 2 + 5 {
            sizes.record([(format!("q{number}").as_str(), 1)]);
        }
        assert!(sizes.lock().len() <= MAX_NAMES);
    }

    #[test]
    fn where_releases_count_no_more_is_claimed_than_fits() {
        let free = Capabilities::native("test");
        assert_eq!(ReleaseCost::of(&free), ReleaseCost::Free);
        let charging = free.with(Feature::FreeRelease, postrider::Support::refused("it counts them"));
        let sizes = RowSizes::new(ReleaseCost::of(&charging));
        for seen in [1, 100, MIB] {
            sizes.record([("a", seen)]);
            assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &AnswerSpace::default()), 16);
            assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &with(1)), 15);
            assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &with(15 * MIB)), 1);
            assert_eq!(sizes.rows_to_claim(["a"], 1000, MIB, &with(15 * MIB + 1)), 0);
        }
        assert_eq!(sizes.rows_to_claim(["a"], 3, MIB, &AnswerSpace::default()), 3);
        assert_eq!(sizes.rows_to_claim(["a"], 1000, 100 * MIB, &AnswerSpace::default()), 1, "one always fits");
        assert_eq!(sizes.rows_to_claim(["a"], 1000, 100 * MIB, &with(1)), 0);
    }

    #[test]
    fn an_answer_takes_what_fits_and_always_one_row() {
        let mut space = AnswerSpace::default();
        let mut rows = vec![20 * MIB, 1];
        assert_eq!(space.take(&mut rows, |size| *size), [1]);
        assert!(space.is_full() && rows == [20 * MIB]);

        let (mut space, mut rows) = (AnswerSpace::default(), vec![6 * MIB; 3]);
        assert_eq!(space.take(&mut rows, |size| *size).len(), 1);
        assert_eq!(rows.len(), 2);
        assert!(space.take(&mut vec![4 * MIB], |size| *size).is_empty());
        assert!(space.is_full());
    }
}
