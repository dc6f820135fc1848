//! When calls took effect, as far as callers can know.

use std::time::Duration;

use postrider_core::Timestamp;

/// The interval in which a call took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Timestamp,
    /// [`Timestamp::MAX`] for a call without an answer: it may still be on its way.
    pub(super) end: Timestamp,
}

impl Span {
    /// Whether this certainly took effect before the other. Clocks tick in microseconds, so equal times have no order.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.end < other.start
    }
}

/// A send or a redrive that may have put a message into a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) event: usize,
    pub(super) span: Span,
    pub(super) delay: Duration,
}

/// Bulk redrives with an unknown outcome: their number and the first one.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct UnknownRedrives {
    pub(super) count: u32,
    /// The first one: its start and its position in the history.
    first: Option<(Timestamp, usize)>,
}

impl UnknownRedrives {
    pub(super) fn add(&mut self, start: Timestamp, event: usize) {
        self.count += 1;
        self.first = Some(self.first.map_or((start, event), |first| first.min((start, event))));
    }

    /// The first one, which may have taken effect at any time from its start on.
    pub(super) fn first(&self) -> Option<Arrival> {
        let (start, event) = self.first?;
        Some(Arrival { event, span: Span { start, end: Timestamp::MAX }, delay: Duration::ZERO })
    }

    /// Whether one may have taken effect by then.
    pub(super) fn possible_by(&self, time: Timestamp) -> bool {
        self.first.is_some_and(|(start, _)| start <= time)
    }
}

/// Removals from a queue, sorted for a binary search of the first one that can have removed a message.
#[derive(Debug, Default)]
pub(super) struct Removals(Vec<Span>);

impl Removals {
    pub(super) fn add(&mut self, span: Span) {
        self.0.push(span);
    }

    /// Sorts by end, and gives each the earliest start among itself and later ends.
    pub(super) fn finish(&mut self) {
        self.0.sort_by_key(|span| span.end);
        let mut earliest = Timestamp::MAX;
        for span in self.0.iter_mut().rev() {
            earliest = earliest.min(span.start);
            span.start = earliest;
        }
    }

    /// The earliest time at which a message that arrived at `arrival` or later can have been removed.
    pub(super) fn earliest(&self, arrival: Timestamp) -> Option<Timestamp> {
        let first = self.0.partition_point(|span| span.end < arrival);
        self.0.get(first).map(|span| span.start)
    }
}

/// The possible redrives of a message.
#[derive(Debug, Default)]
pub(super) struct Redrives {
    spans: Vec<Span>,
    /// For each, the latest end so far.
    latest_end: Vec<Timestamp>,
    /// The latest start of an answered one.
    last_certain: Option<Timestamp>,
}

impl Redrives {
    pub(super) fn add(&mut self, span: Span) {
        if span.end < Timestamp::MAX {
            self.last_certain = self.last_certain.max(Some(span.start));
        }
        self.spans.push(span);
    }

    pub(super) fn finish(&mut self) {
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

    /// Whether one certainly took effect after that time.
    pub(super) fn certain_after(&self, time: Timestamp) -> bool {
        self.last_certain.is_some_and(|start| start > time)
    }

    /// Whether one may have taken effect between those times.
    pub(super) fn possible_between(&self, from: Timestamp, to: Timestamp) -> bool {
        let begun = self.spans.partition_point(|span| span.start <= to);
        begun.checked_sub(1).is_some_and(|last| self.latest_end[last] >= from)
    }
}
