//! Counts of attempts by outcome.

use std::fmt;
use std::time::Duration;

use crate::command::rate;

/// Number of attempts by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    pub(super) succeeded: u64,
    pub(super) retried: u64,
    pub(super) dead: u64,
    pub(super) canceled: u64,
    pub(super) lost: u64,
    pub(super) released: u64,
}

impl Tally {
    /// Attempts that ran to an end.
    pub(super) fn handled(&self) -> u64 {
        self.succeeded + self.retried + self.dead
    }

    /// The last line of a worker.
    pub(super) fn summary(&self, took: Duration) -> String {
        let seconds = took.as_secs_f64();
        // Over less than a second, a rate would only measure the start of a process.
        let rate = if seconds < 1.0 { String::new() } else { format!(", {}", rate(self.handled(), took)) };
        format!("{self} in {seconds:.1} s{rate}")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { succeeded, retried, dead, canceled, lost, released } = self;
        write!(f, "{succeeded} succeeded, {retried} retried, {dead} dead, {lost} lost")?;
        if *canceled > 0 {
            write!(f, ", {canceled} canceled")?;
        }
        if *released > 0 {
            write!(f, ", {released} released")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canceled_and_released_are_shown_only_if_there_are_any() {
        let tally = Tally { succeeded: 4, retried: 1, ..Tally::default() };
        assert_eq!(tally.summary(Duration::from_millis(500)), "4 succeeded, 1 retried, 0 dead, 0 lost in 0.5 s");
        let tally = Tally { canceled: 2, released: 3, ..tally };
        assert_eq!(
            tally.summary(Duration::from_secs(2)),
            "4 succeeded, 1 retried, 0 dead, 0 lost, 2 canceled, 3 released in 2.0 s, 2.5 a second"
        );
    }
}
