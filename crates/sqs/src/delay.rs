//! Delays that are longer than SQS's longest, and times in whole seconds.
//!
//! A message without keys waits in hops: it is sent with SQS's longest delay and a note of the remaining one, and the
//! receiver sends it again. A message with keys keeps its position in its group, so a receiver hides it until it is due.

use std::time::Duration;

use postrider_core::Timestamp;

/// SQS's longest delay of a message.
const LONGEST_HOP: Duration = Duration::from_secs(900);

/// Longest time that SQS hides a message, counted from its receive.
pub(crate) const LONGEST_HIDE: Duration = Duration::from_secs(12 * 3600);

/// SQS's longest retention.
pub(crate) const RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// Time that is left to handle a message after its delay, before SQS drops it.
const TIME_TO_HANDLE: Duration = Duration::from_secs(2 * 24 * 3600);

/// Longest delay of a message: the delay in a FIFO queue counts towards the retention.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(RETENTION.as_secs() - TIME_TO_HANDLE.as_secs());

/// Converts to whole seconds, rounded up.
pub(crate) fn seconds(duration: Duration) -> i32 {
    let whole = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// Converts from SQS's seconds.
pub(crate) fn from_seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.unsigned_abs().into())
}

/// Splits a delay into SQS's delay of the first hop and the remaining one.
pub(crate) fn first_hop(wait: Duration) -> (i32, Duration) {
    (seconds(wait.min(LONGEST_HOP)), wait.saturating_sub(LONGEST_HOP))
}

/// Remaining delay of a received message without keys. `wait` is the remaining delay after a hop of SQS's longest delay;
/// the time since the end of that hop counts too.
pub(crate) fn left_on_standard(wait: Duration, sent_at: Timestamp, now: Timestamp) -> Duration {
    wait.saturating_sub(now.since(sent_at.saturating_add(LONGEST_HOP)))
}

/// Number of receives that only hid a message with keys because it was not due: they do not count as deliveries.
pub(crate) fn hides(first_received_at: Timestamp, due: Timestamp) -> u32 {
    let early = due.since(first_received_at).as_micros();
    u32::try_from(early.div_ceil(LONGEST_HIDE.as_micros())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_nanos(1)), 1);
        assert_eq!(seconds(Duration::from_millis(1001)), 2);
        assert_eq!(seconds(Duration::from_secs(43200)), 43200);
        assert_eq!(seconds(Duration::MAX), i32::MAX);
    }

    #[test]
    fn a_long_delay_is_hops_that_add_up_to_it() {
        assert_eq!(first_hop(Duration::ZERO), (0, Duration::ZERO));
        assert_eq!(first_hop(Duration::from_millis(200)), (1, Duration::ZERO));
        assert_eq!(first_hop(Duration::from_secs(900)), (900, Duration::ZERO));
        let (mut wait, mut waited, mut hops) = (HOUR + Duration::from_millis(1), Duration::ZERO, 0);
        while !wait.is_zero() {
            let (delay, left) = first_hop(wait);
            waited += Duration::from_secs(delay.unsigned_abs().into());
            wait = left;
            hops += 1;
        }
        assert_eq!((hops, waited), (5, HOUR + Duration::from_secs(1)));
    }

    #[test]
    fn a_late_receive_shortens_the_remaining_delay() {
        let sent_at = Timestamp::from_micros(0);
        let at = |seconds: u64| sent_at.saturating_add(Duration::from_secs(seconds));
        assert_eq!(left_on_standard(HOUR, sent_at, at(900)), HOUR);
        // Received by a clock that is behind: never early.
        assert_eq!(left_on_standard(HOUR, sent_at, at(0)), HOUR);
        assert_eq!(left_on_standard(HOUR, sent_at, at(960)), HOUR - Duration::from_secs(60));
        assert_eq!(left_on_standard(HOUR, sent_at, at(9999)), Duration::ZERO);
        assert_eq!(left_on_standard(Duration::ZERO, sent_at, at(1)), Duration::ZERO);
    }

    #[test]
    fn receives_that_only_hide_are_not_deliveries() {
        let first = Timestamp::from_micros(0);
        let due = |after: Duration| first.saturating_add(after);
        assert_eq!(hides(first, first), 0);
        assert_eq!(hides(due(HOUR), first), 0);
        assert_eq!(hides(first, due(Duration::from_secs(1))), 1);
        assert_eq!(hides(first, due(HOUR * 11)), 1);
        assert_eq!(hides(first, due(HOUR * 30)), 3);
    }
}
