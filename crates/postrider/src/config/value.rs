//! A value as it was written.

use std::time::Duration;

use postrider_core::duration_text;
use postrider_core::masked_url::{MASK, masked_url};
use toml::de::{DeArray, DeValue};

use super::secret::is_token;

/// The longest value that an error repeats.
const SHOWN_CHARACTERS: usize = 60;

/// A value as it was written, not yet checked against its key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Written {
    form: Form,
    /// The text in the source.
    literal: String,
}

/// TOML distinguishes numbers from text; variables and flags are text that is parsed as the type of the key.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    Untyped(String),
    Text(String),
    Boolean(bool),
    /// `None` when it is too large for any key.
    Integer(Option<i64>),
    Float(f64),
    /// An array of texts only.
    Texts(Vec<String>),
    /// A table, another array or a date: no key takes one.
    Other,
}

impl Written {
    pub(super) fn untyped(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { literal: format!("'{}'", text.escape_debug()), form: Form::Untyped(text) }
    }

    /// `literal` is the part of the file that `value` was read from.
    pub(super) fn toml(value: &DeValue<'_>, literal: &str) -> Self {
        let form = match value {
            DeValue::String(text) => Form::Text(text.to_string()),
            DeValue::Boolean(value) => Form::Boolean(*value),
            DeValue::Integer(value) => Form::Integer(i64::from_str_radix(value.as_str(), value.radix()).ok()),
            DeValue::Float(value) => value.as_str().parse().map_or(Form::Other, Form::Float),
            DeValue::Array(values) => texts_of(values).map_or(Form::Other, Form::Texts),
            DeValue::Table(_) | DeValue::Datetime(_) => Form::Other,
        };
        let literal = match value {
            // The full text of a table would be too long for an error.
            DeValue::Table(_) => "a table",
            _ => literal,
        };
        Self { form, literal: literal.to_owned() }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match &self.form {
            Form::Boolean(value) => Some(*value),
            Form::Untyped(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match &self.form {
            Form::Integer(value) => *value,
            Form::Untyped(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        let number = match &self.form {
            // No key needs more digits than a float.
            Form::Integer(value) => (*value)? as f64,
            Form::Float(value) => *value,
            Form::Untyped(text) => text.parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.form {
            Form::Text(text) | Form::Untyped(text) => Some(text),
            _ => None,
        }
    }

    /// A list of texts: an array, also in a variable, or a single text.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        match &self.form {
            Form::Texts(texts) => Some(texts.clone()),
            Form::Untyped(text) if text.trim_start().starts_with('[') => match DeValue::parse(text).ok()?.get_ref() {
                DeValue::Array(values) => texts_of(values),
                _ => None,
            },
            Form::Text(text) | Form::Untyped(text) => Some(vec![text.clone()]),
            _ => None,
        }
    }

    /// Whether TOML reads it as a number.
    pub(super) fn is_number(&self) -> bool {
        matches!(self.form, Form::Integer(_) | Form::Float(_))
    }

    pub(super) fn seconds(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.number()?).ok()
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        duration_text::parse(self.text()?)
    }

    /// The same without its quotes; `None` when it has none.
    pub(super) fn unquoted(&self) -> Option<Self> {
        match &self.form {
            Form::Text(text) => Some(Self::untyped(text.clone())),
            _ => None,
        }
    }

    /// The text for an error, on one line. Anything that looks like a password or token is masked, also for keys that take
    /// none: the value may have been given to the wrong key.
    pub(super) fn shown(&self) -> String {
        if self.text().is_some_and(is_token) {
            return MASK.to_owned();
        }
        let masked = self.text().map(|text| (text, masked_url(text)));
        let shown = match masked {
            Some((text, masked)) if text != masked => format!("'{masked}'"),
            Some(_) => self.literal.clone(),
            // A list may contain URLs.
            None => masked_url(&self.literal),
        };
        let mut line: String = shown.chars().take(SHOWN_CHARACTERS).flat_map(printable).collect();
        if shown.chars().count() > SHOWN_CHARACTERS {
            line.push('…');
        }
        line
    }
}

fn texts_of(values: &DeArray<'_>) -> Option<Vec<String>> {
    values.iter().map(|value| value.get_ref().as_str().map(str::to_owned)).collect()
}

/// Escapes line breaks and other control characters; quotes stay.
fn printable(character: char) -> Vec<char> {
    if character.is_control() { character.escape_debug().collect() } else { vec![character] }
}
