//! What the engines have to say: what they tell a log is told here on stderr.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::command::Echo;

/// The same is told again after that long.
const REMIND: Duration = Duration::from_secs(10);

/// The engine of tasks.
pub(crate) const TASKS: &str = "postrider_tasks";
/// The server.
pub(crate) const SERVER: &str = "postrider_server";

/// Has warnings of these engines told on stderr, from now on.
pub(crate) fn say_what_goes_wrong(echo: &Echo, engines: &'static [&'static str]) {
    let says = Says { echo: echo.clone(), engines, told: Mutex::default() };
    // It fails when somebody else reads the log already.
    let _ = tracing::subscriber::set_global_default(says);
}

struct Says {
    echo: Echo,
    engines: &'static [&'static str],
    /// What was last told from where, and when. As many as there are places in the engines that warn.
    told: Mutex<HashMap<Identifier, (String, Instant)>>,
}

impl Subscriber for Says {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_heard = || self.engines.iter().any(|engine| metadata.target().starts_with(engine));
        metadata.is_event() && *metadata.level() <= Level::WARN && is_heard()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are not enabled; a number that is not zero is what one must have.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let text = said.text();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let place = event.metadata().callsite();
        let is_news = told.get(&place).is_none_or(|(last, at)| *last != text || at.elapsed() >= REMIND);
        if is_news {
            self.echo.note(&text);
            told.insert(place, (text, Instant::now()));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
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
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.sentence, "{value:?}"),
            "error" => write!(self.error, "{value:?}"),
            name => write!(self.about, "{name} {value:?}, "),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_comes_first_and_the_cause_last() {
        let said = Said { sentence: "it failed".into(), error: "no route".into(), about: "task 7, worker a, ".into() };
        assert_eq!(said.text(), "it failed (task 7, worker a): no route");
        assert_eq!(Said { sentence: "it failed".into(), ..Said::default() }.text(), "it failed");
    }
}
