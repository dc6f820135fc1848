//! How much is read from a store at a time, and handed out with one answer.
//!
//! A request counts rows, and memory is made of bytes: a thousand of the largest messages would be a gigabyte. So rows are
//! read in portions, and an answer ends when it has enough. What was leased and does not fit goes back at once; that is
//! the exception, because it is remembered which queues have large messages, and no more of them are asked for than fit.
//! Where a store counts what goes back, it never happens: no more is asked for than fits if every row is the largest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider::{Capabilities, Feature};

/// An answer has no more bytes of bodies and headers, unless one row alone has more.
const MOST_ANSWERED: usize = 16 * 1024 * 1024;

/// No more than this can come of one question to a store.
const MOST_READ: usize = 128 * 1024 * 1024;

/// Rows of so many bytes are large: a thousand of them are no answer.
const LARGE: usize = MOST_ANSWERED / 1000;

/// Upper bound of the names that are remembered.
const REMEMBERED: usize = 10_000;

/// The most bytes that a question may bring which waits for rows: while it waits, no room is kept for them.
const MOST_WAITED_FOR: usize = 1024 * 1024;

/// Bytes for each byte of a row that is answered by itself: its own, and six of JSON, which a control character takes.
pub(crate) const READ_AND_WRITTEN: usize = 7;

/// What the sizes of tasks are remembered by that are named by their ids, before their types are known.
pub(crate) const BY_ID: &str = "";

/// What becomes of rows that were leased and do not fit into an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surplus {
    /// They go back as if nothing had been.
    IsFree,
    /// It would be a delivery that nobody saw, and the last one lets a message die.
    Counts,
}

impl Surplus {
    /// Of messages in a store that can do this.
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        if capabilities.offers(Feature::FreeRelease) { Self::IsFree } else { Self::Counts }
    }
}

/// How large rows are: of queues, or of types of tasks.
#[derive(Debug)]
pub(crate) struct Portions {
    surplus: Surplus,
    /// The largest row that was lately seen of each name, but [`LARGE`] for smaller ones. A lock, held for a look.
    largest: Mutex<HashMap<String, usize>>,
}

impl Portions {
    pub(crate) fn new(surplus: Surplus) -> Self {
        Self { surplus, largest: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.largest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size that rows of these names are expected to have: that of the largest lately, and the largest that there can
    /// be where nothing is known. No row has more bytes than `most`.
    pub(crate) fn size<'n>(&self, names: impl IntoIterator<Item = &'n str>, most: usize) -> usize {
        let largest = self.lock();
        let known = names.into_iter().filter_map(|name| largest.get(name).copied());
        known.max().unwrap_or(usize::MAX).clamp(1, most.max(1))
    }

    /// Whether what was read and is not wanted costs nothing.
    pub(crate) fn is_free(&self) -> bool {
        self.surplus == Surplus::IsFree
    }

    /// How many rows to look at, of those that are wanted, where nothing is leased by it.
    pub(crate) fn rows_to_look_at(&self, name: &str, wanted: usize, most: usize) -> usize {
        wanted.min(Room::default().fits(self.size([name], most))).min(readable(most))
    }

    /// How many rows to ask for, of those that are wanted of these names: none if no other is likely to fit. No row has
    /// more bytes than `most`.
    pub(crate) fn rows<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        wanted: usize,
        most: usize,
        answer: &Room,
    ) -> usize {
        let size = match self.surplus {
            Surplus::IsFree => self.size(names, most),
            Surplus::Counts => most.max(1),
        };
        wanted.min(answer.fits(size)).min(readable(most))
    }

    /// The same for a question that waits for the first row. The rest is asked for when it is there.
    pub(crate) fn rows_to_wait_for<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        wanted: usize,
        most: usize,
    ) -> usize {
        let size = self.size(names, most);
        // Small rows are not worth a second question.
        if size <= LARGE { wanted.min(readable(most)) } else { wanted.min((MOST_WAITED_FOR / size).max(1)) }
    }

    /// Rows of these names and sizes were read.
    pub(crate) fn saw<'n>(&self, rows: impl IntoIterator<Item = (&'n str, usize)>) {
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
                    if largest.len() >= REMEMBERED {
                        largest.clear();
                    }
                    largest.insert(name.to_owned(), size);
                }
            }
        }
    }
}

