//! The record of all calls to a provider and their outcomes.
//!
//! A history is taken from outside: it has the start and the answer of each call, and nothing of the store. Every
//! process writes its own; histories can be merged, because all times come from the host's clock.

mod event;
mod journal;

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Clock, SystemClock, Timestamp};

use journal::Journal;

pub use event::{
    BodyHash, DeadRecord, DeleteCall, Delivery, Dropped, EditCall, Event, ExtendCall, FinalState, LeaseOutcome,
    Operation, Outcome, PurgeCall, Purged, ReceiveCall, RedriveCall, Selection, SendCall, SettleCall,
};

/// A history that is being written. Clones write to the same history.
#[derive(Debug, Clone)]
pub struct History {
    clock: Arc<dyn Clock>,
    stamps: Arc<Stamps>,
    // One lock for all: it is held for a push, which is far shorter than any recorded call.
    events: Arc<Mutex<Vec<Event>>>,
    /// The file that gets the events instead.
    journal: Option<Arc<Journal>>,
}

/// A call that has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    start: Timestamp,
    /// Its number in the journal, if there is one.
    call: u64,
}

impl History {
    /// An empty history on the host's clock, which follows tokio's paused time.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// An empty history on another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, stamps: Arc::default(), events: Arc::default(), journal: None }
    }

    /// An empty history that is written to a file and not kept in memory: a killed process leaves its finished calls and,
    /// with unknown outcomes, its unfinished ones. [`History::read_journal`] reads it.
    pub fn journaled(path: &Path) -> io::Result<Self> {
        Ok(Self { journal: Some(Arc::new(Journal::create(path)?)), ..Self::new() })
    }

    /// Reads the events of a [journaled](History::journaled) history; none if there is no file.
    pub fn read_journal(path: &Path) -> io::Result<Vec<Event>> {
        journal::read(path)
    }

    /// The time for an event: never the same twice, so that two successive calls have an order even where the clock
    /// stands still.
    pub fn now(&self) -> Timestamp {
        self.stamps.next(self.clock.now())
    }

    /// How far event times have run ahead of the clock to stay distinct. The checker's tolerance must include it.
    pub fn lead(&self) -> Duration {
        Duration::from_micros(self.stamps.lead.load(Ordering::SeqCst))
    }

    /// Adds the events of a call that began at `start` and ends now.
    pub fn record_call(&self, worker: u32, start: Timestamp, operations: impl IntoIterator<Item = Operation>) {
        let call = self.journal.as_ref().map_or(0, |journal| journal.next_call());
        self.end_call(worker, Begun { start, call }, operations);
    }

    /// Records the start of a call. Until [`end_call`](Self::end_call) a journal has it as `operations` with unknown
    /// outcomes.
    pub(crate) fn begin_call(&self, worker: u32, operations: impl FnOnce() -> Vec<Operation>) -> Begun {
        let start = self.now();
        let Some(journal) = &self.journal else { return Begun { start, call: 0 } };
        let begun = Begun { start, call: journal.next_call() };
        let events = operations().into_iter().map(|operation| Event { worker, start, end: start, operation });
        journal.write(begun.call, &events.collect::<Vec<_>>());
        begun
    }

    /// Adds the events of a call that ends now.
    pub(crate) fn end_call(&self, worker: u32, begun: Begun, operations: impl IntoIterator<Item = Operation>) {
        let Begun { start, call } = begun;
        let end = self.now();
        let events = operations.into_iter().map(|operation| Event { worker, start, end, operation });
        match &self.journal {
            None => self.lock().extend(events),
            Some(journal) => journal.write(call, &events.collect::<Vec<_>>()),
        }
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// All events so far, by start time.
    pub fn events(&self) -> Vec<Event> {
        merge([self.lock().clone()])
    }

    /// Writes all events so far, one JSON object a line.
    pub fn write_to(&self, mut to: impl Write) -> io::Result<()> {
        for event in self.events() {
            serde_json::to_writer(&mut to, &event)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }

    /// Reads what [`History::write_to`] wrote; empty lines are skipped.
    pub fn read_from(from: impl BufRead) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        for (number, line) in from.lines().enumerate() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let event = serde_json::from_str(&line).map_err(|error| {
                let text = format!("line {} is not an event of a history: {error}", number + 1);
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            events.push(event);
        }
        Ok(events)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        // A push leaves the list valid, also when a thread panics.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns times, each later than the one before.
#[derive(Debug, Default)]
struct Stamps {
    last: AtomicI64,
    lead: AtomicU64,
}

impl Stamps {
    fn next(&self, clock: Timestamp) -> Timestamp {
        let clock = clock.as_micros();
        let later = |last: i64| last.saturating_add(1).max(clock);
        // One atomic for all threads: its order is the order of starts and ends of calls.
        let last = match self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(later(last))) {
            Ok(last) | Err(last) => last,
        };
        let stamp = later(last);
        self.lead.fetch_max(stamp.abs_diff(clock), Ordering::SeqCst);
        Timestamp::from_micros(stamp)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

/// Merges histories by start time.
pub fn merge(histories: impl IntoIterator<Item = Vec<Event>>) -> Vec<Event> {
    let mut events: Vec<Event> = histories.into_iter().flatten().collect();
    events.sort_by_key(|event| (event.start, event.end, event.worker));
    events
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, LeaseToken, ManualClock, MessageId, Nack, QueueName};

    use super::*;

    fn queue() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    #[test]
    fn no_two_times_are_the_same_and_the_lead_is_known() {
        let clock = ManualClock::default();
        let history = History::with_clock(Arc::new(clock.clone()));
        let times: Vec<_> = (0..10).map(|_| history.now()).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
        assert_eq!(history.lead(), Duration::from_micros(9));
        clock.advance(Duration::from_secs(1));
        assert_eq!(history.now(), clock.now(), "a clock that moves on is followed");
    }

    fn one_of_each(id: MessageId) -> Vec<Operation> {
        let queue = queue();
        let token = LeaseToken(u128::MAX - 5);
        let delivery = Delivery {
            id,
            token,
            receive_count: 1,
            attempts_count: 0,
            ordering_key: Some("k".into()),
            body_hash: BodyHash::of(b"body"),
        };
        let dead = DeadRecord {
            id,
            origin: queue.clone(),
            reason: "rejected".into(),
            deliveries_count: 2,
            body_hash: BodyHash::of(b""),
        };
        vec![
            Operation::Send(SendCall {
                queue: queue.clone(),
                id,
                ordering_key: None,
                dedup_key: Some("d".into()),
                delay: Duration::from_micros(1),
                expires_in: Some(Duration::from_secs(3)),
                expires_at: Some(Timestamp::from_micros(7)),
                body_hash: BodyHash::of(b"body"),
                row: 2,
                batch: MessageId::generate(),
                outcome: Outcome::Done(id),
            }),
            Operation::Receive(ReceiveCall {
                queue: queue.dead_letters(),
                visibility: Duration::from_secs(30),
                max_receive_count: 3,
                outcome: Outcome::Done(vec![delivery]),
            }),
            Operation::Settle(SettleCall {
                queue: queue.clone(),
                id,
                token,
                disposition: Disposition::Nack(Nack::retry_after(Duration::from_millis(5))),
                outcome: LeaseOutcome::Expired,
            }),
            Operation::Extend(ExtendCall {
                queue: queue.clone(),
                id,
                token,
                extension: Duration::from_secs(1),
                outcome: LeaseOutcome::Failed("no".into()),
            }),
            Operation::Dropped(Dropped { queue: queue.clone(), id, token }),
            Operation::Redrive(RedriveCall {
                queue: queue.clone(),
                to: None,
                selection: Selection::Ids(vec![id]),
                outcome: Outcome::Unknown,
            }),
            Operation::Purge(PurgeCall {
                queue: queue.clone(),
                what: Purged::DeadLetters(Selection::Reason("expired".into())),
                outcome: Outcome::Done(4),
            }),
            Operation::Edit(EditCall { queue: queue.clone(), id, body_hash: None, outcome: Outcome::Done(()) }),
            Operation::Delete(DeleteCall { queue: queue.clone(), outcome: Outcome::Unknown }),
            Operation::Final(FinalState { queue, dead_letters: vec![dead], live: Some(vec![id]) }),
        ]
    }

    #[test]
    fn every_kind_of_event_survives_its_line() {
        let history = History::new();
        let start = history.now();
        history.record_call(7, start, one_of_each(MessageId::generate()));
        let mut lines = Vec::new();
        history.write_to(&mut lines).unwrap();
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 10);
        assert_eq!(History::read_from(&lines[..]).unwrap(), history.events());
        let text = String::from_utf8(lines).unwrap();
        assert!(text.contains("\"token\":\"fffffffffffffffffffffffffffffffa\""), "{text}");
    }

    #[test]
    fn an_invalid_line_is_named() {
        let error = History::read_from(&b"\n{\"worker\":1}\n"[..]).unwrap_err();
        assert!(error.to_string().starts_with("line 2 is not an event"), "{error}");
    }

    #[test]
    fn histories_of_several_processes_become_one_by_time() {
        let clock = ManualClock::default();
        let histories: Vec<_> = (0..2).map(|_| History::with_clock(Arc::new(clock.clone()))).collect();
        for round in 0..6 {
            let dropped =
                Operation::Dropped(Dropped { queue: queue(), id: MessageId::generate(), token: LeaseToken(round) });
            let history = &histories[usize::from(round % 2 == 0)];
            let start = history.now();
            clock.advance(Duration::from_micros(1));
            history.record_call(0, start, [dropped]);
        }
        let merged = merge(histories.iter().map(History::events));
        let tokens: Vec<_> = merged
            .iter()
            .map(|event| match &event.operation {
                Operation::Dropped(dropped) => dropped.token.0,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
        assert!(merged.iter().all(|event| event.end.since(event.start) == Duration::from_micros(1)));
    }

    #[test]
    fn clones_and_threads_write_into_one_history() {
        let history = History::new();
        assert!(history.is_empty());
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let history = history.clone();
                scope.spawn(move || {
                    for _ in 0..250 {
                        let start = history.now();
                        history.record_call(worker, start, one_of_each(MessageId::generate()));
                    }
                });
            }
        });
        assert_eq!(history.len(), 10_000);
    }

    #[test]
    fn a_journal_keeps_unanswered_calls() {
        let folder = std::env::temp_dir().join(format!("postrider-journal-{}", MessageId::generate()));
        let history = History::journaled(&folder).unwrap();
        let token = LeaseToken(1);
        let settle = |outcome| {
            let (id, disposition) = (MessageId::from_uuid(uuid::Uuid::nil()), Disposition::Ack);
            Operation::Settle(SettleCall { queue: queue(), id, token, disposition, outcome })
        };
        let answered = history.begin_call(1, || vec![settle(LeaseOutcome::Unknown)]);
        history.begin_call(1, || vec![settle(LeaseOutcome::Unknown)]);
        history.end_call(1, answered, [settle(LeaseOutcome::Done)]);
        assert!(history.is_empty(), "it is in the file");
        // The process is killed in the middle of a line.
        let mut file = std::fs::OpenOptions::new().append(true).open(&folder).unwrap();
        file.write_all(b"[2,[{\"wor").unwrap();
        let events = History::read_journal(&folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        let operations: Vec<_> = events.into_iter().map(|event| event.operation).collect();
        assert_eq!(operations, [settle(LeaseOutcome::Done), settle(LeaseOutcome::Unknown)]);
        assert!(History::read_journal(&folder).unwrap().is_empty());
    }

    #[test]
    fn different_bodies_have_different_hashes() {
        let hashes: std::collections::HashSet<_> = (0..10_000_u32).map(|n| BodyHash::of(&n.to_le_bytes())).collect();
        assert_eq!(hashes.len(), 10_000);
        assert_eq!(BodyHash::of(b"a").to_string(), "af63dc4c8601ec8c");
    }
}
