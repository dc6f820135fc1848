//! How much is read from a store at a time, and handed out with one answer.
//!
//! A request counts rows, and memory is made of bytes: a thousand of the largest messages would be a gigabyte. So rows are
//! read in portions, and an answer ends when it has enough. What was leased and does not fit goes back at once; that is
//! the exception, because it is remembered which queues have large messages, and no more of them are asked for than fit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An answer has no more bytes of bodies and headers, unless one row alone has more.
const MOST_ANSWERED: usize = 16 * 1024 * 1024;

/// No more than this can come of one question to a store.
const MOST_READ: usize = 128 * 1024 * 1024;

/// Rows of so many bytes are large: a thousand of them are no answer.
const LARGE: usize = MOST_ANSWERED / 1000;

/// So many queues with large messages are remembered.
const REMEMBERED: usize = 10_000;

/// The largest row that was lately seen, of queues and types of tasks that have large ones. A lock, held for a look.
#[derive(Debug, Default)]
pub(crate) struct Portions(Mutex<HashMap<String, usize>>);

impl Portions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rows to ask for, of those that are wanted of these queues or types. No row has more bytes than `most`.
    pub(crate) fn rows<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        wanted: usize,
        most: usize,
        answer: &Room,
    ) -> usize {
        let large = self.lock();
        let size = if large.is_empty() { None } else { names.into_iter().filter_map(|name| large.get(name)).max() };
        let fit = size.map_or(wanted, |size| (answer.left() / size).max(1));
        wanted.min(fit).min(readable(most))
    }

    /// Rows of these names and sizes were read.
    pub(crate) fn saw<'n>(&self, rows: impl IntoIterator<Item = (&'n str, usize)>) {
        let mut largest: HashMap<&str, usize> = HashMap::new();
        for (name, size) in rows {
            let known = largest.entry(name).or_default();
            *known = size.max(*known);
        }
        let mut large = self.lock();
        for (name, size) in largest {
            if size <= LARGE {
                large.remove(name);
            } else if large.len() < REMEMBERED || large.contains_key(name) {
                large.insert(name.to_owned(), size);
            }
        }
    }
}

/// How many rows may be read at once, if none has more bytes than `most`.
pub(crate) fn readable(most: usize) -> usize {
    (MOST_READ / most.max(1)).max(1)
}

/// What still fits into an answer.
#[derive(Debug, Default)]
pub(crate) struct Room {
    used: usize,
}

impl Room {
    fn left(&self) -> usize {
        MOST_ANSWERED.saturating_sub(self.used)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left() == 0
    }

    /// Whether so many times what is in there would fit.
    pub(crate) fn has_for(&self, times: usize) -> bool {
        self.used.saturating_mul(times) <= MOST_ANSWERED
    }

    /// Takes rows in until one does not fit; answers those that are left over. One always fits.
    pub(crate) fn take<T>(&mut self, rows: &mut Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
        let mut count = 0;
        for row in rows.iter() {
            let used = self.used.saturating_add(size(row));
            if self.used > 0 && used > MOST_ANSWERED {
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
    fn large_rows_come_in_smaller_portions_and_small_ones_do_not() {
        let (portions, room) = (Portions::default(), Room::default());
        assert_eq!(portions.rows(["a"], 1000, MIB, &room), 128, "nothing is known, so memory decides");
        portions.saw([("a", 100), ("a", MIB), ("b", 100)]);
        assert_eq!(portions.rows(["a"], 1000, MIB, &room), 16);
        assert_eq!(portions.rows(["b"], 1000, MIB, &room), 128);
        assert_eq!(portions.rows(["b", "a"], 1000, MIB, &room), 16);
        assert_eq!(portions.rows(["a"], 3, MIB, &room), 3);
        portions.saw([("a", 100 * MIB)]);
        assert_eq!(portions.rows(["a"], 1000, 100 * MIB, &room), 1);
        portions.saw([("a", 100)]);
        assert_eq!(portions.rows(["a"], 1000, 1000, &room), 1000);
    }

    #[test]
    fn an_answer_takes_what_fits_and_one_row_always() {
        let mut room = Room::default();
        let mut rows = vec![20 * MIB, 1];
        assert_eq!(room.take(&mut rows, |size| *size), [1]);
        assert!(room.is_full() && rows == [20 * MIB]);

        let (mut room, mut rows) = (Room::default(), vec![6 * MIB; 3]);
        assert_eq!(room.take(&mut rows, |size| *size).len(), 1);
        assert_eq!(rows.len(), 2);
        assert!(room.take(&mut vec![4 * MIB], |size| *size).is_empty());
        assert!(room.is_full());
    }
}