/// How many rows may be read at once, if none has more bytes than `most`.
fn readable(most: usize) -> usize {
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

    /// How many rows of this size fit. One always does, while there is none.
    fn fits(&self, size: usize) -> usize {
        (self.left() / size).max(usize::from(self.used == 0))
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
        let (portions, room) = (Portions::new(Surplus::IsFree), Room::default());
        assert_eq!(portions.rows(["a"], 1000, MIB, &room), 16, "nothing is known, so each may be the largest");
        portions.saw([("a", 100), ("a", MIB), ("b", 100)]);
        assert_eq!(portions.rows(["a"], 1000, MIB, &room), 16);
        assert_eq!(portions.rows(["b"], 1000, MIB, &room), 128, "memory decides");
        assert_eq!(portions.rows(["b", "a"], 1000, MIB, &room), 16);
        assert_eq!(portions.rows(["b", "c"], 1000, MIB, &room), 128, "nothing is known of one of them");
        assert_eq!(
            (portions.size(["a"], MIB), portions.size(["b"], MIB), portions.size(["c"], MIB)),
            (MIB, LARGE, MIB)
        );
        assert_eq!(portions.rows(["a"], 3, MIB, &room), 3);
        portions.saw([("a", 100 * MIB)]);
        assert_eq!(portions.rows(["a"], 1000, 100 * MIB, &room), 1);
        portions.saw([("a", 100)]);
        assert_eq!(portions.rows(["a"], 1000, 1000, &room), 1000);
    }

    /// An answer with a row of this size in it.
    fn with(size: usize) -> Room {
        let mut room = Room::default();
        assert!(room.take(&mut vec![size], |size| *size).is_empty());
        room
    }

    #[test]
    fn nothing_is_asked_for_that_does_not_fit_beside_what_is_there() {
        let portions = Portions::new(Surplus::IsFree);
        portions.saw([("a", 3 * MIB)]);
        for (used, asked) in [(4 * MIB, 4), (13 * MIB, 1), (13 * MIB + 1, 0), (20 * MIB, 0)] {
            assert_eq!(portions.rows(["a"], 1000, 3 * MIB, &with(used)), asked, "beside {used} bytes");
        }
        assert_eq!(portions.rows(["b"], 30, 3 * MIB, &with(15 * MIB)), 0, "of which nothing is known");
        portions.saw([("b", 1)]);
        assert_eq!(portions.rows(["b"], 30, 3 * MIB, &with(15 * MIB)), 30);
    }

    #[test]
    fn a_question_that_waits_brings_little() {
        let portions = Portions::new(Surplus::IsFree);
        assert_eq!(portions.rows_to_wait_for(["a"], 100, MIB), 1, "nothing is known");
        portions.saw([("a", 100), ("b", MIB / 4)]);
        assert_eq!(portions.rows_to_wait_for(["a"], 100, MIB), 100);
        assert_eq!(portions.rows_to_wait_for(["b"], 100, MIB), 4);
        assert_eq!(portions.rows_to_wait_for(["b"], 100, 100 * MIB), 4);
    }

    #[test]
    fn no_more_names_are_remembered_than_there_is_room_for() {
        let portions = Portions::new(Surplus::IsFree);
        for number in 0..REMEMBERED * 2 + 5 {
            portions.saw([(format!("q{number}").as_str(), 1)]);
        }
        assert!(portions.lock().len() <= REMEMBERED);
    }

    #[test]
    fn what_would_be_counted_is_never_more_than_fits() {
        let free = Capabilities::native("test");
        assert_eq!(Surplus::of(&free), Surplus::IsFree);
        let charging = free.with(Feature::FreeRelease, postrider::Support::refused("it counts them"));
        let portions = Portions::new(Surplus::of(&charging));
        for seen in [1, 100, MIB] {
            portions.saw([("a", seen)]);
            assert_eq!(portions.rows(["a"], 1000, MIB, &Room::default()), 16);
            assert_eq!(portions.rows(["a"], 1000, MIB, &with(1)), 15);
            assert_eq!(portions.rows(["a"], 1000, MIB, &with(15 * MIB)), 1);
            assert_eq!(portions.rows(["a"], 1000, MIB, &with(15 * MIB + 1)), 0);
        }
        assert_eq!(portions.rows(["a"], 3, MIB, &Room::default()), 3);
        assert_eq!(portions.rows(["a"], 1000, 100 * MIB, &Room::default()), 1, "one always fits");
        assert_eq!(portions.rows(["a"], 1000, 100 * MIB, &with(1)), 0);
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
