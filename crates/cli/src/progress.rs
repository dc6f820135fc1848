//! Progress bars.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Delay before a bar is shown, and its redraw interval.
const DELAY: Duration = Duration::from_secs(1);

/// A counter without a known total, on stderr if that is a terminal. Hidden if stdout is a terminal too, which shows the
/// results themselves.
pub(crate) fn count(unit: &str) -> ProgressBar {
    if std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    styled(&format!("{{pos}} {unit}, {{elapsed}}"))
}

/// A bar on stderr if that is a terminal; the caller sets its length.
pub(crate) fn bar(unit: &str) -> ProgressBar {
    styled(&format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{elapsed}}  {{msg}}"))
}

fn styled(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    // Hidden until then, because every change redraws a visible bar.
    let later = bar.clone();
    std::thread::spawn(move || {
        std::thread::sleep(DELAY);
        if !later.is_finished() {
            later.set_draw_target(ProgressDrawTarget::stderr());
            later.enable_steady_tick(DELAY);
        }
    });
    bar
}
