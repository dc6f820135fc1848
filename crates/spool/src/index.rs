//! The index of a queue's files in memory, so that a claim does not read the folder.
//!
//! A row is a file; its name has all its state. As in a table with one visibility column, a row has one time at which it can
//! next be received: its due time while it waits, the end of its lease while it is leased. So an expired lease needs no
//! further step. `schedule` has these times, a set for each priority, and only for rows that may be received at all: a row
//! with an ordering key enters when it becomes the head of its key.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::time::Duration;

use postrider_core::{LeaseToken, MessageId, Priority, QueueName, Timestamp};

use crate::PROVIDER;
use crate::disk::Name;
use crate::name::{FileName, Kind, MAX_ORIGINAL};

/// Every 16th claim takes the oldest due row of any priority, so that no row starves.
const OLDEST_FIRST_EVERY: u64 = 16;

/// The folder that a file is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Location {
    Incoming,
    Processing,
    Failed,
}

/// A foreign file that was not claimed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Its modification time, in nanoseconds since the epoch.
    pub(crate) mtime: i64,
    /// Whether it is known to be complete: it was renamed into the folder, or was not modified during the grace period.
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
    /// Whether it is or was leased. Then it stays before all later rows of its key, even those with an earlier time.
    is_begun: bool,
    dedup: u64,
    pub(crate) foreign: Option<Foreign>,
}

/// Position of a row in the schedule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// When it is due, in nanoseconds since the epoch.
    pub(crate) due: i64,
    pub(crate) order: RowOrder,
    pub(crate) location: Location,
}

/// Order of rows: by time, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowOrder {
    pub(crate) position: i64,
    is_foreign: bool,
    pub(crate) name: Name,
}

/// Order of rows within a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct KeyOrder {
    /// A row that was leased comes first: it was the head then.
    is_fresh: bool,
    order: RowOrder,
    location: Location,
}

impl Row {
    fn key_order(&self) -> KeyOrder {
        KeyOrder { is_fresh: !self.is_begun, order: self.slot.order.clone(), location: self.slot.location }
    }
}

/// The live files of a queue, or its dead letters.
#[derive(Debug, Default)]
pub(crate) struct Index {
    rows: [HashMap<Name, Row>; 3],
    schedule: [BTreeSet<Slot>; Priority::COUNT],
    /// False for dead letters, which have no order and hold no dedup keys.
    orders_keys: bool,
    keys: HashMap<u64, BTreeSet<KeyOrder>>,
    tokens: HashMap<u128, (Location, Name)>,
    dedup: HashMap<u64, Vec<(Location, Name)>>,
    /// Files whose ordering key was not read yet.
    unread: BTreeSet<RowOrder>,
    misplaced: BTreeSet<Name>,
    /// Files that may be incomplete, by the end of their grace period.
    settling: BTreeSet<Slot>,
    /// Number of claims; `None` until the queue's count is known.
    claims: Option<u64>,
    /// The order of dead letters; `None` for live messages.
    dead_order: Option<DeadOrder>,
}

/// Order of dead letters: by time, then by id.
pub(crate) type DeadPosition = (i64, MessageId);

/// Dead letters in the order of the listing, so that a page costs no more than its entries.
#[derive(Debug)]
struct DeadOrder {
    queue: QueueName,
    /// Two files of one message are an interrupted edit.
    in_order: BTreeMap<DeadPosition, Vec<Name>>,
    times: HashMap<MessageId, BTreeSet<i64>>,
}

impl DeadOrder {
    fn insert(&mut self, row: &Row) {
        let Some(parsed) = row.parsed(&self.queue) else { return };
        let time = row.slot.order.position;
        self.in_order.entry((time, parsed.id)).or_default().push(row.name().clone());
        self.times.entry(parsed.id).or_default().insert(time);
    }

