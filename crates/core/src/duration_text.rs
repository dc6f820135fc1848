//! Durations as text: `500ms`, `5s`, `1h30m`, `3d`.

use std::fmt::{self, Write};
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Examples of durations, for error texts.
pub const EXAMPLES: &str = "500ms, 5s, 2m, 1h30m or 3d";

/// Parses a duration; `None` if the text is not one.
pub fn parse(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    // A month has no fixed length and is refused; a day has 24 hours.
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(signed).ok()
}

/// Formats a duration so that [`parse`] reads it.
pub fn show(duration: Duration) -> String {
    const UNITS: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let mut left = duration.as_nanos();
    let mut text = String::new();
    for (nanos, unit) in UNITS {
        if left >= nanos {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}{unit}", left / nanos);
            left %= nanos;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// A duration as text, for `#[serde(with = …)]`. A type and not a module, because a schema is derived from the same
/// attribute.
#[derive(Debug)]
pub struct Text;

impl Text {
    /// Writes the duration.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show(*duration))
    }

    /// Reads a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        struct Written;

        impl de::Visitor<'_> for Written {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a duration as text, like {EXAMPLES}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                parse(text).ok_or_else(|| {
                    E::custom(format_args!("'{}' is not a duration; write it like {EXAMPLES}", text.escape_debug()))
                })
            }
        }

        deserializer.deserialize_str(Written)
    }
}

/// The same for an optional duration.
#[derive(Debug)]
pub struct OptionalText;

impl OptionalText {
    /// Writes the duration, or null.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(Written).serialize(serializer)
    }

    /// Reads a duration or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(deserializer)?.map(|Written(duration)| duration))
    }
}

#[derive(Serialize, Deserialize)]
struct Written(#[serde(with = "Text")] Duration);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_durations_can_be_parsed() {
        for text in ["0s", "500ms", "5s", "2m", "1h30m", "3d", "7d", "1d1ns", "1s500us"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
        assert_eq!(parse("1.5s"), Some(Duration::from_millis(1500)));
        for bad in ["", "5", "soon", "-5s", "1 month", "5 parsecs"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
