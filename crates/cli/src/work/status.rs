//! The status line of a worker.

use postrider::subscriber::{AckPolicy, Counts, HealthState, Monitor};

use super::tally::Tally;
use crate::command::Status;

/// Returns the current status at each call.
pub(super) fn status(monitor: Monitor, policy: AckPolicy) -> impl Fn() -> Status {
    move || status_of(&monitor.counts(), monitor.health().state, policy)
}

fn status_of(counts: &Counts, state: HealthState, policy: AckPolicy) -> Status {
    let tally = Tally::of(counts, policy);
    let remark = match state {
        HealthState::Failing => "; the store does not answer",
        HealthState::Stopping => "; finishing",
        _ => "",
    };
    Status { counts: format!("{} running, {tally}", counts.in_flight), handled: tally.handled(), remark }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_counts_and_the_failure_of_the_store() {
        let mut counts = Counts::default();
        let shown = |counts: &Counts, state| status_of(counts, state, AckPolicy::NackOnError);
        let expected = "0 running, 0 done, 0 retried, 0 dead, 0 lost";
        let idle = Status { counts: expected.into(), handled: 0, remark: "" };
        assert_eq!(shown(&counts, HealthState::Starting), idle);
        (counts.in_flight, counts.acked, counts.retried) = (3, 18, 2);
        let expected = "3 running, 18 done, 2 retried, 0 dead, 0 lost";
        let failing = Status { counts: expected.into(), handled: 20, remark: "; the store does not answer" };
        assert_eq!(shown(&counts, HealthState::Failing), failing);
    }
}
