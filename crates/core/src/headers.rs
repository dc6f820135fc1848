//! The headers of a message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;

/// The prefix of header names that are reserved for providers.
pub const RESERVED_HEADER_PREFIX: &str = "postrider-";

const MAX_NAME: usize = 128;

/// The headers of a message: unique names with text values, ordered by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Empty headers.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Sets a header, replacing an earlier one with that name.
    ///
    /// A name has 1 to 128 characters of `[A-Za-z0-9_.-]`; a value is any text without NUL, which not every store can
    /// hold.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), MessagingError> {
        let (name, value) = (name.into(), value.into());
        check(&name, &value)?;
        self.0.insert(name, value);
        Ok(())
    }

    /// Removes a header and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All headers, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all names and values together, as the limit counts them.
    pub fn byte_len(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = MessagingError;

    fn try_from(map: BTreeMap<String, String>) -> Result<Self, Self::Error> {
        for (name, value) in &map {
            check(name, value)?;
        }
        Ok(Self(map))
    }
}

fn check(name: &str, value: &str) -> Result<(), MessagingError> {
    let shown = name.escape_debug();
    let invalid = |why: String| Err(MessagingError::invalid("header", why));
    if name.is_empty() {
        return invalid("the name is empty; use at least one character".into());
    }
    if name.len() > MAX_NAME {
        return invalid(format!("the name has {} characters, at most {MAX_NAME} are allowed", name.len()));
    }
    if let Some(odd) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.-".contains(*c))) {
        return invalid(format!("'{shown}': {odd:?} is not allowed; use letters, digits, '_', '.' and '-'"));
    }
    if name.to_ascii_lowercase().starts_with(RESERVED_HEADER_PREFIX) {
        return invalid(format!("'{shown}': names that begin with '{RESERVED_HEADER_PREFIX}' are reserved"));
    }
    if value.contains('\0') {
        return invalid(format!("'{shown}': the value contains a NUL character; remove it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        let mut headers = Headers::new();
        headers.insert("traceparent", "00-ab").unwrap();
        headers.insert("traceparent", "00-cd").unwrap();
        assert_eq!(headers.get("traceparent"), Some("00-cd"));
        assert_eq!(headers.byte_len(), "traceparent00-cd".len());
        for (name, value) in [("", "v"), ("a b", "v"), ("a=b", "v"), ("Postrider-x", "v"), ("a", "\0")] {
            assert!(headers.insert(name, value).is_err(), "{name:?}");
        }
        assert!(headers.insert("n".repeat(129), "v").is_err());
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn headers_from_json_are_checked() {
        assert!(serde_json::from_str::<Headers>(r#"{"a":"1"}"#).is_ok());
        assert!(serde_json::from_str::<Headers>(r#"{"a b":"1"}"#).is_err());
    }
}
