//! What a process knows of a queue's files, so that "what is next?" needs no look at the folder.
//!
//! A row is a file; its name is all there is to know about it. As in a table with one visibility column, a row has one
//! time at which it can next be received: its due time while it waits, the end of its lease while it is leased. A lease
//! that has run out therefore needs nobody's help. `schedule` has these times, a set for each priority, and only for rows
//! that may be received at all: a row with an ordering key enters when it becomes the head of its key.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::time::Duration;

use postrider_core::{LeaseToken, MessageId, Priority, QueueName, Timestamp};

use crate::PROVIDER;
use crate::disk::Name;
use crate::name::{FileName, Kind, MOST_OF_ORIGINAL};

/// Every so many claims the oldest due row goes first, whatever its priority, so that none waits for ever.
const OLDEST_FIRST_EVERY: u64 = 16;

/// The folder that a file is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Incoming,
    Processing,
    Failed,
}

/// A file of somebody else's that nobody has claimed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Its modification time, in nanoseconds since the epoch.
    pub(crate) mtime: i64,
    /// Whether it is known to be complete: it came by a rename, or was left alone for long enough.
    pub(crate) is_settled: bool,
    /// Whether its ordering key is known.
    pub(crate) is_read: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    priority: u8,
    /// Zero for none.
    pub(crate) key: u64,
    /// Whether somebody holds it or has held it. Then nothing that comes later stands before it in the line of its key,
    /// whatever its time.
    is_begun: bool,
    dedup: u64,
    pub(crate) foreign: Option<Foreign>,
}

/// Where a row stands among those that are or will be due.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// When it is due, in nanoseconds since the epoch.
    pub(crate) due: i64,
    pub(crate) turn: Turn,
    pub(crate) place: Place,
}

/// Where a row stands in the line of its key: by time, and by name among those of one time. What was claimed before comes
/// first, because it was the head when it was claimed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) position: i64,
    is_foreign: bool,
    pub(crate) name: Name,
}

/// A row in the line of its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct InLine {
    /// What was begun comes first.
    is_fresh: bool,
    turn: Turn,
    place: Place,
}

impl Row {
    fn in_line(&self) -> InLine {
        InLine { is_fresh: !self.is_begun, turn: self.slot.turn.clone(), place: self.slot.place }
    }
}

/// The files of a queue that live, or of its dead letters.
#[derive(Debug, Default)]
pub(crate) struct Index {
    rows: [HashMap<Name, Row>; 3],
    schedule: [BTreeSet<Slot>; Priority::COUNT],
    /// Dead letters are not ordered and keep no dedup key.
    orders_keys: bool,
    keys: HashMap<u64, BTreeSet<InLine>>,
    tokens: HashMap<u128, (Place, Name)>,
    dedup: HashMap<u64, Vec<(Place, Name)>>,
    /// Files whose ordering key is not known yet.
    unread: BTreeSet<Turn>,
    misplaced: BTreeSet<Name>,
    /// Files that may still be written to, by when they will be looked at again.
    settling: BTreeSet<Slot>,
    /// How many claims there have been; nobody knows yet where to begin.
    claims: Option<u64>,
    /// The order of dead letters; `None` for messages that live.
    deaths: Option<Deaths>,
}

/// Where a dead letter stands among others: by its time, and by its id among those of one time.
pub(crate) type Grave = (i64, MessageId);

/// Dead letters in the order in which they are listed, so that a page costs no more than what is on it.
#[derive(Debug)]
struct Deaths {
    queue: QueueName,
    /// Two files of one message are an edit that was cut off.
    in_order: BTreeMap<Grave, Vec<Name>>,
    times: HashMap<MessageId, BTreeSet<i64>>,
}

impl Deaths {
    fn insert(&mut self, row: &Row) {
        let Some(parsed) = row.parsed(&self.queue) else { return };
        let time = row.slot.turn.position;
        self.in_order.entry((time, parsed.id)).or_default().push(row.name().clone());
        self.times.entry(parsed.id).or_default().insert(time);
    }

    fn remove(&mut self, row: &Row) {
        let Some(parsed) = row.parsed(&self.queue) else { return };
        let grave = (row.slot.turn.position, parsed.id);
        let Some(names) = self.in_order.get_mut(&grave) else { return };
        names.retain(|name| name != row.name());
        if !names.is_empty() {
            return;
        }
        self.in_order.remove(&grave);
        if let Some(times) = self.times.get_mut(&grave.1) {
            times.remove(&grave.0);
            if times.is_empty() {
                self.times.remove(&grave.1);
            }
        }
    }
}

