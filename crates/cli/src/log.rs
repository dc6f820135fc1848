//! The log of commands that run until they are stopped: one line on stderr per event, with its time and level.

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

/// Variable with the log filter.
const VARIABLE: &str = "RUST_LOG";
/// Target of the program's own events.
pub(crate) const PROGRAM: &str = "postrider::program";
/// Targets of the server's events and of its access log.
const SERVER: &str = "postrider_server";
const ACCESS: &str = "postrider::access";

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Starts the log; its lines go to `echo`.
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

/// Whether the log has started; notices then go to it.
pub(crate) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// The filter of the variable; by default warnings, and the events of the program and its server from INFO up.
fn filter(variable: Option<String>) -> Result<Targets, Failure> {
    let Some(text) = variable.filter(|text| !text.trim().is_empty()) else {
        let from_info = [PROGRAM, SERVER, ACCESS].map(|target| (target, LevelFilter::INFO));
        return Ok(Targets::new().with_default(LevelFilter::WARN).with_targets(from_info));
    };
    // `Targets` takes a space as part of a name.
    let text: String = text.split_whitespace().collect();
    let refused = |part: &str, why: &str| {
        let part = part.escape_debug();
        Failure::usage(format!(
            "{VARIABLE}: '{part}' {why}; write a level (off, error, warn, info, debug, trace), or levels of parts like \
             postrider_subscriber=debug,lapin=info,warn"
        ))
    };
    // `Targets` takes a mistyped level as the name of a part, which turns off the log of every other part.
    if let Some(part) = text.split(',').find(|part| is_mistyped(part)) {
        return Err(refused(part, "is neither a level nor a part of Postrider"));
    }
    text.parse().map_err(|error| refused(&text, &format!("cannot be read: {error}")))
}

/// Whether a part of the filter without a level is neither a level nor one of Postrider's targets.
fn is_mistyped(part: &str) -> bool {
    !part.contains('=') && !part.starts_with("postrider") && part.parse::<LevelFilter>().is_err()
}

/// A failure as the last line of a JSON log, written directly because the log's thread may have ended.
pub(crate) fn failure_line(text: &str) -> String {
    let line = serde_json::json!({
        "timestamp": Timestamp::now(), "level": "ERROR", "message": text, "target": PROGRAM,
    });
    line.to_string()
}

/// Writes whole lines to the log.
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
        let mut content = Content::default();
        event.record(&mut content);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let part = target.split("::").next().unwrap_or(target);
        writeln!(writer, "{} {level:>5} {part}: {}", Timestamp::now(), one_line(&content.text()))
    }
}

/// The content of an event.
#[derive(Default)]
struct Content {
    message: String,
    error: String,
    fields: String,
}

impl Content {
    fn text(self) -> String {
        let Self { message, error, fields } = self;
        let error = if error.is_empty() { error } else { format!(": {error}") };
        let fields = if fields.is_empty() { fields } else { format!(" ({})", fields.trim_end_matches(", ")) };
        format!("{message}{fields}{error}")
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            "error" => write!(self.error, "{value}"),
            name => write!(self.fields, "{} {value}, ", name.replace('_', " ")),
        };
    }
}

impl Visit for Content {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_message_comes_first_and_the_error_last() {
        let (message, error) = ("it failed".to_owned(), "no route".to_owned());
        let content = Content { message: message.clone(), error, fields: "task 7, worker a, ".into() };
        assert_eq!(content.text(), "it failed (task 7, worker a): no route");
        assert_eq!(Content { message, ..Content::default() }.text(), "it failed");
    }

    #[test]
    fn the_variable_filters_the_log() {
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
        assert!(is_logged(Some("lapin=trace, postrider_tasks"), "postrider_tasks::worker", Level::TRACE));
        for mistyped in ["postrider=loud", "inof", "postrider_subscriber=debug,inof"] {
            assert!(filter(Some(mistyped.into())).is_err(), "{mistyped}");
        }
    }
}
