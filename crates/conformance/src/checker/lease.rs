//! Bounds of the end of a lease.

use std::time::Duration;

use postrider_core::Timestamp;

use super::index::{Delivered, Settled};
use super::{CheckOptions, LeaseScope};

/// The bounds of one lease's end.
#[derive(Debug, Clone)]
pub(super) struct LeaseBounds {
    /// Until then it was certainly held: it had not expired, and its holder had not begun to end it.
    pub(super) held_until: Timestamp,
    /// By then it had certainly expired, if nothing ended it before.
    pub(super) over_by: Timestamp,
    /// Extensions, by their position in the delivery's list, that were accepted after the lease had expired.
    pub(super) late_extends: Vec<usize>,
}

impl Default for LeaseBounds {
    fn default() -> Self {
        Self { held_until: Timestamp::from_micros(i64::MIN), over_by: Timestamp::MAX, late_extends: Vec::new() }
    }
}

/// The bounds of a delivery's lease. Its extensions must be sorted by their start.
pub(super) fn bounds(delivered: &Delivered<'_>, settles: &[Settled<'_>], options: &CheckOptions) -> LeaseBounds {
    let CheckOptions { tolerance, time_resolution, .. } = *options;
    let earliest = |start: Timestamp, length| start.saturating_add(length).saturating_sub(tolerance);
    let latest =
        |end: Timestamp, length| end.saturating_add(round_up(length, time_resolution)).saturating_add(tolerance);
    let mut held_until = earliest(delivered.span.start, delivered.visibility);
    let mut over_by = latest(delivered.span.end, delivered.visibility);
    // An extension without an answer can take effect at any time while the lease lives: it may shorten the lease to its
    // own length, or lengthen it by as much.
    let mut shortened_to = Timestamp::MAX;
    let mut lengthened_by = Duration::ZERO;
    let mut extended_by = None;
    let mut late_extends = Vec::new();
    for (position, extend) in delivered.extends.iter().enumerate() {
        let from = earliest(extend.span.start, extend.extension);
        if !extend.done {
            shortened_to = shortened_to.min(from);
            let more = round_up(extend.extension, time_resolution);
            lengthened_by = lengthened_by.saturating_add(more).saturating_add(tolerance);
            continue;
        }
        if extend.span.start > over_by.saturating_add(lengthened_by) {
            late_extends.push(position);
            continue;
        }
        let to = latest(extend.span.end, extend.extension);
        if extended_by.is_none_or(|by| by < extend.span.start) {
            (held_until, over_by) = (from, to);
        } else {
            // Of two overlapping extensions either may have been the last.
            (held_until, over_by) = (held_until.min(from), over_by.max(to));
        }
        extended_by = extended_by.max(Some(extend.span.end));
    }
    held_until = held_until.min(shortened_to);
    over_by = over_by.saturating_add(lengthened_by);
    let given_up =
        delivered.settles.iter().map(|position| settles[*position].span.start).chain(delivered.dropped).min();
    if let Some(given_up) = given_up {
        held_until = held_until.min(given_up);
    }
    if options.leases == LeaseScope::Connections {
        let used = delivered.settles.iter().map(|position| &settles[*position]).filter(|settled| settled.is_done());
        let used = used.map(|settled| settled.span.start);
        let extended = delivered.extends.iter().filter(|extend| extend.done).map(|extend| extend.span.start);
        held_until = held_until.min(used.chain(extended).max().unwrap_or(delivered.span.start));
    }
    LeaseBounds { held_until, over_by, late_extends }
}

/// A duration rounded up to the store's resolution.
pub(super) fn round_up(length: Duration, resolution: Duration) -> Duration {
    let unit = resolution.as_nanos().max(1);
    let nanos = length.as_nanos().div_ceil(unit).saturating_mul(unit);
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}
