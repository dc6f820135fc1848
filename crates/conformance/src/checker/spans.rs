//! When things took effect, as far as can be told from outside.

use std::time::Duration;

use postrider_core::Timestamp;

/// The moments between which something took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Timestamp,
    /// [`Timestamp::MAX`] for a call without an answer: it may still be on its way.
    pub(super) end: Timestamp,
}

impl Span {
    /// Whether this took effect before the other for certain. Clocks tick in microseconds, so that two times that
    /// are equal have no order.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.end < other.start
    }
}

/// A send or a redrive that may have put a message into a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Birth {
    pub(super) event: usize,
    pub(super) span: Span,
    pub(super) delay: Duration,
}

/// How many there were, and since when.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LooseRedrives {
    pub(super) count: u32,
    /// The first one: its start and its place in the history.
    first: Option<(Timestamp, usize)>,
}

impl LooseRedrives {
    pub(super) fn add(&mut self, start: Timestamp, event: usize) {
        self.count += 1;
        self.first = Some(self.first.map_or((start, event), |first| first.min((start, event))));
    }

    /// The first one. From its start on, each moment may have been one's.
    pub(super) fn first(&self) -> Option<Birth> {
        let (start, event) = self.first?;
        Some(Birth { event, span: Span { start, end: Timestamp::MAX }, delay: Duration::ZERO })
    }

    /// Whether one may have happened by then.
    pub(super) fn possible_by(&self, time: Timestamp) -> bool {
        self.first.is_some_and(|(start, _)| start <= time)
    }
}

/// Removals from a queue, sorted so that the first one that can have touched a message is found at once.
#[derive(Debug, Default)]
pub(super) struct Removals(Vec<Span>);

impl Removals {
    pub(super) fn add(&mut self, span: Span) {
        self.0.push(span);
    }

    /// Sorts by end, and gives each the earliest start among itself and those that end later.
    pub(super) fn seal(&mut self) {
        self.0.sort_by_key(|span| span.end);
        let mut earliest = Timestamp::MAX;
        for span in self.0.iter_mut().rev() {
            earliest = earliest.min(span.start);
            span.start = earliest;
        }
    }

    /// The earliest moment at which a message that was born at `birth` or later can have been removed.
    pub(super) fn earliest(&self, birth: Timestamp) -> Option<Timestamp> {
        let first = self.0.partition_point(|span| span.end < birth);
        self.0.get(first).map(|span| span.start)
    }
}

/// When a message may have been redriven.
#[derive(Debug, Default)]
pub(super) struct Redrives {
    spans: Vec<Span>,
    /// For each, the latest end so far.
    latest_end: Vec<Timestamp>,
    /// The latest start of one that was answered.
    last_certain: Option<Timestamp>,
}

impl Redrives {
    pub(super) fn add(&mut self, span: Span) {
        if span.end < Timestamp::MAX {
            self.last_certain = self.last_certain.max(Some(span.start));
        }
        self.spans.push(span);
    }

    pub(super) fn seal(&mut self) {
        self.spans.sort_by_key(|span| span.start);
        let ends = self.spans.iter().map(|span| span.end);
        let latest = ends.scan(None, |latest, end| {
            *latest = (*latest).max(Some(end));
            *latest
        });
        self.latest_end = latest.collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// By the start.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether one may have taken effect by then.
    pub(super) fn possible_by(&self, time: Timestamp) -> bool {
        self.spans.first().is_some_and(|first| first.start <= time)
    }

    /// Whether one took effect after that for certain.
    pub(super) fn certain_after(&self, time: Timestamp) -> bool {
        self.last_certain.is_some_and(|start| start > time)
    }

    /// Whether one may have taken effect in that time.
    pub(super) fn possible_between(&self, from: Timestamp, to: Timestamp) -> bool {
        let begun = self.spans.partition_point(|span| span.start <= to);
        begun.checked_sub(1).is_some_and(|last| self.latest_end[last] >= from)
    }
}
