//! Bars for what takes long.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is done sooner shows no bar.
const LONG: Duration = Duration::from_secs(1);

/// A count on a terminal, on stderr, of what nobody knows the number of; nothing anywhere else. Where results go to
/// the terminal they are seen themselves.
pub(crate) fn count(unit: &str) -> ProgressBar {
    if std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    styled(&format!("{{pos}} {unit}, {{elapsed}}"))
}

/// A bar on a terminal, on stderr; nothing anywhere else. Its length is set by whoever learns it.
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
    // Every change draws a bar that is visible, so it is hidden until then.
    let later = bar.clone();
    std::thread::spawn(move || {
        std::thread::sleep(LONG);
        if !later.is_finished() {
            later.set_draw_target(ProgressDrawTarget::stderr());
            later.enable_steady_tick(LONG);
        }
    });
    bar
}
