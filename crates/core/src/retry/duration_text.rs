//! Durations as people write them: `500ms`, `5s`, `1h30m`, `3d`.

use std::borrow::Cow;
use std::time::Duration;

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let printer = SpanPrinter::new().spacing(Spacing::None);
    serializer.serialize_str(&printer.unsigned_duration_to_string(duration))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        de::Error::custom(format_args!(
            "'{}' is not a duration; write it like 500ms, 5s, 2m, 1h30m or 3d",
            text.escape_debug()
        ))
    })
}

fn parse(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    // Without a calendar a month has no length and is refused; a day is 24 hours.
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(signed).ok()
}

/// The same for a duration that may be left out.
pub(super) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "super")] Duration);

    pub(in super::super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(Text).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(duration)| duration))
    }
}
