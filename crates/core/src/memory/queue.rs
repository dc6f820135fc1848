//! A queue in memory: its rows, and indexes for the next row to claim.
//!
//! Like in a table with one visibility column, a row has one time at which it can next be received: its due time while
//! it waits, the end of its lease while it is leased. So an expired lease needs no action: the row is due again.
//! `schedule` has these times, one set for each priority, for the rows that can be received at all: a row with an
//! ordering key is added when it becomes the head of its key.

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

/// Every how many claims the oldest due row goes first regardless of its priority, so that none starves.
const OLDEST_FIRST_EVERY: u64 = 16;

/// A row number: ascending in send order, and unique in a store.
pub(super) type RowId = u64;

/// A message in a queue.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) message: Message,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) phase: Phase,
    /// The record of a dead letter.
    pub(super) death: Option<Death>,
    /// The last failed attempts, oldest first.
    pub(super) failures: VecDeque<MessageAttempt>,
}

/// Waiting, or leased (the lease can have expired).
#[derive(Debug)]
pub(super) enum Phase {
    Waiting(Waiting),
    Leased(Lifecycle<Processing>),
}

/// The record of a dead letter.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) lifecycle: Lifecycle<Failed>,
    /// Number of edits since.
    pub(super) revision: u32,
}

impl Row {
    pub(super) fn record(&self) -> &Record {
        match &self.phase {
            Phase::Waiting(waiting) => waiting.record(),
            Phase::Leased(lifecycle) => lifecycle.record(),
        }
    }

    /// When the row can next be received.
    pub(super) fn next_attempt_at(&self) -> Timestamp {
        match &self.phase {
            Phase::Waiting(waiting) => waiting.next_attempt_at(),
            Phase::Leased(lifecycle) => lifecycle.state().lease_expires_at,
        }
    }

    pub(super) fn is_leased(&self, now: Timestamp) -> bool {
        matches!(&self.phase, Phase::Leased(lifecycle) if lifecycle.is_leased(now))
    }

    /// Whether the message has expired without a valid lease: it no longer counts, although it is not dead-lettered
    /// yet.
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

    /// Records a failed attempt. A dead letter keeps the attempts that it had.
    pub(super) fn record_failure(&mut self, worker: Option<&str>, error: Option<&str>, now: Timestamp) {
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

    /// Replaces the phase of the row.
    pub(super) fn change(&mut self, transition: impl FnOnce(Phase) -> Phase) {
        // A placeholder for the moment of the transition; creating it allocates nothing.
        let placeholder = Phase::Waiting(Waiting::Pending(Lifecycle::begin(Timestamp::MAX, Timestamp::MAX)));
        self.phase = transition(mem::replace(&mut self.phase, placeholder));
    }
}

impl Phase {
    /// Turns an expired lease into a waiting message.
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
    /// Set by a send or `ensure_queue`. A queue that only has waiting receivers does not exist yet.
    pub(super) exists: bool,
    pub(super) paused: bool,
    /// Boxed, because the tree moves its entries when it grows and shrinks.
    pub(super) rows: BTreeMap<RowId, Box<Row>>,
    schedule: [BTreeSet<(Timestamp, RowId)>; Priority::COUNT],
    /// The rows of each key, in send order. A dead-letter queue does not order messages and has none.
    keys: HashMap<Key, BTreeSet<RowId>>,
    dedup: HashMap<Key, RowId>,
    ids: BTreeSet<(MessageId, RowId)>,
    claims: u64,
    /// Notifies receivers that a message may be receivable, or that they must wake up earlier.
    pub(super) changed: Arc<Notify>,
    /// The latest time at which a receiver will look again without a notification.
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

    /// Removes everything. The entry itself stays for waiting receivers.
    pub(super) fn clear(&mut self) {
        let changed = self.changed.clone();
        *self = Self { changed, ..Self::new(self.name.clone()) };
        self.wake();
    }

    fn orders_keys(&self) -> bool {
        !self.name.holds_dead_letters()
    }

    /// The row with this dedup key.
    pub(super) fn dedup_holder(&self, key: &Key) -> Option<(RowId, &Row)> {
        let id = *self.dedup.get(key)?;
        Some((id, self.rows.get(&id)?))
    }

    /// The rows with this message id, in send order. More than one only if a sender used an id twice.
    pub(super) fn rows_of(&self, id: MessageId) -> impl Iterator<Item = RowId> + '_ {
        self.ids.range((id, 0)..=(id, RowId::MAX)).map(|(_, row)| *row)
    }

    pub(super) fn insert(&mut self, id: RowId, row: Row, now: Timestamp) {
        self.ids.insert((row.message.id, id));
        let is_head = match &row.message.ordering_key {
            Some(key) if self.orders_keys() => {
                let rows = self.keys.entry(key.clone()).or_default();
                rows.insert(id);
                rows.first() == Some(&id)
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

    /// Removes a row. If it was the head of its key, the next row becomes the head.
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
            self.leave_key(&key.clone(), id, now);
        }
        Some(row)
    }

    fn leave_key(&mut self, key: &Key, id: RowId, now: Timestamp) {
        let Some(rows) = self.keys.get_mut(key) else { return };
        let was_head = rows.first() == Some(&id);
        rows.remove(&id);
        let next = rows.first().copied();
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

    /// Records a failed attempt of a row.
    pub(super) fn record_failure(&mut self, id: RowId, worker: Option<&str>, error: Option<&str>, now: Timestamp) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.record_failure(worker, error, now);
        }
    }

    /// Changes a scheduled row and updates its time in the schedule.
    pub(super) fn reschedule(&mut self, id: RowId, now: Timestamp, transition: impl FnOnce(Phase) -> Phase) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let priority = row.message.priority;
        let before = row.next_attempt_at();
        row.change(transition);
        let after = row.next_attempt_at();
        self.leave_schedule(priority, before, id);
        self.enter_schedule(priority, after, id, now);
    }

    /// Changes a row that may be unscheduled, because it is not the head of its key.
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
        // Waiting receivers have timers for the times that they know; a later time need not wake them.
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

    /// The next row to claim, if one is due.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<RowId> {
        if self.paused {
            return None;
        }
        let mut heads = self.schedule.iter().rev().filter_map(|set| set.first()).filter(|(due, _)| *due <= now);
        let head = if self.claims % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1 { heads.min() } else { heads.next() };
        head.map(|(_, id)| *id)
    }

    /// Whether the row can be received now.
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

    /// The first time after `after` at which a row becomes due. The caller will wait until then.
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
