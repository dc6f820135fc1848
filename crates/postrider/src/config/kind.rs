//! The types of keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::duration_text::{self, EXAMPLES};
use serde_json::Value;

use super::choice::Choice;
use super::draft::Draft;
use super::keys::Key;
use super::retry;
use super::secret::Secret;
use super::store_url::StoreUrl;
use super::value::Written;

/// Accessor of a key's field.
pub(super) type At<T> = fn(&mut Draft) -> &mut T;

/// The type of a key and the accessor of its field.
#[derive(Debug)]
pub(super) enum Kind {
    Flag(At<bool>),
    /// A flag with one allowed value, and why the other is not.
    FixedFlag(bool, &'static str),
    Count {
        at: At<u32>,
        range: (u32, u32),
    },
    /// A number; the key's name has the unit.
    Seconds {
        at: At<Duration>,
        range: (Duration, Duration),
    },
    /// A text with a unit.
    Duration {
        at: At<Duration>,
        range: (Duration, Duration),
    },
    Text(At<String>),
    /// A text or nothing.
    OptionalText(At<Option<String>>),
    /// A text with one allowed value, and why no other is.
    FixedText(&'static str, &'static str),
    Path(At<Option<PathBuf>>),
    /// Texts, each with comma-separated field names of a document.
    Fields(At<Vec<String>>),
    /// A URL, which may contain a password.
    Url(At<Option<StoreUrl>>),
    /// Never shown.
    Secret(At<Option<Secret>>),
    /// An address of this machine with a port.
    Address(At<SocketAddr>),
    /// A number per second; 0 is no limit.
    Rate(At<Option<f64>>),
    Choice(fn(&mut Draft) -> &mut dyn Choice),
    RetryStrategy,
    RetryDelay,
    RetryFactor,
    RetryCount,
}

impl Key {
    /// Sets the value; the error says what is allowed.
    pub(super) fn set(&self, draft: &mut Draft, value: &Written) -> Result<(), String> {
        if self.accept(draft, value).is_some() {
            return Ok(());
        }
        let mut why = self.kind.allowed();
        if value.unquoted().is_some_and(|unquoted| self.accept(&mut draft.clone(), &unquoted).is_some()) {
            why.push_str(", without quotes");
        } else if value.is_number() && self.kind.is_text() {
            why.push_str(", in quotes");
        }
        Err(why)
    }

    /// Sets the value; `None`, without a change, when it is not allowed.
    fn accept(&self, draft: &mut Draft, value: &Written) -> Option<()> {
        match &self.kind {
            Kind::Flag(at) => *at(draft) = value.boolean()?,
            Kind::FixedFlag(allowed, _) => return (value.boolean()? == *allowed).then_some(()),
            Kind::Count { at, range: (least, most) } => {
                *at(draft) = u32::try_from(value.integer()?).ok().filter(|count| (least..=most).contains(&count))?;
            }
            Kind::Seconds { at, range } => *at(draft) = within(value.seconds()?, range)?,
            Kind::Duration { at, range } => *at(draft) = within(value.duration()?, range)?,
            Kind::Text(at) => *at(draft) = not_empty(value)?.into(),
            Kind::OptionalText(at) => *at(draft) = Some(not_empty(value)?.into()),
            Kind::FixedText(allowed, _) => return (value.text()? == *allowed).then_some(()),
            // Only a shell expands '~'; a folder of that name is never meant.
            Kind::Path(at) => *at(draft) = Some(not_empty(value).filter(|path| !path.starts_with('~'))?.into()),
            Kind::Fields(at) => {
                *at(draft) = value.texts().filter(|texts| texts.iter().all(|text| names_fields(text)))?
            }
            Kind::Url(at) => *at(draft) = Some(StoreUrl::new(not_empty(value)?)),
            Kind::Secret(at) => *at(draft) = Some(Secret::new(not_empty(value)?)),
            Kind::Address(at) => *at(draft) = value.text()?.parse().ok()?,
            Kind::Rate(at) => {
                let rate = value.number().filter(|rate| *rate >= 0.0)?;
                *at(draft) = Some(rate).filter(|rate| *rate > 0.0);
            }
            Kind::Choice(at) => return at(draft).choose(value.text()?).then_some(()),
            Kind::RetryStrategy => {
                let name = value.text().filter(|name| retry::STRATEGIES.contains(name))?;
                retry::put(draft, self.name, name.into());
            }
            Kind::RetryDelay => {
                value.duration()?;
                retry::put(draft, self.name, value.text()?.into());
            }
            Kind::RetryFactor => retry::put(draft, self.name, value.number()?.into()),
            Kind::RetryCount if value.text() == Some(retry::FOREVER) => retry::put(draft, self.name, Value::Null),
            Kind::RetryCount => {
                let count = u32::try_from(value.integer()?).ok().filter(|count| *count > 0)?;
                retry::put(draft, self.name, count.into());
            }
        }
        Some(())
    }

