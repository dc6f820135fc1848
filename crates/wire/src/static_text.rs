//! Static texts for the fields of errors.
//!
//! Some fields of `MessagingError` are `&'static str`. A problem has them as text, so the texts that stores use are looked
//! up here. An unknown text is not leaked, which a server could abuse: a general text replaces it, and the error text
//! contains the original.

/// Names of providers.
const PROVIDERS: &[&str] = &["http", "memory", "mysql", "pgmq", "postgres", "rabbitmq", "spool", "sqlite", "sqs"];

/// Operations, as in "failed to …" and "before … could begin".
const OPERATIONS: &[&str] = &[
    "abandon",
    "ack",
    "attempts",
    "begin",
    "cancel",
    "claim",
    "claim by id",
    "close",
    "complete",
    "connect",
    "create",
    "create a task",
    "dead-letter",
    "delete",
    "delete a schedule",
    "delete queue",
    "deliver now",
    "edit",
    "edit dead letter",
    "enqueue",
    "ensure queue",
    "expire",
    "extend",
    "finish",
    "fire a schedule",
    "forget",
    "get",
    "get a record",
    "get a schedule",
    "get dead letter",
    "health check",
    "heartbeat",
    "list",
    "list dead letters",
    "list queues",
    "list records",
    "list schedules",
    "look at messages",
    "make a queue",
    "make the queue",
    "nack",
    "open",
    "pause",
    "pause a schedule",
    "peek",
    "purge",
    "purge dead letters",
    "put a record",
    "put a schedule",
    "read",
    "receive",
    "receive by id",
    "redrive",
    "release",
    "remove a record",
    "replace a record",
    "replay",
    "resume",
    "retry",
    "revisions",
    "run now",
    "search the archive",
    "send",
    "send again",
    "settle",
    "settle and receive",
    "standings",
    "stats",
    "store time",
    "subscribe",
    "task",
    "verify queues",
    "wait for a task",
    "write",
];

/// Changes that the state of a task does not allow, as in "cannot be …".
const CHANGES: &[&str] = &["canceled", "edited", "replayed", "retried", "run now"];

/// Names of values, as in "invalid …".
const VALUES: &[&str] = &[
    "batch",
    "body",
    "choice",
    "content type",
    "cron expression",
    "cursor",
    "dead-letter reason",
    "deadline of a task",
    "dedup key",
    "delay",
    "disposition",
    "edit",
    "expiry",
    "expiry of a token",
    "header",
    "headers",
    "idempotency key",
    "interval",
    "lease",
    "limit",
    "max",
    "max_attempts",
    "max_receive_count",
    "messages",
    "missed-fire policy",
    "name of a token",
    "ordering key",
    "outcome",
    "payload",
    "priority",
    "progress",
    "query",
    "queue name",
    "queue to delete",
    "queues",
    "queues of a token",
    "rate",
    "reason of death",
    "redrive target",
    "result",
    "retry delay",
    "retry strategy",
    "roles of a token",
    "schedule",
    "schedule name",
    "settlement",
    "state",
    "tag",
    "tags",
    "task",
    "task lease",
    "task state",
    "task type",
    "time that a task is scheduled for",
    "time zone",
    "token",
    "visibility",
    "wait",
];

/// Content types.
const CONTENT_TYPES: &[&str] = &["application/json", "application/msgpack", "application/octet-stream"];

fn find(texts: &'static [&'static str], text: Option<&str>) -> Option<&'static str> {
    texts.iter().copied().find(|known| Some(*known) == text)
}

/// The name of a provider; `own` if it is unknown.
pub(super) fn provider(text: Option<&str>, own: &'static str) -> &'static str {
    find(PROVIDERS, text).unwrap_or(own)
}

/// The name of an operation; `None` if it is unknown.
pub(super) fn operation(text: Option<&str>) -> Option<&'static str> {
    find(OPERATIONS, text)
}

/// The name of a change of a task.
pub(super) fn change(text: Option<&str>) -> &'static str {
    find(CHANGES, text).or_else(|| operation(text)).unwrap_or("changed")
}

/// The name of a value; `None` if it is unknown.
pub(super) fn value(text: Option<&str>) -> Option<&'static str> {
    find(VALUES, text)
}

/// A content type.
pub(super) fn content_type(text: Option<&str>) -> &'static str {
    find(CONTENT_TYPES, text).unwrap_or("its content type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts_are_found_and_others_replaced() {
        assert_eq!(provider(Some("sqlite"), "http"), "sqlite");
        assert_eq!(provider(Some("made up"), "http"), "http");
        assert_eq!(operation(Some("send")), Some("send"));
        assert_eq!(operation(Some("made up")), None);
        assert_eq!(change(Some("replayed")), "replayed");
        assert_eq!(change(None), "changed");
    }

    #[test]
    fn lists_are_sorted_without_duplicates() {
        for texts in [PROVIDERS, OPERATIONS, CHANGES, VALUES, CONTENT_TYPES] {
            assert!(texts.is_sorted_by(|a, b| a < b), "{texts:?}");
        }
    }
}