    fn remove(&mut self, row: &Row) {
        let Some(parsed) = row.parsed(&self.queue) else { return };
        let dead_position = (row.slot.order.position, parsed.id);
        let Some(names) = self.in_order.get_mut(&dead_position) else { return };
        names.retain(|name| name != row.name());
        if !names.is_empty() {
            return;
        }
        self.in_order.remove(&dead_position);
        if let Some(times) = self.times.get_mut(&dead_position.1) {
            times.remove(&dead_position.0);
            if times.is_empty() {
                self.times.remove(&dead_position.1);
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
    /// A file with a provider's name.
    pub(crate) fn ours(location: Location, name: Name, parsed: &FileName, now: Timestamp) -> Self {
        let position = nanos(parsed.position);
        // A position can be later than a clock that was set back; the row is due all the same.
        let due = match (parsed.lease, parsed.due) {
            (None, crate::name::Due::Always) => position.min(nanos(now)),
            _ => nanos(parsed.next_attempt_at()),
        };
        Self {
            slot: Slot { due, order: RowOrder { position, is_foreign: false, name }, location },
            priority: parsed.priority.get(),
            key: parsed.key.unwrap_or(0),
            is_begun: parsed.lease.is_some() || parsed.deliveries > 0,
            dedup: parsed.dedup.unwrap_or(0),
            foreign: None,
        }
    }

    /// A foreign file. One that may be incomplete is due after the grace period. A modification time in the future counts as
    /// the time at which the file was first seen.
    pub(crate) fn foreign(location: Location, name: Name, foreign: Foreign, grace: Duration, now: Timestamp) -> Self {
        let seen = foreign.mtime.min(nanos(now));
        let grace = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let due = if foreign.is_settled { seen } else { seen.saturating_add(grace) };
        let order = RowOrder { position: seen, is_foreign: true, name };
        let slot = Slot { due, order, location };
        let priority = Priority::default().get();
        Self { slot, priority, key: 0, is_begun: false, dedup: 0, foreign: Some(foreign) }
    }

    /// Returns the row of a file that is known to be complete.
    pub(crate) fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.foreign = self.foreign.map(|foreign| Foreign { is_settled: true, ..foreign });
        settled.slot.due = self.slot.order.position;
        settled
    }

    pub(crate) fn name(&self) -> &Name {
        &self.slot.order.name
    }

    /// Parses its name; for a foreign file, returns the name that it will get.
    pub(crate) fn parsed(&self, queue: &QueueName) -> Option<FileName> {
        let Some(foreign) = self.foreign else { return FileName::parse(self.name()) };
        let id = foreign_id(queue, self.name(), foreign.mtime);
        let kind = match self.name().len() <= MAX_ORIGINAL {
            true => Kind::Foreign(self.name()[..].into()),
            false => Kind::LongNamed,
        };
        let key = (self.key != 0).then_some(self.key);
        Some(FileName { key, ..FileName::new(time(self.slot.order.position), id, kind) })
    }
}

/// The id of a foreign file: the same in every process, and another one for a later file of the same name.
pub(crate) fn foreign_id(queue: &QueueName, name: &[u8], mtime: i64) -> MessageId {
    let native = format!("{mtime}:{}", data_encoding::HEXLOWER.encode(name));
    MessageId::derived(PROVIDER, queue.origin().as_str(), &native)
}

impl Index {
    /// The index of live messages.
    pub(crate) fn live() -> Self {
        Self { orders_keys: true, ..Self::default() }
    }

    /// The index of a queue's dead letters.
    pub(crate) fn dead(queue: &QueueName) -> Self {
        let dead_order = DeadOrder { queue: queue.clone(), in_order: BTreeMap::new(), times: HashMap::new() };
        Self { dead_order: Some(dead_order), ..Self::default() }
    }

    /// Returns the files of the dead letters after a position, message by message.
    pub(crate) fn dead_after(&self, after: Option<DeadPosition>) -> impl Iterator<Item = Vec<&Row>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let dead_positions =
            self.dead_order.iter().flat_map(move |dead_order| dead_order.in_order.range((from, Bound::Unbounded)));
        dead_positions.map(|(_, names)| self.files(names))
    }

    /// Returns the files of these dead letters, message by message.
    pub(crate) fn dead_of(&self, ids: &HashSet<MessageId>) -> Vec<Vec<&Row>> {
        let Some(dead_order) = &self.dead_order else { return Vec::new() };
        let times = |id: &MessageId| dead_order.times.get(id).into_iter().flatten().copied().collect::<Vec<_>>();
        let dead_positions: BTreeSet<DeadPosition> =
            ids.iter().flat_map(|id| times(id).into_iter().map(|time| (time, *id))).collect();
        dead_positions
            .iter()
            .filter_map(|dead_position| dead_order.in_order.get(dead_position))
            .map(|names| self.files(names))
            .collect()
    }

    fn files(&self, names: &[Name]) -> Vec<&Row> {
        names.iter().filter_map(|name| self.get(Location::Failed, name)).collect()
    }

    /// Continues the count of claims of other processes, so that processes that each claim once do not starve low
    /// priorities.
    pub(crate) fn count_from(&mut self, claims: u64) {
        self.claims.get_or_insert(claims);
    }

    pub(crate) fn get(&self, location: Location, name: &[u8]) -> Option<&Row> {
        self.rows[location as usize].get(name)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flat_map(HashMap::values)
    }

    pub(crate) fn names(&self, location: Location) -> impl Iterator<Item = &Name> {
        self.rows[location as usize].keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.iter().map(HashMap::len).sum()
    }

    /// Returns the row that is leased with this token.
    pub(crate) fn lease(&self, token: LeaseToken) -> Option<&Row> {
        let (location, name) = self.tokens.get(&token.0)?;
        self.get(*location, name)
    }

    /// Returns the rows whose dedup keys have this hash.
    pub(crate) fn dedup_holders(&self, hash: u64) -> impl Iterator<Item = &Row> {
        self.dedup.get(&hash).into_iter().flatten().filter_map(|(location, name)| self.get(*location, name))
    }

    pub(crate) fn insert(&mut self, row: Row) {
        let (location, name) = (row.slot.location, row.name().clone());
        self.remove(location, &name);
        let parsed = row.foreign.is_none().then(|| FileName::parse(&name)).flatten();
        if let Some(parsed) = parsed {
            if location == Location::Incoming && (parsed.lease.is_some() || parsed.is_dead) {
                self.misplaced.insert(name.clone());
            } else if let Some(lease) = parsed.lease {
                self.tokens.insert(lease.token.0, (location, name.clone()));
            }
        }
        if row.dedup != 0 && self.orders_keys {
            self.dedup.entry(row.dedup).or_default().push((location, name.clone()));
        }
        if row.foreign.is_some_and(|foreign| !foreign.is_settled) {
            self.settling.insert(row.slot.clone());
        }
        // Also an incomplete file: if its key can be read, it takes part in the order of its key.
        if row.foreign.is_some_and(|foreign| !foreign.is_read) {
            self.unread.insert(row.slot.order.clone());
        }
        let mut becomes_head = true;
        if row.key != 0 && self.orders_keys {
            let rows_of_key = self.keys.entry(row.key).or_default();
            let before = rows_of_key.first().cloned();
            let own = row.key_order();
            rows_of_key.insert(own.clone());
            becomes_head = rows_of_key.first() == Some(&own);
            // A later file with an earlier time becomes the head.
            if becomes_head && let Some(before) = before {
                self.leave_schedule(before.location, &before.order.name);
            }
        }
        if becomes_head {
            self.schedule[usize::from(row.priority)].insert(row.slot.clone());
        }
        if let Some(dead_order) = &mut self.dead_order {
            dead_order.insert(&row);
        }
        self.rows[location as usize].insert(name, row);
    }

    /// Removes a row. If it was the head of its key, the next one becomes the head.
    pub(crate) fn remove(&mut self, location: Location, name: &[u8]) -> Option<Row> {
        let row = self.rows[location as usize].remove(name)?;
        self.schedule[usize::from(row.priority)].remove(&row.slot);
        self.misplaced.remove(name);
        if let Some(dead_order) = &mut self.dead_order {
            dead_order.remove(&row);
        }
        if row.foreign.is_none()
            && let Some(FileName { lease: Some(lease), .. }) = FileName::parse(name)
            && self.tokens.get(&lease.token.0).is_some_and(|(at, holder)| *at == location && **holder == *name)
        {
            self.tokens.remove(&lease.token.0);
        }
        if row.dedup != 0
            && let Some(holders) = self.dedup.get_mut(&row.dedup)
        {
            holders.retain(|(at, holder)| *at != location || **holder != *name);
            if holders.is_empty() {
                self.dedup.remove(&row.dedup);
            }
        }
        self.unread.remove(&row.slot.order);
        self.settling.remove(&row.slot);
        if row.key != 0
            && let Some(rows_of_key) = self.keys.get_mut(&row.key)
        {
            rows_of_key.remove(&row.key_order());
            match rows_of_key.first().cloned() {
                None => drop(self.keys.remove(&row.key)),
                Some(head) => self.enter_schedule(head.location, &head.order.name),
            }
        }
        Some(row)
    }

    fn leave_schedule(&mut self, location: Location, name: &[u8]) {
        if let Some(row) = self.rows[location as usize].get(name) {
            self.schedule[usize::from(row.priority)].remove(&row.slot);
        }
    }

    fn enter_schedule(&mut self, location: Location, name: &[u8]) {
        if let Some(row) = self.rows[location as usize].get(name) {
            self.schedule[usize::from(row.priority)].insert(row.slot.clone());
        }
    }

    /// Returns the due row to claim next.
    pub(crate) fn next_due(&self, now: Timestamp) -> Option<&Row> {
        let now = nanos(now);
        let mut heads = self.schedule.iter().rev().filter_map(BTreeSet::first).filter(|slot| slot.due <= now);
        let order = self.claims.unwrap_or(0) % OLDEST_FIRST_EVERY;
        let head = if order == OLDEST_FIRST_EVERY - 1 { heads.min() } else { heads.next() };
        head.and_then(|slot| self.get(slot.location, &slot.order.name))
    }

    /// Whether a row may be received now.
    pub(crate) fn is_due(&self, row: &Row, now: Timestamp) -> bool {
        row.slot.due <= nanos(now) && self.schedule[usize::from(row.priority)].contains(&row.slot)
    }

    /// Skips a row until `until`.
    pub(crate) fn set_aside(&mut self, row: &Row, until: Timestamp) {
        if let Some(mut row) = self.remove(row.slot.location, row.name()) {
            row.slot.due = nanos(until);
            self.insert(row);
        }
    }

    pub(crate) fn count_claim(&mut self) {
        self.claims = Some(self.claims.unwrap_or(0).wrapping_add(1));
    }

    /// Returns the first time after `after` at which a row becomes due.
    pub(crate) fn next_wake_up(&self, after: Timestamp) -> Timestamp {
        let after = nanos(after);
        let next = self.schedule.iter().filter_map(|set| {
            // Almost always at or near the beginning of the set.
            let later = Slot {
                due: after.saturating_add(1),
                order: RowOrder { position: i64::MIN, is_foreign: false, name: Name::from([].as_slice()) },
                location: Location::Incoming,
            };
            set.range(later..).next().map(|slot| slot.due)
        });
        // Rounded up, or the claim would come just before it.
        next.min().map_or(Timestamp::MAX, |due| Timestamp::from_micros(due.div_euclid(1000).saturating_add(1)))
    }

    /// Whether there are files in their grace period.
    pub(crate) fn is_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Returns the oldest file whose ordering key is unknown, if it comes before `order`.
    pub(crate) fn next_unread(&self, order: &RowOrder) -> Option<&Row> {
        let first = self.unread.first().filter(|first| *first <= order)?;
        self.get(Location::Incoming, &first.name)
    }

    /// Returns the files in `incoming/` with names of leased or dead messages, which were moved there by hand.
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

    fn insert(index: &mut Index, location: Location, parsed: &FileName, now: Timestamp) -> Name {
        let name = Name::from(parsed.render());
        index.insert(Row::ours(location, name.clone(), parsed, now));
        name
    }

    fn keyed(position: i64, key: u64) -> FileName {
        FileName { key: Some(key), ..FileName::new(at(position), MessageId::generate(), Kind::Message) }
    }

    fn next(index: &Index, now: i64) -> Option<Name> {
        index.next_due(at(now)).map(|row| row.name().clone())
    }

    #[test]
    fn only_the_head_of_a_key_is_next() {
        let mut index = Index::live();
        let second = insert(&mut index, Location::Incoming, &keyed(2, 7), at(9));
        assert_eq!(next(&index, 9), Some(second.clone()));
        let first = keyed(1, 7);
        let first_name = insert(&mut index, Location::Incoming, &first, at(9));
        assert_eq!(next(&index, 9), Some(first_name.clone()));
        // A leased row blocks its key.
        index.remove(Location::Incoming, &first_name);
        let lease = Lease { until: at(50), token: LeaseToken(1) };
        let leased = insert(&mut index, Location::Processing, &FileName { lease: Some(lease), ..first.clone() }, at(9));
        assert_eq!(next(&index, 9), None);
        assert_eq!(index.next_wake_up(at(9)), Timestamp::from_micros(at(50).as_micros() + 1));
        // So does a row that waits for its retry.
        index.remove(Location::Processing, &leased);
        let retrying = insert(&mut index, Location::Incoming, &FileName { due: Due::Retry(at(60)), ..first }, at(9));
        assert_eq!((next(&index, 59), next(&index, 60)), (None, Some(retrying.clone())));
        index.remove(Location::Incoming, &retrying);
        assert_eq!(next(&index, 60), Some(second));
    }

    #[test]
    fn a_position_ahead_of_the_clock_is_due_and_keeps_its_order() {
        let mut index = Index::live();
        let hour = 3_600_000_000;
        let later = insert(&mut index, Location::Incoming, &keyed(hour + 1, 1), at(5));
        let earlier = insert(&mut index, Location::Incoming, &keyed(hour, 2), at(5));
        assert_eq!(next(&index, 5), Some(earlier.clone()));
        // A later row does not overtake it.
        insert(&mut index, Location::Incoming, &keyed(6, 3), at(6));
        index.remove(Location::Incoming, &earlier);
        assert_eq!(next(&index, 6), Some(later));
    }

    #[test]
    fn files_of_one_time_are_ordered_by_name_and_keep_their_order_when_returned() {
        let mut index = Index::live();
        let queue = QueueName::new("orders").unwrap();
        let file = |name: &str| {
            let foreign = Foreign { mtime: nanos(at(3)) + 7, is_settled: true, is_read: true };
            Row {
                key: 9,
                ..Row::foreign(Location::Incoming, Name::from(name.as_bytes()), foreign, Duration::ZERO, at(4))
            }
        };
        index.insert(file("b.json"));
        index.insert(file("a.json"));
        assert_eq!(next(&index, 4).as_deref(), Some(b"a.json".as_slice()));
        let parsed = index.get(Location::Incoming, b"a.json").unwrap().parsed(&queue).unwrap();
        index.remove(Location::Incoming, b"a.json");
        let back = insert(&mut index, Location::Incoming, &FileName { due: Due::From(at(8)), ..parsed }, at(8));
        assert_eq!((next(&index, 7), next(&index, 8)), (None, Some(back)));
    }

    #[test]
    fn an_incomplete_file_waits_for_its_grace_period() {
        let foreign = Foreign { mtime: nanos(at(0)), is_settled: false, is_read: true };
        let grace = Duration::from_secs(2);
        let row = Row::foreign(Location::Incoming, Name::from(b"a.json".as_slice()), foreign, grace, at(10));
        assert_eq!(time(row.slot.due), at(2_000_000));
        // A time in the future is not waited for.
        let future = Foreign { mtime: nanos(at(9_000_000_000)), ..foreign };
        let row = Row::foreign(Location::Incoming, Name::from(b"a.json".as_slice()), future, grace, at(10));
        assert_eq!((time(row.slot.due), time(row.slot.order.position)), (at(2_000_010), at(10)));
    }

    #[test]
    fn no_row_overtakes_one_that_was_leased() {
        let mut index = Index::live();
        let lease = Lease { until: at(50), token: LeaseToken(1) };
        let begun = FileName { deliveries: 1, ..keyed(10, 7) };
        let leased =
            insert(&mut index, Location::Processing, &FileName { lease: Some(lease), ..begun.clone() }, at(20));
        let earlier = insert(&mut index, Location::Incoming, &keyed(5, 7), at(20));
        assert_eq!(next(&index, 20), None, "it is held");
        index.remove(Location::Processing, &leased);
        let retrying = insert(&mut index, Location::Incoming, &FileName { due: Due::Retry(at(60)), ..begun }, at(20));
        assert_eq!((next(&index, 59), next(&index, 60)), (None, Some(retrying.clone())));
        index.remove(Location::Incoming, &retrying);
        assert_eq!(next(&index, 60), Some(earlier));
    }
}