    /// The value in the draft, secrets masked; `None` when there is none.
    pub(super) fn value(&self, draft: &mut Draft) -> Option<String> {
        Some(match &self.kind {
            Kind::Flag(at) => at(draft).to_string(),
            Kind::FixedFlag(allowed, _) => allowed.to_string(),
            Kind::Count { at, .. } => at(draft).to_string(),
            Kind::Seconds { at, .. } => at(draft).as_secs_f64().to_string(),
            Kind::Duration { at, .. } => duration_text::show(*at(draft)),
            Kind::Text(at) => at(draft).clone(),
            Kind::OptionalText(at) => at(draft).clone()?,
            Kind::FixedText(allowed, _) => (*allowed).into(),
            Kind::Path(at) => at(draft).as_ref()?.display().to_string(),
            Kind::Fields(at) => {
                Some(&*at(draft)).filter(|texts| !texts.is_empty()).map(|texts| format!("{texts:?}"))?
            }
            Kind::Url(at) => at(draft).as_ref()?.to_string(),
            Kind::Secret(at) => at(draft).as_ref()?.to_string(),
            Kind::Address(at) => at(draft).to_string(),
            Kind::Rate(at) => at(draft).as_ref()?.to_string(),
            Kind::Choice(at) => at(draft).name()?.into(),
            Kind::RetryStrategy | Kind::RetryDelay | Kind::RetryFactor | Kind::RetryCount => {
                match retry::get(&draft.common.retry, self.name)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                }
            }
        })
    }

    /// Whether its values may contain a password.
    pub(super) fn may_hold_a_secret(&self) -> bool {
        matches!(self.kind, Kind::Url(_))
    }

    /// Whether its values must not be shown at all.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret(_))
    }
}

impl Kind {
    /// Its values as described on the reference page.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Flag(_) => "`true` or `false`".into(),
            Self::FixedFlag(allowed, _) => format!("only `{allowed}`"),
            Self::Count { range: (least, most), .. } => format!("{least} to {most}"),
            Self::Seconds { range: (least, most), .. } => {
                format!("seconds, {} to {}", least.as_secs_f64(), most.as_secs_f64())
            }
            Self::Duration { range: (least, most), .. } => {
                format!("duration, {} to {}", duration_text::show(*least), duration_text::show(*most))
            }
            Self::Text(_) | Self::OptionalText(_) => "text".into(),
            Self::FixedText(allowed, _) => format!("only `{allowed}`"),
            Self::Path(_) => "path".into(),
            Self::Fields(_) => "list of fields".into(),
            Self::Url(_) => "URL".into(),
            Self::Secret(_) => "text".into(),
            Self::Address(_) => "address and port".into(),
            Self::Rate(_) => "number from 0".into(),
            Self::Choice(_) | Self::RetryStrategy => {
                let names: Vec<_> = self.names().iter().map(|name| format!("`{name}`")).collect();
                names.join(", ")
            }
            Self::RetryDelay => "duration".into(),
            Self::RetryFactor => "number from 1".into(),
            Self::RetryCount => format!("whole number from 1, or `\"{}\"`", retry::FOREVER),
        }
    }

    /// What to write instead of a refused value.
    fn allowed(&self) -> String {
        match self {
            Self::Flag(_) => "use true or false".into(),
            Self::FixedFlag(allowed, why) => format!("only {allowed} is allowed; {why}"),
            Self::Count { range: (least, most), .. } => format!("use a whole number from {least} to {most}"),
            Self::Seconds { range: (least, most), .. } => format!(
                "use a number of seconds from {} to {}; parts of a second are written like 0.5",
                least.as_secs_f64(),
                most.as_secs_f64()
            ),
            Self::Duration { range: (least, most), .. } => {
                format!(
                    "use a duration from {} to {}, like {EXAMPLES}",
                    duration_text::show(*least),
                    duration_text::show(*most)
                )
            }
            Self::Text(_) | Self::OptionalText(_) => "use a text that is not empty".into(),
            Self::FixedText(allowed, why) => format!("only {allowed} is allowed; {why}"),
            Self::Path(_) => "use a path that is not empty and does not begin with '~'".into(),
            Self::Fields(_) => {
                "use a list of fields, like [\"conversation\"] or [\"run\", \"channel,conversation\"]".into()
            }
            Self::Url(_) => "use a URL, like sqlite:/path/file.db".into(),
            Self::Secret(_) => "use a text that is not empty".into(),
            Self::Address(_) => "use an address with its port, like 127.0.0.1:8025 or [::1]:8025".into(),
            Self::Rate(_) => "use a number from 0 up".into(),
            Self::Choice(_) | Self::RetryStrategy => format!("use one of {}", self.names().join(", ")),
            Self::RetryDelay => format!("use a duration like {EXAMPLES}"),
            Self::RetryFactor => "use a number from 1 up".into(),
            Self::RetryCount => {
                format!("use a whole number from 1 to {}, or \"{}\" for no limit", u32::MAX, retry::FOREVER)
            }
        }
    }

    fn is_text(&self) -> bool {
        match self {
            Self::Flag(_)
            | Self::FixedFlag(..)
            | Self::Count { .. }
            | Self::Seconds { .. }
            | Self::Rate(_)
            | Self::RetryFactor
            | Self::RetryCount => false,
            Self::Duration { .. }
            | Self::Text(_)
            | Self::OptionalText(_)
            | Self::FixedText(..)
            | Self::Path(_)
            | Self::Fields(_)
            | Self::Url(_)
            | Self::Secret(_)
            | Self::Address(_)
            | Self::Choice(_)
            | Self::RetryStrategy
            | Self::RetryDelay => true,
        }
    }

    fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Choice(at) => at(&mut Draft::default()).names(),
            Self::RetryStrategy => retry::STRATEGIES.to_vec(),
            _ => Vec::new(),
        }
    }
}

fn within(duration: Duration, (least, most): &(Duration, Duration)) -> Option<Duration> {
    (*least..=*most).contains(&duration).then_some(duration)
}

/// Whether a text is a comma-separated list of field names.
fn names_fields(text: &str) -> bool {
    text.split(',').all(|field| !field.trim().is_empty())
}

fn not_empty(value: &Written) -> Option<&str> {
    value.text().filter(|text| !text.is_empty())
}
