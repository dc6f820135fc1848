//! A line on a terminal that says how it goes, while it goes.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::Instant;

use super::echo::Echo;

/// A few times a second: more cannot be read.
const REFRESH: Duration = Duration::from_millis(250);
/// The rate is that of the last seconds.
const WINDOW: Duration = Duration::from_secs(5);

/// How it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// What runs, and what has been done.
    pub(crate) counts: String,
    /// How much has been done to an end that counts.
    pub(crate) handled: u64,
    /// What else is to be said.
    pub(crate) remark: &'static str,
}

/// Whether somebody looks at stderr, on a terminal that can draw a line anew.
pub(crate) fn has_spectator() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Keeps the line up to date; never ends.
pub(crate) async fn show(look: impl Fn() -> Look, echo: Echo) {
    let mut pace = Pace::default();
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        ticks.tick().await;
        echo.status(line(&look(), &mut pace, Instant::now()));
    }
}

fn line(look: &Look, pace: &mut Pace, now: Instant) -> String {
    let Look { counts, handled, remark } = look;
    format!("{counts}, {}{remark}", pace.rate(now, *handled))
}

/// So many in that time, as people read it.
pub(crate) fn rate(count: u64, time: Duration) -> String {
    let a_second = count as f64 / time.as_secs_f64().max(0.001);
    if a_second < 10.0 { format!("{a_second:.1} a second") } else { format!("{a_second:.0} a second") }
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
    fn it_says_how_fast_it_goes() {
        let mut pace = Pace::default();
        let begun = Instant::now();
        let mut at = |handled, remark, seconds| {
            let look = Look { counts: format!("{handled} done"), handled, remark };
            line(&look, &mut pace, begun + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, "", 0), "0 done, 0.0 a second");
        assert_eq!(at(20, "", 2), "20 done, 10 a second");
        assert_eq!(at(20, "; finishing", 7), "20 done, 0.0 a second; finishing");
    }

    #[test]
    fn a_rate_has_as_many_digits_as_mean_something() {
        assert_eq!(rate(0, Duration::ZERO), "0.0 a second");
        assert_eq!(rate(3, Duration::from_secs(2)), "1.5 a second");
        assert_eq!(rate(1234, Duration::from_secs(10)), "123 a second");
    }
}