pub(crate) fn nanos(time: Timestamp) -> i64 {
    time.as_micros().saturating_mul(1000)
}

pub(crate) fn time(nanos: i64) -> Timestamp {
    Timestamp::from_micros(nanos.div_euclid(1000))
}

impl Row {
    /// A file that this provider has named.
    pub(crate) fn ours(place: Place, name: Name, parsed: &FileName, now: Timestamp) -> Self {
        let position = nanos(parsed.position);
        // A place in the line can lie ahead of a clock that was set back; nobody waits for that.
        let due = match (parsed.lease, parsed.due) {
            (None, crate::name::Due::Always) => position.min(nanos(now)),
            _ => nanos(parsed.next_attempt_at()),
        };
        Self {
            slot: Slot { due, turn: Turn { position, is_foreign: false, name }, place },
            priority: parsed.priority.get(),
            key: parsed.key.unwrap_or(0),
            is_begun: parsed.lease.is_some() || parsed.deliveries > 0,
            dedup: parsed.dedup.unwrap_or(0),
            foreign: None,
        }
    }

    /// A file of somebody else's. One that may still be written to is due when it has been left alone for long enough. A
    /// time in the future is a mistake: such a file stands where it would stand had it been written when it was seen.
    pub(crate) fn foreign(place: Place, name: Name, foreign: Foreign, grace: Duration, now: Timestamp) -> Self {
        let seen = foreign.mtime.min(nanos(now));
        let grace = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let due = if foreign.is_settled { seen } else { seen.saturating_add(grace) };
        let turn = Turn { position: seen, is_foreign: true, name };
        let slot = Slot { due, turn, place };
        let priority = Priority::default().get();
        Self { slot, priority, key: 0, is_begun: false, dedup: 0, foreign: Some(foreign) }
    }

    /// The same file, known to be complete.
    pub(crate) fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.foreign = self.foreign.map(|foreign| Foreign { is_settled: true, ..foreign });
        settled.slot.due = self.slot.turn.position;
        settled
    }

    pub(crate) fn name(&self) -> &Name {
        &self.slot.turn.name
    }

    /// What its name says; for a file of somebody else's, what it will say.
    pub(crate) fn parsed(&self, queue: &QueueName) -> Option<FileName> {
        let Some(foreign) = self.foreign else { return FileName::parse(self.name()) };
        let id = foreign_id(queue, self.name(), foreign.mtime);
        let kind = match self.name().len() <= MOST_OF_ORIGINAL {
            true => Kind::Foreign(self.name()[..].into()),
            false => Kind::LongNamed,
        };
        let key = (self.key != 0).then_some(self.key);
        Some(FileName { key, ..FileName::new(time(self.slot.turn.position), id, kind) })
    }
}

/// The id of a file that came without one: the same whoever looks, another for a later file of the same name.
pub(crate) fn foreign_id(queue: &QueueName, name: &[u8], mtime: i64) -> MessageId {
    let native = format!("{mtime}:{}", data_encoding::HEXLOWER.encode(name));
    MessageId::derived(PROVIDER, queue.origin().as_str(), &native)
}

impl Index {
    /// Of messages that live.
    pub(crate) fn live() -> Self {
        Self { orders_keys: true, ..Self::default() }
    }

    /// Of the dead letters of a queue.
    pub(crate) fn dead(queue: &QueueName) -> Self {
        let deaths = Deaths { queue: queue.clone(), in_order: BTreeMap::new(), times: HashMap::new() };
        Self { deaths: Some(deaths), ..Self::default() }
    }

