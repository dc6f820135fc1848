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
    "adopt the queue",
    "attempts",
    "authenticate",
    "begin",
    "bind a queue",
    "cancel",
    "check the right",
    "claim",
    "claim by id",
    "claim tasks",
    "clear the outbox",
    "close",
    "complete",
    "connect",
    "count",
    "count tasks",
    "create",
    "create a queue",
    "create a task",
    "create it",
    "create tasks",
    "create the exchange of flags",
    "create the exchanges for delays",
    "create the queue",
    "create the token",
    "dead-letter",
    "delete",
    "delete a queue",
    "delete a schedule",
    "delete queue",
    "delete the queue",
    "deliver now",
    "edit",
    "edit a task",
    "edit dead letter",
    "empty the outbox",
    "end overdue tasks",
    "enqueue",
    "enqueue tasks",
    "ensure queue",
    "examine",
    "expire",
    "extend",
    "find dead letters",
    "find the queue",
    "finish",
    "finish tasks",
    "fire a schedule",
    "forget",
    "forget records",
    "forget tasks",
    "get",
    "get a record",
    "get a schedule",
    "get dead letter",
    "handle the request",
    "health check",
    "heartbeat",
    "index the queue",
    "list",
    "list dead letters",
    "list queues",
    "list records",
    "list schedules",
    "list tasks",
    "list tokens",
    "look",
    "look at leases",
    "look at messages",
    "look at tasks",
    "look at the indexes",
    "look for due schedules",
    "look for lost leases",
    "look for queues",
    "look for stranded tasks",
    "make a queue",
    "make its folder",
    "make the queue",
    "migrate the file",
    "move",
    "move delayed messages",
    "nack",
    "notify",
    "open",
    "open the database",
    "open the file",
    "open the spool",
    "pause",
    "pause a schedule",
    "pause or resume",
    "pause the queue",
    "peek",
    "promote tasks",
    "purge",
    "purge dead letters",
    "put a record",
    "put a schedule",
    "read",
    "read a schedule",
    "read a task",
    "read attempts",
    "read revisions",
    "read the clock",
    "read the queue's attributes",
    "read the tags",
    "read the time",
    "read whether the queue is paused",
    "reap",
    "reap tasks",
    "receive",
    "receive by id",
    "receive messages",
    "redrive",
    "release",
    "release messages",
    "remove a message",
    "remove a record",
    "renew leases",
    "replace a record",
    "replay",
    "resend",
    "resume",
    "resume a schedule",
    "retry",
    "return",
    "revisions",
    "revoke the token",
    "run now",
    "search the archive",
    "send",
    "send again",
    "send tasks again",
    "set a flag",
    "set the retention",
    "settle",
    "settle and receive",
    "standings",
    "stats",
    "store time",
    "subscribe",
    "sweep the archive",
    "take from the outbox",
    "take messages of the outbox",
    "task",
    "the file operation",
    "the request",
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
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Functions whose first argument is an operation.
    const CALLS: &[&str] = &[
        "accepted",
        "ask",
        "await_answer",
        "begin",
        "begin_waiting",
        "blocking",
        "call",
        "call_once",
        "carry_out",
        "change_waiting",
        "channel",
        "each",
        "in_rounds",
        "inside",
        "into_error",
        "into_harmless",
        "into_read_error",
        "lease",
        "no_answer",
        "read",
        "remove_all",
        "request",
        "session",
        "set_paused",
        "write",
    ];

    /// Modules that are compiled for tests only.
    const TESTS: &[&str] = &["clocks", "plans", "tests"];

    /// Returns the source files of a folder.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let is_for_tests =
            |path: &PathBuf| path.file_stem().is_some_and(|name| TESTS.iter().any(|tests| name == *tests));
        let entries = entries.filter(|path| !is_for_tests(path));
        let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let below = folders.iter().flat_map(|folder| sources(folder));
        files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "rs")).chain(below).collect()
    }

    /// Returns the text before the next quote.
    fn quoted(text: &str) -> Option<&str> {
        text.strip_prefix('"')?.split('"').next()
    }

    /// Returns the operations in a source file: fields, first arguments of calls, and choices between two.
    fn operations(source: &str) -> Vec<&str> {
        let constant = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_uppercase() && c != '_')?;
            let (_, value) = source.split_once(&format!("const {}: &str = ", &text[..end]))?;
            quoted(value).filter(|_| end > 0)
        };
        let mut found: Vec<&str> = Vec::new();
        let places = CALLS
            .iter()
            .map(|call| format!("{call}("))
            .chain(["operation: ".to_owned(), "const OPERATION: &'static str = ".to_owned()]);
        for place in places {
            let behind = source.match_indices(&place).filter(|(at, _)| !source[..*at].ends_with(char::is_alphanumeric));
            let texts = behind.map(|(at, _)| source[at + place.len()..].trim_start());
            found.extend(texts.filter_map(|text| quoted(text).or_else(|| constant(text))));
        }
        for choice in source.split("let operation = ").skip(1) {
            found.extend(choice.split(';').next().unwrap_or_default().split('"').skip(1).step_by(2));
        }
        found
    }

    #[test]
    fn every_operation_of_the_workspace_is_listed() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        // The program and the tools hand no errors to the server.
        let beside = ["bench", "cli", "conformance", "wire"].map(|name| crates.join(name).join("src"));
        let files = fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
        let files: Vec<_> =
            files.filter(|folder| !beside.contains(folder)).flat_map(|folder| sources(&folder)).collect();
        let (mut count, mut missing) = (0, std::collections::BTreeMap::new());
        for file in files {
            let source = fs::read_to_string(&file).unwrap();
            // Tests use other words.
            let source = source.split("\nmod tests {").next().unwrap();
            for text in operations(source).into_iter().filter(|text| text.starts_with(char::is_lowercase)) {
                count += 1;
                if !OPERATIONS.contains(&text) && !CHANGES.contains(&text) {
                    missing.insert(text.to_owned(), file.clone());
                }
            }
        }
        assert!(count > 300, "only {count} operations were found");
        assert!(missing.is_empty(), "operations that clients do not get by name: {missing:#?}");
    }

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
