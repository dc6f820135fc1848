//! Durations as text: `500ms`, `5s`, `1h30m`, `3d`.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serializer, de};

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

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show(*duration))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        de::Error::custom(format_args!("'{}' is not a duration; write it like {EXAMPLES}", text.escape_debug()))
    })
}

/// The same for an optional duration.
pub(crate) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "super")] Duration);

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(Text).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(duration)| duration))
    }
}

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
