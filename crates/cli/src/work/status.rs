//! A line on a terminal that says how it goes, while it goes.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use postrider::subscriber::{AckPolicy, Counts, HealthState, Monitor};
use tokio::time::Instant;

use super::echo::Echo;
use super::tally::{Tally, rate};

/// A few times a second: more cannot be read.
const REFRESH: Duration = Duration::from_millis(250);
/// The rate is that of the last seconds.
const WINDOW: Duration = Duration::from_secs(5);

/// Whether somebody looks at stderr, on a terminal that can draw a line anew.
pub(super) fn has_spectator() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Keeps the line up to date; never ends.
pub(super) async fn show(monitor: Monitor, policy: AckPolicy, echo: Echo) {
    let mut pace = Pace::default();
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        ticks.tick().await;
        let counts = monitor.counts();
        let state = monitor.health().state;
        echo.status(line(&counts, state, policy, &mut pace, Instant::now()));
    }
}

fn line(counts: &Counts, state: HealthState, policy: AckPolicy, pace: &mut Pace, now: Instant) -> String {
    let tally = Tally::of(counts, policy);
    let rate = pace.rate(now, tally.handled());
    let trouble = match state {
        HealthState::Failing => "; the store does not answer",
        HealthState::Stopping => "; finishing",
        _ => "",
    };
    format!("{} running, {tally}, {rate}{trouble}", counts.in_flight)
}

/// How fast it goes at the moment.
#[derive(Debug, Default)]
struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    fn rate(&mut self, now: Instant, handled: u64) -> String {
        self.0.push_back((now, handled));
        // One that is older than the window stays, so that there is always a whole one to look at.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
        let (from, before) = self.0.front().copied().unwrap_or((now, handled));
        rate(handled - before, now.saturating_duration_since(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_runs_what_was_done_and_how_fast_it_goes() {
        let mut counts = Counts::default();
        let mut pace = Pace::default();
        let begun = Instant::now();
        let mut at = |counts: &Counts, seconds, state| {
            line(counts, state, AckPolicy::NackOnError, &mut pace, begun + Duration::from_secs(seconds))
        };
        let told = at(&counts, 0, HealthState::Starting);
        assert_eq!(told, "0 running, 0 done, 0 retried, 0 dead, 0 lost, 0.0 a second");
        (counts.in_flight, counts.acked, counts.retried) = (3, 18, 2);
        let told = at(&counts, 2, HealthState::Up);
        assert_eq!(told, "3 running, 18 done, 2 retried, 0 dead, 0 lost, 10 a second");
        let told = at(&counts, 7, HealthState::Failing);
        assert_eq!(told, "3 running, 18 done, 2 retried, 0 dead, 0 lost, 0.0 a second; the store does not answer");
    }
}
