//! The status line of a running worker, on a terminal.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::Instant;

use super::echo::Echo;

/// Redraw interval.
const REFRESH: Duration = Duration::from_millis(250);
/// Window of the rate.
const WINDOW: Duration = Duration::from_secs(5);

/// The content of the status line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    /// Counts of running and finished work.
    pub(crate) counts: String,
    /// Finished messages or tasks, for the rate.
    pub(crate) handled: u64,
    pub(crate) remark: &'static str,
}

/// Whether stderr is a terminal that can redraw a line.
pub(crate) fn can_redraw() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Redraws the line for ever.
pub(crate) async fn show(status: impl Fn() -> Status, echo: Echo) {
    let mut pace = Pace::default();
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        ticks.tick().await;
        echo.status(line(&status(), &mut pace, Instant::now()));
    }
}

fn line(status: &Status, pace: &mut Pace, now: Instant) -> String {
    let Status { counts, handled, remark } = status;
    format!("{counts}, {}{remark}", pace.rate(now, *handled))
}

/// The rate as text.
pub(crate) fn rate(count: u64, time: Duration) -> String {
    let a_second = count as f64 / time.as_secs_f64().max(0.001);
    if a_second < 10.0 { format!("{a_second:.1} a second") } else { format!("{a_second:.0} a second") }
}

/// Counts within the window, for the current rate.
#[derive(Debug, Default)]
struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    fn rate(&mut self, now: Instant, handled: u64) -> String {
        self.0.push_back((now, handled));
        // One count older than the window stays, so that the rate covers the whole window.
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
    fn the_status_line_shows_the_current_rate() {
        let mut pace = Pace::default();
        let begun = Instant::now();
        let mut at = |handled, remark, seconds| {
            let status = Status { counts: format!("{handled} done"), handled, remark };
            line(&status, &mut pace, begun + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, "", 0), "0 done, 0.0 a second");
        assert_eq!(at(20, "", 2), "20 done, 10 a second");
        assert_eq!(at(20, "; finishing", 7), "20 done, 0.0 a second; finishing");
    }

    #[test]
    fn a_low_rate_has_one_decimal() {
        assert_eq!(rate(0, Duration::ZERO), "0.0 a second");
        assert_eq!(rate(3, Duration::from_secs(2)), "1.5 a second");
        assert_eq!(rate(1234, Duration::from_secs(10)), "123 a second");
    }
}
