//! Headers of a message.

use std::fmt;

use postrider_core::{Headers, MessagingError};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use super::object::count_value;

/// A message's headers, or why they are invalid.
///
/// An invalid or repeated name is found when the headers are read, but reported by `into_headers`, so that in a batch only
/// its message fails.
#[derive(Debug, Clone)]
pub struct HeaderFields(Result<Headers, MessagingError>);

impl HeaderFields {
    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_ok_and(Headers::is_empty)
    }

    /// The headers.
    pub fn into_headers(self) -> Result<Headers, MessagingError> {
        self.0
    }
}

impl Default for HeaderFields {
    fn default() -> Self {
        Self(Ok(Headers::new()))
    }
}

impl From<Headers> for HeaderFields {
    fn from(headers: Headers) -> Self {
        Self(Ok(headers))
    }
}

impl Serialize for HeaderFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(headers) => headers.serialize(serializer),
            Err(error) => Err(ser::Error::custom(error)),
        }
    }
}

impl<'de> Deserialize<'de> for HeaderFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An answer may have null.
        Ok(Option::<Read>::deserialize(deserializer)?.map_or_else(Self::default, |Read(headers)| Self(headers)))
    }
}

/// Headers of an object, or the error of the first invalid one.
struct Read(Result<Headers, MessagingError>);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Read;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Read, A::Error> {
                let mut headers = Ok(Headers::new());
                while let Some((name, value)) = fields.next_entry::<String, String>()? {
                    count_value()?;
                    if let Ok(read) = &mut headers
                        && let Err(error) = add(read, name, value)
                    {
                        headers = Err(error);
                    }
                }
                Ok(Read(headers))
            }
        }

        deserializer.deserialize_map(Names)
    }
}

fn add(headers: &mut Headers, name: String, value: String) -> Result<(), MessagingError> {
    if headers.get(&name).is_some() {
        let why = format!("'{}' occurs more than once in headers; send it once", name.escape_debug());
        return Err(MessagingError::invalid("header", why));
    }
    headers.insert(name, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_reported_on_conversion() {
        let fields: HeaderFields = serde_json::from_str(r#"{"a b":"1"}"#).unwrap();
        assert!(matches!(fields.into_headers(), Err(MessagingError::InvalidInput { what: "header", .. })));
        assert!(serde_json::from_str::<HeaderFields>(r#"{"a":1}"#).is_err(), "no text");
        assert!(serde_json::from_str::<HeaderFields>("null").unwrap().is_empty());
    }

    #[test]
    fn a_repeated_name_is_refused() {
        for json in [r#"{"a":"1","b":"2","a":"3"}"#, r#"{"a":"1","\u0061":"1"}"#] {
            let error = serde_json::from_str::<HeaderFields>(json).unwrap().into_headers().unwrap_err().to_string();
            assert!(error.contains("'a' occurs more than once in headers"), "{error}");
        }
        let both = serde_json::from_str::<HeaderFields>(r#"{"a":"1","A":"2"}"#).unwrap().into_headers().unwrap();
        assert_eq!((both.get("a"), both.get("A")), (Some("1"), Some("2")), "names are case-sensitive");
    }
}
