//! What became of all messages, in a line.

use std::fmt;

/// How many messages ended how.
#[derive(Debug, Default)]
pub(super) struct Tally {
    done: u64,
    retried: u64,
    dead: u64,
    lost: u64,
    released: u64,
}

impl Tally {
    /// Counts the outcome of a row.
    pub(super) fn count(&mut self, outcome: &str) {
        let count = match outcome {
            "acked" => &mut self.done,
            "retried" => &mut self.retried,
            "dead_lettered" => &mut self.dead,
            "released" => &mut self.released,
            // Another has the message, or will.
            _ => &mut self.lost,
        };
        *count += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, retried, dead, lost, released } = self;
        write!(f, "{done} done, {retried} retried, {dead} dead, {lost} lost")?;
        if *released > 0 {
            write!(f, ", {released} given back")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_once() {
        let mut tally = Tally::default();
        assert_eq!(tally.to_string(), "0 done, 0 retried, 0 dead, 0 lost");
        for outcome in ["acked", "acked", "retried", "dead_lettered", "lost", "unknown", "unsettled", "released"] {
            tally.count(outcome);
        }
        assert_eq!(tally.to_string(), "2 done, 1 retried, 1 dead, 3 lost, 1 given back");
    }
}
