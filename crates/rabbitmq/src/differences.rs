//! How an existing queue differs from the one to declare.
//!
//! The broker names only the first difference; a user who corrects that one would meet the next.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;

use crate::management::QueueInfo;

const KIND: &str = "x-queue-type";

/// Describes every argument that differs, with its actual and its wanted value.
pub(crate) fn differences(found: &QueueInfo, wanted: &FieldTable) -> Vec<String> {
    let wanted: BTreeMap<&str, Value> =
        wanted.inner().iter().map(|(name, value)| (name.as_str(), json(value))).collect();
    let mut current: BTreeMap<&str, Value> =
        found.arguments.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    // A queue that was declared without the argument has a type all the same.
    if let Some(kind) = &found.kind {
        current.insert(KIND, kind.as_str().into());
    }
    let shown = |value: Option<&Value>| value.map_or("none".to_owned(), Value::to_string);
    let differs = |name: &&str| current.get(name) != wanted.get(name);
    let own = current.keys().filter(|name| !wanted.contains_key(*name));
    let mut described: Vec<_> = wanted
        .keys()
        .chain(own)
        .copied()
        .filter(differs)
        .map(|name| format!("{name} is {} and not {}", shown(current.get(name)), shown(wanted.get(name))))
        .collect();
    for (name, is, should_be) in [("durable", found.durable, true), ("auto_delete", found.auto_delete, false)] {
        if is.is_some_and(|is| is != should_be) {
            described.push(format!("{name} is {} and not {should_be}", !should_be));
        }
    }
    described
}

/// An argument as the management interface writes it.
fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into(),
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => (*number).into(),
        // Postrider sets no argument of another type.
        other => format!("{other:?}").into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(described: Value) -> QueueInfo {
        serde_json::from_value(described).unwrap()
    }

    #[test]
    fn every_difference_is_named_and_nothing_else() {
        let mut wanted = FieldTable::default();
        wanted.insert(KIND.into(), AMQPValue::LongString("quorum".into()));
        wanted.insert("x-delivery-limit".into(), AMQPValue::LongInt(7));
        wanted.insert("x-message-ttl".into(), AMQPValue::LongLongInt(160));
        wanted.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        let same =
            json!({KIND: "quorum", "x-delivery-limit": 7, "x-message-ttl": 160, "x-single-active-consumer": true});
        let same = json!({"name": "q", "type": "quorum", "durable": true, "auto_delete": false, "arguments": same});
        assert_eq!(differences(&found(same), &wanted), Vec::<String>::new());

        let other = json!({"x-message-ttl": 80, "x-expires": 5, "x-single-active-consumer": true});
        let other = json!({"name": "q", "type": "classic", "durable": false, "auto_delete": true, "arguments": other});
        let described = [
            "x-delivery-limit is none and not 7",
            "x-message-ttl is 80 and not 160",
            "x-queue-type is \"classic\" and not \"quorum\"",
            "x-expires is 5 and not none",
            "durable is false and not true",
            "auto_delete is true and not false",
        ];
        assert_eq!(differences(&found(other), &wanted), described);
    }
}
