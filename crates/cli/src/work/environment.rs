//! The environment variables of a message's command.

use postrider::Envelope;

use crate::command::{OMITTED, Variables};

const HEADER: &str = "POSTRIDER_HEADER_";
/// Variables that not every message has; an inherited one would be wrong.
const OPTIONAL: &[&str] =
    &[OMITTED, "POSTRIDER_HEADERS", "POSTRIDER_ORDERING_KEY", "POSTRIDER_DEDUP_KEY", "POSTRIDER_EXPIRES_AT"];

/// Whether an inherited variable belongs to an outer handler and must be cleared.
pub(super) fn must_clear(name: &str) -> bool {
    name.starts_with(HEADER) || OPTIONAL.contains(&name)
}

pub(super) fn variables(envelope: &Envelope) -> Vec<(String, String)> {
    let mut all = Variables::default();
    all.set("POSTRIDER_MESSAGE_ID", envelope.id);
    all.set("POSTRIDER_QUEUE", &envelope.queue);
    all.set("POSTRIDER_CONTENT_TYPE", &envelope.content_type);
    all.set("POSTRIDER_PRIORITY", envelope.priority.get());
    all.set("POSTRIDER_ENQUEUED_AT", envelope.enqueued_at);
    all.set("POSTRIDER_RECEIVE_COUNT", envelope.receive_count);
    all.set("POSTRIDER_ATTEMPT", envelope.attempts_count.saturating_add(1));
    all.set_if_any("POSTRIDER_ORDERING_KEY", envelope.ordering_key.as_ref().map(|key| key.as_str()));
    all.set_if_any("POSTRIDER_DEDUP_KEY", envelope.dedup_key.as_ref().map(|key| key.as_str()));
    all.set_if_any("POSTRIDER_EXPIRES_AT", envelope.expires_at);
    // Headers are strings and can always be written as JSON.
    all.set_if_any("POSTRIDER_HEADERS", serde_json::to_string(&envelope.headers).ok());
    for (name, value) in envelope.headers.iter() {
        all.set(variable_of(name), value);
    }
    all.fitting()
}

/// `trace-id` is `POSTRIDER_HEADER_TRACE_ID`.
fn variable_of(header: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    HEADER.chars().chain(header.chars().map(plain)).collect()
}

#[cfg(test)]
mod tests {
    use postrider::{ContentType, Headers, MessageId, Priority, QueueName, Timestamp};

    use super::*;

    #[test]
    fn all_fields_are_set_and_values_that_do_not_fit_are_listed() {
        let max = 96 * 1024;
        let mut headers = Headers::new();
        headers.insert("trace-id", "t").unwrap();
        headers.insert("long", "\n".repeat(max - 1)).unwrap();
        let envelope = Envelope {
            id: MessageId::generate(),
            queue: QueueName::new("orders").unwrap(),
            content_type: ContentType::JSON,
            headers,
            ordering_key: None,
            dedup_key: None,
            priority: Priority::default(),
            expires_at: None,
            receive_count: 4,
            attempts_count: 2,
            enqueued_at: Timestamp::EPOCH,
            first_attempt_at: Timestamp::EPOCH,
            lease_expires_at: Timestamp::EPOCH,
        };
        let variables = variables(&envelope);
        let get = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(get("POSTRIDER_HEADER_TRACE_ID"), Some("t"));
        assert_eq!(get("POSTRIDER_ATTEMPT"), Some("3"));
        assert_eq!(get("POSTRIDER_RECEIVE_COUNT"), Some("4"));
        assert_eq!(get("POSTRIDER_ORDERING_KEY"), None);
        assert_eq!(get("POSTRIDER_HEADER_LONG").map(str::len), Some(max - 1));
        // In JSON every newline takes two characters.
        assert_eq!((get("POSTRIDER_HEADERS"), get(OMITTED)), (None, Some("POSTRIDER_HEADERS")));
        assert!(must_clear("POSTRIDER_HEADER_OUTER") && !must_clear("POSTRIDER_URL"));
    }
}
