//! The log of commands that run until they are stopped: one line on stderr per event, with its time and level.

use std::fmt::{self, Write};
use std::io;

use clap::ValueEnum;
use postrider::Timestamp;
use postrider::config::nearest;
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

/// The crates whose events can be in the log: Postrider's, and the libraries that use `tracing`.
const CRATES: &[&str] = &[
    "amq_protocol_tcp",
    "aws_config",
    "aws_runtime",
    "aws_sdk_sqs",
    "aws_sdk_sts",
    "aws_sigv4",
    "aws_smithy_http",
    "aws_smithy_runtime",
    "aws_smithy_runtime_api",
    "aws_types",
    "deadpool_postgres",
    "hickory_net",
    "hickory_proto",
    "hickory_resolver",
    "hyper_util",
    "lapin",
    "postrider",
    "postrider_broker",
    "postrider_cli",
    "postrider_core",
    "postrider_http",
    "postrider_mysql",
    "postrider_pg",
    "postrider_pgmq",
    "postrider_postgres",
    "postrider_provider",
    "postrider_rabbitmq",
    "postrider_server",
    "postrider_spool",
    "postrider_sql",
    "postrider_sqs",
    "postrider_subscriber",
    "postrider_tasks",
    "tower",
];

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
    let (filter, warnings) = filter(std::env::var(VARIABLE).ok())?;
    let echo = echo.clone();
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Lines(echo.clone()));
    let layer = match global.log_format {
        LogFormat::Text => layer.event_format(Text).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    let log = tracing_subscriber::registry().with(layer.with_filter(filter));
    tracing::subscriber::set_global_default(log)
        .map_err(|error| Failure::failed(format!("cannot start the log: {error}")))?;
    for warning in warnings {
        tracing::warn!(target: PROGRAM, "{warning}");
    }
    Ok(())
}

/// Whether the log has started; notices then go to it.
pub(crate) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// The filter of the variable, and warnings about it. By default the log has warnings, and the events of the program and
/// its server from INFO up; the levels of parts change that for these parts, and a level alone replaces it.
fn filter(variable: Option<String>) -> Result<(Targets, Vec<String>), Failure> {
    // `Targets` takes a space as part of a name.
    let text: String = variable.unwrap_or_default().split_whitespace().collect();
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
    // `Targets` takes an empty text as the level `error`.
    let chosen = match text.is_empty() {
        true => Targets::new(),
        false => text.parse().map_err(|error| refused(&text, &format!("cannot be read: {error}")))?,
    };
    let warnings = chosen.iter().filter_map(|(target, _)| unknown_part(target)).collect();
    if chosen.default_level().is_some() {
        return Ok((chosen, warnings));
    }
    // The longest target decides, so a default would override the level of a part that includes it.
    let is_default = |target: &&str| !chosen.iter().any(|(part, _)| target.starts_with(part));
    let from_info = [PROGRAM, SERVER, ACCESS].into_iter().filter(is_default).map(|target| (target, LevelFilter::INFO));
    let filter = Targets::new().with_default(LevelFilter::WARN).with_targets(from_info);
    Ok((filter.with_targets(chosen.iter()), warnings))
}

/// Returns a warning about a target under which nothing is logged.
fn unknown_part(target: &str) -> Option<String> {
    let part = target.split("::").next().unwrap_or(target);
    if CRATES.iter().any(|known| known.starts_with(part)) {
        return None;
    }
    let hint = match nearest(part, CRATES.iter().copied()) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "write parts like postrider_subscriber or lapin".to_owned(),
    };
    Some(format!("{VARIABLE}: no part of the program is called '{}'; {hint}", part.escape_debug()))
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
            filter(variable.map(str::to_owned)).unwrap().0.would_enable(target, &level)
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
        let part = Some("lapin=debug");
        assert!(is_logged(part, "lapin::channel", Level::DEBUG) && is_logged(part, PROGRAM, Level::INFO));
        assert!(is_logged(part, "postrider_tasks", Level::WARN) && !is_logged(part, "postrider_tasks", Level::INFO));
        assert!(!is_logged(Some("postrider=off"), PROGRAM, Level::ERROR), "a default overrides the chosen level");
        for mistyped in ["postrider=loud", "inof", "postrider_subscriber=debug,inof"] {
            assert!(filter(Some(mistyped.into())).is_err(), "{mistyped}");
        }
    }

    #[test]
    fn unknown_parts_are_warned_of() {
        let warnings = |variable: &str| filter(Some(variable.into())).unwrap().1;
        for known in ["lapin=debug", "postrider_subscriber::fetch=debug,warn", "postrider::access=off", "post=info"] {
            assert_eq!(warnings(known), Vec::<String>::new(), "{known}");
        }
        assert!(warnings("pstrider=debug")[0].ends_with("did you mean 'postrider'?"));
        assert!(warnings("postrider_subscribr")[0].ends_with("did you mean 'postrider_subscriber'?"));
        assert!(warnings("something=debug,off")[0].ends_with("write parts like postrider_subscriber or lapin"));
    }

    #[test]
    fn the_crates_that_log_are_known() {
        let lock = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        let packages = lock.split("[[package]]").filter(|package| package.contains("\n \"tracing\","));
        let names = packages.filter_map(|package| package.split('"').nth(1)).map(|name| name.replace('-', "_"));
        // For tests only.
        let names: Vec<String> = names.filter(|name| !name.starts_with("shuttle")).collect();
        assert_eq!(names, CRATES);
    }
}
