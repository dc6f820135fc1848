//! Counts of messages by outcome.

use std::fmt;
use std::time::Duration;

use postrider::subscriber::{AckPolicy, Counts, StopReport};

use crate::command::rate;

/// Number of messages by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    done: u64,
    /// Failed ones among `done`, under a policy that ignores the exit code.
    failed: u64,
    retried: u64,
    dead: u64,
    lost: u64,
    released: u64,
    abandoned: u64,
}

impl Tally {
    pub(super) fn of(counts: &Counts, policy: AckPolicy) -> Self {
        let ignores_failures = matches!(policy, AckPolicy::Ack | AckPolicy::AckFirst);
        Self {
            done: counts.acked,
            failed: if ignores_failures { counts.failed } else { 0 },
            retried: counts.retried,
            dead: counts.dead,
            // Another worker has the message or will get it.
            lost: counts.lost + counts.unknown + counts.refused,
            released: counts.released,
            abandoned: counts.abandoned,
        }
    }

    /// Messages that were handled to an end.
    pub(super) fn handled(&self) -> u64 {
        self.done + self.retried + self.dead
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, failed, retried, dead, lost, released, abandoned } = self;
        write!(f, "{done} done")?;
        if *failed > 0 {
            write!(f, " ({failed} of them failed)")?;
        }
        write!(f, ", {retried} retried, {dead} dead, {lost} lost")?;
        if *released > 0 {
            write!(f, ", {released} released")?;
        }
        if *abandoned > 0 {
            write!(f, ", {abandoned} abandoned")?;
        }
        Ok(())
    }
}

/// The last line of a worker.
pub(super) fn summary(report: &StopReport, policy: AckPolicy, took: Duration) -> String {
    let mut tally = Tally::of(&report.totals, policy);
    tally.lost += report.unsettled;
    let seconds = took.as_secs_f64();
    // Over less than a second, a rate would only measure the start of a process.
    let rate = if seconds < 1.0 { String::new() } else { format!(", {}", rate(tally.handled(), took)) };
    format!("{tally} in {seconds:.1} s{rate}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let mut counts = Counts::default();
        (counts.acked, counts.failed, counts.retried, counts.dead) = (2, 3, 1, 4);
        (counts.lost, counts.unknown, counts.refused) = (1, 1, 1);
        counts
    }

    #[test]
    fn rare_outcomes_are_shown_only_if_there_are_any() {
        let shown = |counts: &Counts, policy| Tally::of(counts, policy).to_string();
        assert_eq!(shown(&Counts::default(), AckPolicy::Ack), "0 done, 0 retried, 0 dead, 0 lost");
        assert_eq!(shown(&counts(), AckPolicy::NackOnError), "2 done, 1 retried, 4 dead, 3 lost");
        let mut counts = counts();
        (counts.released, counts.abandoned) = (5, 6);
        assert_eq!(
            shown(&counts, AckPolicy::AckFirst),
            "2 done (3 of them failed), 1 retried, 4 dead, 3 lost, 5 released, 6 abandoned"
        );
        assert_eq!(Tally::of(&counts, AckPolicy::NackOnError).handled(), 7);
    }
}
