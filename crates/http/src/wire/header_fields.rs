//! Headers on their way.

use std::collections::BTreeMap;

use postrider_core::{Headers, MessagingError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

/// A message's headers, or why they are none.
///
/// They are checked when they are read, but a refusal waits until they are wanted: a bad name is the failure of its
/// message, and the others of its batch are sent.
#[derive(Debug, Clone)]
pub struct HeaderFields(Result<Headers, MessagingError>);

impl HeaderFields {
    /// Whether there is nothing to write.
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
        // An answer may leave them out by a null.
        let fields = Option::<BTreeMap<String, String>>::deserialize(deserializer)?;
        Ok(Self(fields.map_or_else(|| Ok(Headers::new()), Headers::try_from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_told_when_the_headers_are_wanted() {
        let fields: HeaderFields = serde_json::from_str(r#"{"a b":"1"}"#).unwrap();
        assert!(matches!(fields.into_headers(), Err(MessagingError::InvalidInput { what: "header", .. })));
        assert!(serde_json::from_str::<HeaderFields>(r#"{"a":1}"#).is_err(), "no text");
        assert!(serde_json::from_str::<HeaderFields>("null").unwrap().is_empty());
    }
}