    /// The files of dead letters that come after that place in the order of deaths, message by message.
    pub(crate) fn deaths_after(&self, after: Option<Grave>) -> impl Iterator<Item = Vec<&Row>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let graves = self.deaths.iter().flat_map(move |deaths| deaths.in_order.range((from, Bound::Unbounded)));
        graves.map(|(_, names)| self.files(names))
    }

    /// The same of these messages.
    pub(crate) fn deaths_of(&self, ids: &HashSet<MessageId>) -> Vec<Vec<&Row>> {
        let Some(deaths) = &self.deaths else { return Vec::new() };
        let times = |id: &MessageId| deaths.times.get(id).into_iter().flatten().copied().collect::<Vec<_>>();
        let graves: BTreeSet<Grave> = ids.iter().flat_map(|id| times(id).into_iter().map(|time| (time, *id))).collect();
        graves.iter().filter_map(|grave| deaths.in_order.get(grave)).map(|names| self.files(names)).collect()
    }

    fn files(&self, names: &[Name]) -> Vec<&Row> {
        names.iter().filter_map(|name| self.get(Place::Failed, name)).collect()
    }

    /// Goes on counting claims where other processes were, so that those that each claim once do not starve the less
    /// urgent.
    pub(crate) fn count_from(&mut self, claims: u64) {
        self.claims.get_or_insert(claims);
    }

    pub(crate) fn get(&self, place: Place, name: &[u8]) -> Option<&Row> {
        self.rows[place as usize].get(name)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flat_map(HashMap::values)
    }

    pub(crate) fn names(&self, place: Place) -> impl Iterator<Item = &Name> {
        self.rows[place as usize].keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.iter().map(HashMap::len).sum()
    }

    /// The lease of this token, if it is there.
    pub(crate) fn lease(&self, token: LeaseToken) -> Option<&Row> {
        let (place, name) = self.tokens.get(&token.0)?;
        self.get(*place, name)
    }

    /// Those that may have a dedup key with this hash.
    pub(crate) fn dedup_holders(&self, hash: u64) -> impl Iterator<Item = &Row> {
        self.dedup.get(&hash).into_iter().flatten().filter_map(|(place, name)| self.get(*place, name))
    }

    pub(crate) fn insert(&mut self, row: Row) {
        let (place, name) = (row.slot.place, row.name().clone());
        self.remove(place, &name);
        let parsed = row.foreign.is_none().then(|| FileName::parse(&name)).flatten();
        if let Some(parsed) = parsed {
            if place == Place::Incoming && (parsed.lease.is_some() || parsed.is_dead) {
                self.misplaced.insert(name.clone());
            } else if let Some(lease) = parsed.lease {
                self.tokens.insert(lease.token.0, (place, name.clone()));
            }
        }
        if row.dedup != 0 && self.orders_keys {
            self.dedup.entry(row.dedup).or_default().push((place, name.clone()));
        }
        if row.foreign.is_some_and(|foreign| !foreign.is_settled) {
            self.settling.insert(row.slot.clone());
        }
        // One that may still be written to, too: if its key can be read, it has its place in the line already.
        if row.foreign.is_some_and(|foreign| !foreign.is_read) {
            self.unread.insert(row.slot.turn.clone());
        }
        let mut becomes_head = true;
        if row.key != 0 && self.orders_keys {
            let line = self.keys.entry(row.key).or_default();
            let before = line.first().cloned();
            let own = row.in_line();
            line.insert(own.clone());
            becomes_head = line.first() == Some(&own);
            // A file that came later with an earlier time: the head steps back.
            if becomes_head && let Some(before) = before {
                self.leave_schedule(before.place, &before.turn.name);
            }
        }
        if becomes_head {
            self.schedule[usize::from(row.priority)].insert(row.slot.clone());
        }
        if let Some(deaths) = &mut self.deaths {
            deaths.insert(&row);
        }
        self.rows[place as usize].insert(name, row);
    }

    /// Takes a row out. If it was the head of its key, the next one becomes the head.
    pub(crate) fn remove(&mut self, place: Place, name: &[u8]) -> Option<Row> {
        let row = self.rows[place as usize].remove(name)?;
        self.schedule[usize::from(row.priority)].remove(&row.slot);
        self.misplaced.remove(name);
        if let Some(deaths) = &mut self.deaths {
            deaths.remove(&row);
        }
        if row.foreign.is_none()
            && let Some(FileName { lease: Some(lease), .. }) = FileName::parse(name)
            && self.tokens.get(&lease.token.0).is_some_and(|(at, holder)| *at == place && **holder == *name)
        {
            self.tokens.remove(&lease.token.0);
        }
        if row.dedup != 0
            && let Some(holders) = self.dedup.get_mut(&row.dedup)
        {
            holders.retain(|(at, holder)| *at != place || **holder != *name);
            if holders.is_empty() {
                self.dedup.remove(&row.dedup);
            }
        }
        self.unread.remove(&row.slot.turn);
        self.settling.remove(&row.slot);
        if row.key != 0
            && let Some(line) = self.keys.get_mut(&row.key)
        {
            line.remove(&row.in_line());
            match line.first().cloned() {
                None => drop(self.keys.remove(&row.key)),
                Some(head) => self.enter_schedule(head.place, &head.turn.name),
            }
        }
        Some(row)
    }

    fn leave_schedule(&mut self, place: Place, name: &[u8]) {
        if let Some(row) = self.rows[place as usize].get(name) {
            self.schedule[usize::from(row.priority)].remove(&row.slot);
        }
    }

    fn enter_schedule(&mut self, place: Place, name: &[u8]) {
        if let Some(row) = self.rows[place as usize].get(name) {
            self.schedule[usize::from(row.priority)].insert(row.slot.clone());
        }
    }

    /// The row that is next in turn, if one is due.
    pub(crate) fn next_due(&self, now: Timestamp) -> Option<&Row> {
        let now = nanos(now);
        let mut heads = self.schedule.iter().rev().filter_map(BTreeSet::first).filter(|slot| slot.due <= now);
        let turn = self.claims.unwrap_or(0) % OLDEST_FIRST_EVERY;
        let head = if turn == OLDEST_FIRST_EVERY - 1 { heads.min() } else { heads.next() };
        head.and_then(|slot| self.get(slot.place, &slot.turn.name))
    }

    /// Whether this row may be received now.
    pub(crate) fn is_due(&self, row: &Row, now: Timestamp) -> bool {
        row.slot.due <= nanos(now) && self.schedule[usize::from(row.priority)].contains(&row.slot)
    }

    /// Leaves a row alone until then: it cannot be moved.
    pub(crate) fn set_aside(&mut self, row: &Row, until: Timestamp) {
        if let Some(mut row) = self.remove(row.slot.place, row.name()) {
            row.slot.due = nanos(until);
            self.insert(row);
        }
    }

    pub(crate) fn count_claim(&mut self) {
        self.claims = Some(self.claims.unwrap_or(0).wrapping_add(1));
    }

    /// The first time after `after` at which a row becomes due.
    pub(crate) fn next_wake_up(&self, after: Timestamp) -> Timestamp {
        let after = nanos(after);
        let next = self.schedule.iter().filter_map(|set| {
            // Almost always the first or, after a look that found something due, near it.
            let later = Slot {
                due: after.saturating_add(1),
                turn: Turn { position: i64::MIN, is_foreign: false, name: Name::from([].as_slice()) },
                place: Place::Incoming,
            };
            set.range(later..).next().map(|slot| slot.due)
        });
        // Rounded up, or the look would come just before it.
        next.min().map_or(Timestamp::MAX, |due| Timestamp::from_micros(due.div_euclid(1000).saturating_add(1)))
    }

    /// Whether there are files that will be messages when they have been left alone for long enough.
    pub(crate) fn is_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// The oldest file whose ordering key is not known, if it comes before `turn`.
    pub(crate) fn next_unread(&self, turn: &Turn) -> Option<&Row> {
        let first = self.unread.first().filter(|first| *first <= turn)?;
        self.get(Place::Incoming, &first.name)
    }

    /// Files in `incoming/` whose names say that they are leased or dead: somebody moved them there by hand.
    pub(crate) fn misplaced(&self) -> impl Iterator<Item = &Name> {
        self.misplaced.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Due, Lease};

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + micros)
    }

    fn insert(index: &mut Index, place: Place, parsed: &FileName, now: Timestamp) -> Name {
        let name = Name::from(parsed.render());
        index.insert(Row::ours(place, name.clone(), parsed, now));
        name
    }

    fn keyed(position: i64, key: u64) -> FileName {
        FileName { key: Some(key), ..FileName::new(at(position), MessageId::generate(), Kind::Letter) }
    }

    fn next(index: &Index, now: i64) -> Option<Name> {
        index.next_due(at(now)).map(|row| row.name().clone())
    }

    #[test]
    fn only_the_head_of_a_key_is_next_whatever_order_it_came_in() {
        let mut index = Index::live();
        let second = insert(&mut index, Place::Incoming, &keyed(2, 7), at(9));
        assert_eq!(next(&index, 9), Some(second.clone()));
        let first = keyed(1, 7);
        let first_name = insert(&mut index, Place::Incoming, &first, at(9));
        assert_eq!(next(&index, 9), Some(first_name.clone()));
        // Leased, it holds its key.
        index.remove(Place::Incoming, &first_name);
        let lease = Lease { until: at(50), token: LeaseToken(1) };
        let leased = insert(&mut index, Place::Processing, &FileName { lease: Some(lease), ..first.clone() }, at(9));
        assert_eq!(next(&index, 9), None);
        assert_eq!(index.next_wake_up(at(9)), Timestamp::from_micros(at(50).as_micros() + 1));
        // Waiting for its retry, too.
        index.remove(Place::Processing, &leased);
        let retrying = insert(&mut index, Place::Incoming, &FileName { due: Due::Retry(at(60)), ..first }, at(9));
        assert_eq!((next(&index, 59), next(&index, 60)), (None, Some(retrying.clone())));
        index.remove(Place::Incoming, &retrying);
        assert_eq!(next(&index, 60), Some(second));
    }

    #[test]
    fn a_place_ahead_of_the_clock_is_due_and_keeps_its_turn() {
        let mut index = Index::live();
        let hour = 3_600_000_000;
        let later = insert(&mut index, Place::Incoming, &keyed(hour + 1, 1), at(5));
        let earlier = insert(&mut index, Place::Incoming, &keyed(hour, 2), at(5));
        assert_eq!(next(&index, 5), Some(earlier.clone()));
        // What comes afterwards does not overtake it for an hour.
        insert(&mut index, Place::Incoming, &keyed(6, 3), at(6));
        index.remove(Place::Incoming, &earlier);
        assert_eq!(next(&index, 6), Some(later));
    }

    #[test]
    fn files_of_one_time_go_by_name_and_keep_their_turn_when_they_come_back() {
        let mut index = Index::live();
        let queue = QueueName::new("orders").unwrap();
        let file = |name: &str| {
            let foreign = Foreign { mtime: nanos(at(3)) + 7, is_settled: true, is_read: true };
            Row { key: 9, ..Row::foreign(Place::Incoming, Name::from(name.as_bytes()), foreign, Duration::ZERO, at(4)) }
        };
        index.insert(file("b.json"));
        index.insert(file("a.json"));
        assert_eq!(next(&index, 4).as_deref(), Some(b"a.json".as_slice()));
        let parsed = index.get(Place::Incoming, b"a.json").unwrap().parsed(&queue).unwrap();
        index.remove(Place::Incoming, b"a.json");
        let back = insert(&mut index, Place::Incoming, &FileName { due: Due::From(at(8)), ..parsed }, at(8));
        assert_eq!((next(&index, 7), next(&index, 8)), (None, Some(back)));
    }

    #[test]
    fn a_file_that_may_still_be_written_waits() {
        let foreign = Foreign { mtime: nanos(at(0)), is_settled: false, is_read: true };
        let grace = Duration::from_secs(2);
        let row = Row::foreign(Place::Incoming, Name::from(b"a.json".as_slice()), foreign, grace, at(10));
        assert_eq!(time(row.slot.due), at(2_000_000));
        // A time in the future is not waited for.
        let future = Foreign { mtime: nanos(at(9_000_000_000)), ..foreign };
        let row = Row::foreign(Place::Incoming, Name::from(b"a.json".as_slice()), future, grace, at(10));
        assert_eq!((time(row.slot.due), time(row.slot.turn.position)), (at(2_000_010), at(10)));
    }

    #[test]
    fn nothing_overtakes_what_was_begun_whatever_its_time() {
        let mut index = Index::live();
        let lease = Lease { until: at(50), token: LeaseToken(1) };
        let begun = FileName { deliveries: 1, ..keyed(10, 7) };
        let leased = insert(&mut index, Place::Processing, &FileName { lease: Some(lease), ..begun.clone() }, at(20));
        let earlier = insert(&mut index, Place::Incoming, &keyed(5, 7), at(20));
        assert_eq!(next(&index, 20), None, "it is held");
        index.remove(Place::Processing, &leased);
        let retrying = insert(&mut index, Place::Incoming, &FileName { due: Due::Retry(at(60)), ..begun }, at(20));
        assert_eq!((next(&index, 59), next(&index, 60)), (None, Some(retrying.clone())));
        index.remove(Place::Incoming, &retrying);
        assert_eq!(next(&index, 60), Some(earlier));
    }
}
