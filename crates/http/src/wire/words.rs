//! Words of errors that live as long as the program.
//!
//! Some fields of an error are `&'static str`, because whoever makes one names a place in the program. An error that came
//! over the wire has them as text; here the words that stores use are found again. A word that is not among them is not
//! kept alive for ever, which a server could abuse: a general word stands in, and the text tells the rest.

/// What stores are called.
const PROVIDERS: &[&str] = &["http", "memory", "mysql", "pgmq", "postgres", "rabbitmq", "spool", "sqlite", "sqs"];

/// What is asked of stores, as in "failed to …", "the outcome of … is unknown" and "before … could begin".
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

/// What cannot be done to a task in its state, as in "cannot be …".
const CHANGES: &[&str] = &["canceled", "edited", "replayed", "retried", "run now"];

/// Values that are refused, as in "invalid …".
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

/// Encodings.
const CONTENT_TYPES: &[&str] = &["application/json", "application/msgpack", "application/octet-stream"];

fn find(words: &'static [&'static str], text: Option<&str>) -> Option<&'static str> {
    words.iter().copied().find(|word| Some(*word) == text)
}

/// The name of a store, or that of the provider that asks.
pub(super) fn provider(text: Option<&str>, own: &'static str) -> &'static str {
    find(PROVIDERS, text).unwrap_or(own)
}

/// What was asked; `None` when it is not known here.
pub(super) fn operation(text: Option<&str>) -> Option<&'static str> {
    find(OPERATIONS, text)
}

/// What cannot be done to a task.
pub(super) fn change(text: Option<&str>) -> &'static str {
    find(CHANGES, text).or_else(|| operation(text)).unwrap_or("changed so")
}

/// Which value is refused; `None` when it is not known here.
pub(super) fn value(text: Option<&str>) -> Option<&'static str> {
    find(VALUES, text)
}

/// How something is encoded.
pub(super) fn content_type(text: Option<&str>) -> &'static str {
    find(CONTENT_TYPES, text).unwrap_or("its content type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_others_are_not_kept() {
        assert_eq!(provider(Some("sqlite"), "http"), "sqlite");
        assert_eq!(provider(Some("made up"), "http"), "http");
        assert_eq!(operation(Some("send")), Some("send"));
        assert_eq!(operation(Some("made up")), None);
        assert_eq!(change(Some("replayed")), "replayed");
        assert_eq!(change(None), "changed so");
    }

    #[test]
    fn each_list_is_in_order_and_single() {
        for words in [PROVIDERS, OPERATIONS, CHANGES, VALUES, CONTENT_TYPES] {
            assert!(words.is_sorted_by(|a, b| a < b), "{words:?}");
        }
    }
}
