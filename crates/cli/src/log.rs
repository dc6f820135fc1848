//! The log of commands that run until they are stopped: what they and the engines below them have to say, on stderr, a
//! line each with its time and level.

use std::fmt::{self, Write};
use std::io;

use clap::ValueEnum;
use postrider::Timestamp;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::args::Global;
use crate::command::Echo;
use crate::failure::Failure;
use crate::text::one_line;

/// Chooses what is logged.
const VARIABLE: &str = "RUST_LOG";
/// Target of what the program itself says.
pub(crate) const PROGRAM: &str = "postrider::program";
/// Targets of what the server says, and of its lines about requests.
const SERVER: &str = "postrider_server";
const ACCESS: &str = "postrider::access";

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Writes the log to `echo`, from now on.
pub(crate) fn start(echo: &Echo, global: &Global) -> Result<(), Failure> {
    let filter = filter(std::env::var(VARIABLE).ok())?;
    let echo = echo.clone();
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Lines(echo.clone()));
    let layer = match global.log_format {
        LogFormat::Text => layer.event_format(Text).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    let log = tracing_subscriber::registry().with(layer.with_filter(filter));
    tracing::subscriber::set_global_default(log)
        .map_err(|error| Failure::failed(format!("cannot start the log: {error}")))
}

/// Whether there is a log, and what is said belongs there.
pub(crate) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// What is logged: what the variable says, else warnings, and what the program and its server have to tell.
fn filter(variable: Option<String>) -> Result<Targets, Failure> {
    match variable.filter(|text| !text.trim().is_empty()) {
        None => {
            let told = [PROGRAM, SERVER, ACCESS].map(|target| (target, LevelFilter::INFO));
            Ok(Targets::new().with_default(LevelFilter::WARN).with_targets(told))
        }
        Some(text) => text.parse().map_err(|error| {
            let shown = text.escape_debug();
            Failure::usage(format!(
                "{VARIABLE}: '{shown}' cannot be read: {error}; write a level (error, warn, info, debug, trace), or \
                 levels of parts like postrider_subscriber=debug,warn"
            ))
        }),
    }
}

/// A failure as the last line of a log in JSON. The log itself is written by a thread that may not come to it any more.
pub(crate) fn failure_line(text: &str) -> String {
    let line = serde_json::json!({
        "timestamp": Timestamp::now(), "level": "ERROR", "message": text, "target": PROGRAM,
    });
    line.to_string()
}

/// Takes whole lines.
struct Lines(Echo);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.log(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `2026-11-19T06:00:00.123456Z  WARN postrider_subscriber: it failed (queue orders, attempt 1): no route`
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let part = target.split("::").next().unwrap_or(target);
        writeln!(writer, "{} {level:>5} {part}: {}", Timestamp::now(), one_line(&said.text()))
    }
}

/// A sentence, and what it is about.
#[derive(Default)]
struct Said {
    sentence: String,
    error: String,
    about: String,
}

impl Said {
    fn text(self) -> String {
        let Self { sentence, error, about } = self;
        let error = if error.is_empty() { error } else { format!(": {error}") };
        let about = if about.is_empty() { about } else { format!(" ({})", about.trim_end_matches(", ")) };
        format!("{sentence}{about}{error}")
    }

    fn note(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.sentence, "{value}"),
            "error" => write!(self.error, "{value}"),
            name => write!(self.about, "{} {value}, ", name.replace('_', " ")),
        };
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.note(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_sentence_comes_first_and_the_cause_last() {
        let said = Said { sentence: "it failed".into(), error: "no route".into(), about: "task 7, worker a, ".into() };
        assert_eq!(said.text(), "it failed (task 7, worker a): no route");
        assert_eq!(Said { sentence: "it failed".into(), ..Said::default() }.text(), "it failed");
    }

    #[test]
    fn the_variable_chooses_what_is_logged() {
        let is_logged = |variable: Option<&str>, target: &str, level: Level| {
            filter(variable.map(str::to_owned)).unwrap().would_enable(target, &level)
        };
        for unset in [None, Some(" ")] {
            assert!(is_logged(unset, PROGRAM, Level::INFO) && is_logged(unset, SERVER, Level::INFO));
            assert!(is_logged(unset, ACCESS, Level::INFO));
            assert!(is_logged(unset, "postrider_tasks::worker", Level::WARN) && is_logged(unset, "lapin", Level::WARN));
            assert!(!is_logged(unset, "postrider_subscriber", Level::INFO));
        }
        let chosen = Some("postrider_subscriber=debug,error");
        assert!(
            is_logged(chosen, "postrider_subscriber::fetch", Level::DEBUG) && !is_logged(chosen, PROGRAM, Level::WARN)
        );
        assert!(filter(Some("postrider=loud".into())).is_err());
    }
}
