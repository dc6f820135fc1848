//! One queue in memory: its rows, and the indexes that answer "what is next?" without a search.
//!
//! As in a table with one visibility column, a row has one time at which it can next be received: its due time while
//! it waits, the end of its lease while it is leased. A lease that has run out therefore needs nobody's help: the row
//! simply is due again. `schedule` has these times, a set for each priority, and only for rows that may be received at
//! all: a row with an ordering key enters when it becomes the head of its key.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use tokio::sync::Notify;

use super::lifecycle::{Failed, Lifecycle, Processing, Record, Waiting};
use crate::clock::Timestamp;
use crate::id::MessageId;
use crate::message::{Key, Message, Priority};
use crate::message_state::LiveState;
use crate::queue_name::QueueName;
use crate::service::{KEPT_ATTEMPTS, MessageAttempt};

/// Every so many claims the oldest due row goes first, whatever its priority, so that none waits for ever.
const OLDEST_FIRST_EVERY: u64 = 16;

/// A row's number: ascending in send order, never used twice in a store.
pub(super) type RowId = u64;

/// A message that lives in a queue.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) message: Message,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) phase: Phase,
    /// How it died, when it is a dead letter.
    pub(super) death: Option<Death>,
    /// The last failed attempts of its life, oldest first.
    pub(super) failures: VecDeque<MessageAttempt>,
}

/// Waiting, or leased: the lease may have run out.
#[derive(Debug)]
pub(super) enum Phase {
    Waiting(Waiting),
    Leased(Lifecycle<Processing>),
}

/// The life that a dead letter had.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) lifecycle: Lifecycle<Failed>,
    /// How often it has been edited since.
    pub(super) revision: u32,
}

impl Row {
    pub(super) fn record(&self) -> &Record {
        match &self.phase {
            Phase::Waiting(waiting) => waiting.record(),
            Phase::Leased(lifecycle) => lifecycle.record(),
        }
    }

    /// When it can next be received: the one visibility time.
    pub(super) fn next_attempt_at(&self) -> Timestamp {
        match &self.phase {
            Phase::Waiting(waiting) => waiting.next_attempt_at(),
            Phase::Leased(lifecycle) => lifecycle.state().lease_expires_at,
        }
    }

    pub(super) fn is_leased(&self, now: Timestamp) -> bool {
        matches!(&self.phase, Phase::Leased(lifecycle) if lifecycle.is_leased(now))
    }

    /// Whether it has expired and nobody handles it: it no longer lives, although nobody has buried it yet.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now) && !self.is_leased(now)
    }

    pub(super) fn state(&self, now: Timestamp) -> LiveState {
        match &self.phase {
            Phase::Leased(lifecycle) if lifecycle.is_leased(now) => LiveState::Processing,
            Phase::Leased(_) | Phase::Waiting(Waiting::Pending(_)) => LiveState::Pending,
            Phase::Waiting(Waiting::Retryable(_)) => LiveState::Retryable,
        }
    }

    /// Writes a failed attempt down. A dead letter's are not: its story is over.
    pub(super) fn note_failure(&mut self, worker: Option<&str>, error: Option<&str>, now: Timestamp) {
        if self.death.is_some() {
            return;
        }
        let record = self.record();
        let failure = MessageAttempt {
            attempt: record.attempts_count.saturating_add(1),
            started_at: record.last_attempt_at,
            failed_at: now,
            worker: worker.map(str::to_owned),
            error: error.map(str::to_owned),
        };
        if self.failures.len() >= KEPT_ATTEMPTS as usize {
            self.failures.pop_front();
        }
        self.failures.push_back(failure);
    }

    /// Leads the row from its phase to the next one.
    pub(super) fn change(&mut self, transition: impl FnOnce(Phase) -> Phase) {
        // The stand-in is never seen: it is replaced before this returns, and building it allocates nothing.
        let stand_in = Phase::Waiting(Waiting::Pending(Lifecycle::begin(Timestamp::MAX, Timestamp::MAX)));
        self.phase = transition(mem::replace(&mut self.phase, stand_in));
    }
}

