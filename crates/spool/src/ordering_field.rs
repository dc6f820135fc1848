//! The fields of a foreign JSON file with its ordering key.

use std::str::FromStr;

use postrider_core::{Key, MessagingError};
use serde_json::Value;

/// Fields of a JSON document that form an ordering key: `conversation`, or `channel,conversation` for two fields, or
/// `/message/from` for a nested one. A document in which one of them is missing or blank has no such key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderingField(Vec<String>);

impl OrderingField {
    /// Returns the key that these fields form.
    pub(crate) fn key(&self, document: &Value) -> Option<Key> {
        let values: Option<Vec<String>> = self.0.iter().map(|field| text(document, field)).collect();
        let values = values?;
        let text = match values.as_slice() {
            [only] => only.clone(),
            several => several.iter().map(|value| escaped(value)).collect::<Vec<_>>().join("/"),
        };
        // An invalid key (too long, with control characters) is replaced by its hash.
        let hashed = || Key::new("ordering key", &format!("hash-{:016x}", crate::name::hash(&text)));
        Key::new("ordering key", &text).or_else(|_| hashed()).ok()
    }
}

/// Returns the first key that a document has.
pub(crate) fn key(fields: &[OrderingField], document: &Value) -> Option<Key> {
    fields.iter().find_map(|field| field.key(document))
}

fn text(document: &Value, field: &str) -> Option<String> {
    let value = if field.starts_with('/') { document.pointer(field) } else { document.get(field) };
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

/// Escapes a value, so that `a/b`, `c` and `a`, `b/c` are different keys.
fn escaped(value: &str) -> String {
    value.replace('%', "%25").replace('/', "%2F")
}

impl FromStr for OrderingField {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fields: Vec<String> = text.split(',').map(|field| field.trim().to_owned()).collect();
        if fields.iter().any(String::is_empty) {
            let why = format!(
                "'{}' has an empty field name; write 'conversation' or 'channel,conversation'",
                text.escape_debug()
            );
            return Err(MessagingError::invalid("ordering key field", why));
        }
        Ok(Self(fields))
    }
}

impl std::fmt::Display for OrderingField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key_of(fields: &[&str], document: Value) -> Option<String> {
        let fields: Vec<OrderingField> = fields.iter().map(|field| field.parse().unwrap()).collect();
        key(&fields, &document).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn the_first_complete_alternative_counts() {
        let fields = ["workflowRunId", "channel,channelProfileId,conversationId"];
        let whole = json!({"workflowRunId": "r1", "channel": "slack", "channelProfileId": "p", "conversationId": "c"});
        assert_eq!(key_of(&fields, whole).as_deref(), Some("r1"));
        let conversation = json!({"channel": "slack", "channelProfileId": "p", "conversationId": 7});
        assert_eq!(key_of(&fields, conversation).as_deref(), Some("slack/p/7"));
        let blank = json!({"workflowRunId": " ", "channel": "slack", "channelProfileId": "", "conversationId": "c"});
        assert_eq!(key_of(&fields, blank), None);
        assert_eq!(key_of(&["/a/b"], json!({"a": {"b": "deep"}})).as_deref(), Some("deep"));
        assert_eq!(key_of(&["a"], json!([1])), None);
    }

    #[test]
    fn different_values_are_different_keys() {
        let pair = |a: &str, b: &str| key_of(&["a,b"], json!({"a": a, "b": b})).unwrap();
        assert_ne!(pair("x/y", "z"), pair("x", "y/z"));
        let long = |text: &str| key_of(&["a"], json!({"a": text})).unwrap();
        assert_ne!(long(&"x".repeat(500)), long(&"x".repeat(501)));
        assert!(long("two\nlines").starts_with("hash-"));
    }

    #[test]
    fn a_field_without_a_name_is_refused() {
        for wrong in ["", "a,,b", " "] {
            assert!(wrong.parse::<OrderingField>().is_err(), "{wrong:?}");
        }
    }
}
