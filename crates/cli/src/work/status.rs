//! How it goes with a queue's messages, for the line on a terminal.

use postrider::subscriber::{AckPolicy, Counts, HealthState, Monitor};

use super::tally::Tally;
use crate::command::Look;

/// Looks at the worker.
pub(super) fn look(monitor: Monitor, policy: AckPolicy) -> impl Fn() -> Look {
    move || seen(&monitor.counts(), monitor.health().state, policy)
}

fn seen(counts: &Counts, state: HealthState, policy: AckPolicy) -> Look {
    let tally = Tally::of(counts, policy);
    let remark = match state {
        HealthState::Failing => "; the store does not answer",
        HealthState::Stopping => "; finishing",
        _ => "",
    };
    Look { counts: format!("{} running, {tally}", counts.in_flight), handled: tally.handled(), remark }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_runs_what_was_done_and_what_is_wrong() {
        let mut counts = Counts::default();
        let look = |counts: &Counts, state| seen(counts, state, AckPolicy::NackOnError);
        let told = look(&counts, HealthState::Starting);
        let expected = "0 running, 0 done, 0 retried, 0 dead, 0 lost";
        assert_eq!(told, Look { counts: expected.into(), handled: 0, remark: "" });
        (counts.in_flight, counts.acked, counts.retried) = (3, 18, 2);
        let told = look(&counts, HealthState::Failing);
        let expected = "3 running, 18 done, 2 retried, 0 dead, 0 lost";
        assert_eq!(told, Look { counts: expected.into(), handled: 20, remark: "; the store does not answer" });
    }
}