impl Phase {
    /// A lease that has run out has become waiting.
    pub(super) fn expire(self, now: Timestamp) -> Self {
        match self {
            Self::Leased(lifecycle) => match lifecycle.expire(now) {
                Ok(pending) => Self::Waiting(Waiting::Pending(pending)),
                Err(held) => Self::Leased(held),
            },
            waiting @ Self::Waiting(_) => waiting,
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    /// Made by a send or `ensure_queue`; a queue that somebody only waits for is not there yet.
    pub(super) exists: bool,
    pub(super) paused: bool,
    /// Boxed, because the tree moves its entries about when it grows and shrinks.
    pub(super) rows: BTreeMap<RowId, Box<Row>>,
    schedule: [BTreeSet<(Timestamp, RowId)>; Priority::COUNT],
    /// The living rows of each key, in send order. A dead-letter queue orders nothing and has none.
    keys: HashMap<Key, BTreeSet<RowId>>,
    dedup: HashMap<Key, RowId>,
    ids: BTreeSet<(MessageId, RowId)>,
    claims: u64,
    /// Tells those who wait that there may be something to receive, or that they must wake up earlier.
    pub(super) changed: Arc<Notify>,
    /// The latest time at which any of those who wait will look again by itself.
    waiting_until: Timestamp,
}

impl Queue {
    pub(super) fn new(name: QueueName) -> Self {
        Self {
            name,
            exists: false,
            paused: false,
            rows: BTreeMap::new(),
            schedule: Default::default(),
            keys: HashMap::new(),
            dedup: HashMap::new(),
            ids: BTreeSet::new(),
            claims: 0,
            changed: Arc::new(Notify::new()),
            waiting_until: Timestamp::EPOCH,
        }
    }

    /// Forgets everything. The entry itself stays for those who wait on it.
    pub(super) fn clear(&mut self) {
        let changed = self.changed.clone();
        *self = Self { changed, ..Self::new(self.name.clone()) };
        self.wake();
    }

    fn orders_keys(&self) -> bool {
        !self.name.holds_dead_letters()
    }

    /// The row that has this dedup key.
    pub(super) fn dedup_holder(&self, key: &Key) -> Option<(RowId, &Row)> {
        let id = *self.dedup.get(key)?;
        Some((id, self.rows.get(&id)?))
    }

    /// Rows with this message id, in send order. More than one only when a sender used an id twice.
    pub(super) fn rows_of(&self, id: MessageId) -> impl Iterator<Item = RowId> + '_ {
        self.ids.range((id, 0)..=(id, RowId::MAX)).map(|(_, row)| *row)
    }

    pub(super) fn insert(&mut self, id: RowId, row: Row, now: Timestamp) {
        self.ids.insert((row.message.id, id));
        let is_head = match &row.message.ordering_key {
            Some(key) if self.orders_keys() => {
                let line = self.keys.entry(key.clone()).or_default();
                line.insert(id);
                line.first() == Some(&id)
            }
            _ => true,
        };
        if let Some(key) = &row.message.dedup_key
            && self.orders_keys()
        {
            self.dedup.insert(key.clone(), id);
        }
        let (priority, due) = (row.message.priority, row.next_attempt_at());
        self.rows.insert(id, Box::new(row));
        if is_head {
            self.enter_schedule(priority, due, id, now);
        }
    }

    /// Takes a row out. If it was the head of its key, the next one becomes the head.
    pub(super) fn remove(&mut self, id: RowId, now: Timestamp) -> Option<Row> {
        let row = *self.rows.remove(&id)?;
        self.ids.remove(&(row.message.id, id));
        self.leave_schedule(row.message.priority, row.next_attempt_at(), id);
        if let Some(key) = &row.message.dedup_key
            && self.dedup.get(key) == Some(&id)
        {
            self.dedup.remove(key);
        }
        if let Some(key) = &row.message.ordering_key {
            self.leave_line(&key.clone(), id, now);
        }
        Some(row)
    }

    fn leave_line(&mut self, key: &Key, id: RowId, now: Timestamp) {
        let Some(line) = self.keys.get_mut(key) else { return };
        let was_head = line.first() == Some(&id);
        line.remove(&id);
        let next = line.first().copied();
        if next.is_none() {
            self.keys.remove(key);
        }
        if was_head
            && let Some(next) = next
            && let Some(row) = self.rows.get(&next)
        {
            let (priority, due) = (row.message.priority, row.next_attempt_at());
            self.enter_schedule(priority, due, next, now);
        }
    }

    /// Writes a failed attempt of a row down.
    pub(super) fn note_failure(&mut self, id: RowId, worker: Option<&str>, error: Option<&str>, now: Timestamp) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.note_failure(worker, error, now);
        }
    }

    /// Changes a row that is in the schedule, and moves it there to its new time.
    pub(super) fn reschedule(&mut self, id: RowId, now: Timestamp, transition: impl FnOnce(Phase) -> Phase) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let priority = row.message.priority;
        let before = row.next_attempt_at();
        row.change(transition);
        let after = row.next_attempt_at();
        self.leave_schedule(priority, before, id);
        self.enter_schedule(priority, after, id, now);
    }

    /// Changes a row that need not be in the schedule: one that waits behind the head of its key is not.
    pub(super) fn change(&mut self, id: RowId, now: Timestamp, transition: impl FnOnce(Phase) -> Phase) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let is_scheduled =
            self.schedule[usize::from(row.message.priority.get())].contains(&(row.next_attempt_at(), id));
        if is_scheduled {
            self.reschedule(id, now, transition);
        } else {
            row.change(transition);
        }
    }

    fn enter_schedule(&mut self, priority: Priority, due: Timestamp, id: RowId, now: Timestamp) {
        self.schedule[usize::from(priority.get())].insert((due, id));
        // Those who wait have timers for what they knew of; a lease that ends after all of these timers is no news.
        if due <= now || due < self.waiting_until {
            self.wake();
        }
    }

    fn leave_schedule(&mut self, priority: Priority, due: Timestamp, id: RowId) {
        self.schedule[usize::from(priority.get())].remove(&(due, id));
    }

    pub(super) fn wake(&mut self) {
        self.waiting_until = Timestamp::EPOCH;
        self.changed.notify_waiters();
    }

    /// The row that is next in turn, if one is due.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<RowId> {
        if self.paused {
            return None;
        }
        let mut heads = self.schedule.iter().rev().filter_map(|set| set.first()).filter(|(due, _)| *due <= now);
        let head = if self.claims % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1 { heads.min() } else { heads.next() };
        head.map(|(_, id)| *id)
    }

    /// Whether this row may be received now.
    pub(super) fn is_due(&self, id: RowId, now: Timestamp) -> bool {
        !self.paused
            && self.rows.get(&id).is_some_and(|row| {
                let due = row.next_attempt_at();
                due <= now && self.schedule[usize::from(row.message.priority.get())].contains(&(due, id))
            })
    }

    pub(super) fn count_claim(&mut self) {
        self.claims = self.claims.wrapping_add(1);
    }

    /// The first time after `after` at which a row becomes due, remembered as what those who wait know of.
    pub(super) fn next_wake_up(&mut self, after: Timestamp) -> Timestamp {
        let next = if self.paused {
            None
        } else {
            let later = (after, RowId::MAX);
            self.schedule.iter().filter_map(|set| set.range(later..).map(|(due, _)| *due).next()).min()
        };
        let next = next.unwrap_or(Timestamp::MAX);
        self.waiting_until = self.waiting_until.max(next);
        next
    }
}
