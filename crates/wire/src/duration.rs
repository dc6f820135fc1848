//! Durations as text, for `#[serde(with = …)]`.

use std::fmt;
use std::time::Duration;

use postrider_core::duration_text;
use serde::{Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&duration_text::show(*duration))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Written;

    impl de::Visitor<'_> for Written {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a duration as text, like {}", duration_text::EXAMPLES)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            duration_text::parse(text).ok_or_else(|| {
                let examples = duration_text::EXAMPLES;
                E::custom(format_args!("'{}' is not a duration; write it like {examples}", text.escape_debug()))
            })
        }
    }

    deserializer.deserialize_str(Written)
}

/// The same for an optional duration.
pub(crate) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Written(#[serde(with = "super")] Duration);

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(Written).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Written>::deserialize(deserializer)?.map(|Written(duration)| duration))
    }
}
