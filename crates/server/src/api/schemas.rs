//! The shapes of what goes in and out, for the OpenAPI description.

use serde_json::{Map, Value, json};

/// A reference to a shape by its name.
pub(crate) fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A name that can be read from: a queue, or the dead letters of one.
pub(crate) fn queue_name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 84, "pattern": "^[A-Za-z0-9_.-]+$" })
}

pub(crate) fn text() -> Value {
    json!({ "type": "string" })
}

pub(crate) fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// A number of rows.
pub(crate) fn limit(most: usize) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": most })
}

pub(crate) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(crate) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub(crate) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// `500ms`, `5s`, `1h30m`, `3d`.
pub(crate) fn duration() -> Value {
    json!({
        "type": "string",
        "minLength": 2,
        "pattern": "^([0-9]{1,4}d)?([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,6}ms)?$",
        "examples": ["500ms", "5s", "1h30m", "3d"],
    })
}

fn priority() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 9 })
}

pub(crate) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// A line of text: nothing that a terminal or a log could misunderstand.
fn line(most: usize) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most, "pattern": "^[ -~]+$" })
}

fn base64() -> Value {
    json!({
        "type": "string",
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
    })
}

fn headers() -> Value {
    json!({
        "type": "object",
        "propertyNames": { "pattern": "^[A-Za-z0-9_.]{1,128}$" },
        "additionalProperties": { "type": "string", "pattern": "^[^\\x00]*$" },
    })
}

/// A strategy is its name and the fields that it has.
fn retry_strategy() -> Value {
    let limits = Object::new()
        .may("max_attempts", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("max_total_delay", duration())
        .asked();
    let growing = |name: &str| {
        let strategy = Object::new().must("strategy", one_of(&[name])).may("initial_delay", duration());
        strategy.may("max_delay", duration()).may("limits", limits.clone())
    };
    let factor = json!({ "type": "number", "minimum": 1, "maximum": 1000 });
    json!({ "oneOf": [
        Object::new().must("strategy", one_of(&["no_retry"])).asked(),
        Object::new().must("strategy", one_of(&["constant"])).must("delay", duration()).may("limits", limits.clone()).asked(),
        growing("linear").must("increment", duration()).asked(),
        growing("exponential").may("multiplier", factor.clone()).asked(),
        growing("exponential_with_jitter").may("multiplier", factor).asked(),
        Object::new()
            .must("strategy", one_of(&["constant_with_jitter"]))
            .must("delay", duration())
            .must("jitter", duration())
            .may("limits", limits.clone())
            .asked(),
    ] })
}

/// Everything that may be in an object, the names of what must be, and whether it may have more.
struct Object {
    properties: Map<String, Value>,
    required: Vec<&'static str>,
    /// One of each pair must be there, and not both.
    either: Vec<(&'static str, &'static str)>,
}

impl Object {
    fn new() -> Self {
        Self { properties: Map::new(), required: Vec::new(), either: Vec::new() }
    }

    fn must(mut self, name: &'static str, schema: Value) -> Self {
        self.required.push(name);
        self.may(name, schema)
    }

    fn may(mut self, name: &'static str, schema: Value) -> Self {
        self.properties.insert(name.to_owned(), schema);
        self
    }

    /// Left out or null when there is none.
    fn maybe(self, name: &'static str, schema: Value) -> Self {
        self.may(name, or_null(schema))
    }

    /// Bytes: text, or base64 under another name.
    fn bytes(self, name: &'static str, encoded: &'static str) -> Self {
        self.may(name, text()).may(encoded, base64())
    }

    /// The same, and one of the two must be there.
    fn must_bytes(mut self, name: &'static str, encoded: &'static str) -> Self {
        self.either.push((name, encoded));
        self.bytes(name, encoded)
    }

    /// As an answer has it.
    fn answered(self) -> Value {
        let mut schema = json!({ "type": "object", "properties": self.properties, "required": self.required });
        for (one, other) in self.either {
            schema["oneOf"] = json!([{ "required": [one] }, { "required": [other] }]);
        }
        schema
    }

    /// As a request has it: what is not known is refused.
    fn asked(self) -> Value {
        let mut schema = self.answered();
        schema["additionalProperties"] = json!(false);
        schema
    }
}

/// An answer with one field.
pub(crate) fn only(name: &'static str, schema: Value) -> Value {
    Object::new().must(name, schema).answered()
}

/// A page of rows.
pub(crate) fn page(name: &'static str, row: Value) -> Value {
    Object::new().must(name, list(row)).maybe("next", text()).answered()
}

/// A request with one field.
pub(crate) fn asks_only(name: &'static str, schema: Value) -> Value {
    Object::new().must(name, schema).asked()
}

/// Every named shape.
pub(crate) fn all() -> Value {
    let mut all = Map::new();
    for (name, schema) in messages().into_iter().chain(queues()).chain(dead_letters()).chain(tasks()).chain(people()) {
        all.insert(name.to_owned(), schema);
    }
    Value::Object(all)
}

type Named = Vec<(&'static str, Value)>;

fn receive_options() -> Object {
    Object::new()
        .may("max", json!({ "type": "integer", "minimum": 1, "maximum": 1000 }))
        .may("visibility", duration())
        .may("wait", duration())
        .may("max_receive_count", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("worker", line(128))
}

fn receipts() -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "maxItems": 1000 })
}

fn messages() -> Named {
    let envelope = || {
        Object::new()
            .must("id", uuid())
            .must("queue", text())
            .bytes("body", "body_base64")
            .must("content_type", text())
            .must("headers", headers())
            .maybe("ordering_key", text())
            .must("priority", priority())
            .must("receive_count", whole())
            .must("attempts_count", whole())
            .must("enqueued_at", time())
    };
    let key = || line(128);
    let new_message = Object::new()
        .may("id", uuid())
        .must_bytes("body", "body_base64")
        .may("content_type", line(128))
        .may("headers", headers())
        .may("ordering_key", key())
        .may("dedup_key", key())
        .may("priority", priority())
        .may("delay", duration())
        .may("expires_in", duration())
        .may("expires_at", time());
    vec![
        (
            "Problem",
            Object::new()
                .must("type", text())
                .must("title", text())
                .must("status", json!({ "type": "integer", "minimum": 400, "maximum": 599 }))
                .must("code", text())
                .must("detail", text())
                .may("request_id", text())
                .answered(),
        ),
        ("NewMessage", new_message.asked()),
        ("Sent", Object::new().must("id", uuid()).must("queue", text()).answered()),
        ("SentRow", Object::new().may("id", uuid()).may("problem", named("Problem")).answered()),
        (
            "PeekedMessage",
            envelope()
                .must("state", one_of(&["PENDING", "PROCESSING", "RETRYABLE"]))
                .must("next_attempt_at", time())
                .maybe("last_error", text())
                .answered(),
        ),
        (
            "ReceivedMessage",
            envelope()
                .must("receipt", text())
                .maybe("dedup_key", text())
                .maybe("expires_at", time())
                .must("first_attempt_at", time())
                .must("lease_expires_at", time())
                .answered(),
        ),
        (
            "MessageAttempt",
            Object::new()
                .must("attempt", whole())
                .maybe("started_at", time())
                .must("failed_at", time())
                .maybe("worker", text())
                .maybe("error", text())
                .answered(),
        ),
        ("Receive", receive_options().may("id", uuid()).asked()),
        (
            "ReceiveSeveral",
            receive_options()
                .must("queues", json!({ "type": "array", "items": queue_name(), "minItems": 1, "maxItems": 100 }))
                .may("settlements", json!({ "type": "array", "items": named("Settlement"), "maxItems": 1000 }))
                .asked(),
        ),
        (
            "SettledAndReceived",
            Object::new()
                .must("settled", list(named("SettledRow")))
                .must("messages", list(named("ReceivedMessage")))
                .maybe("receive_problem", named("Problem"))
                .answered(),
        ),
        (
            "Settlement",
            Object::new()
                .must("receipt", text())
                .must("outcome", one_of(&["ack", "retry", "release", "dead_letter"]))
                .may("after", duration())
                .may("error", text())
                .may("reason", text())
                .asked(),
        ),
        (
            "SettledRow",
            Object::new()
                .must("receipt", text())
                .may("outcome", one_of(&["done"]))
                .may("problem", named("Problem"))
                .answered(),
        ),
        ("Receipts", asks_only("receipts", receipts())),
        ("Nack", Object::new().must("receipts", receipts()).may("after", duration()).may("error", text()).asked()),
        (
            "DeadLetterMessages",
            Object::new().must("receipts", receipts()).must("reason", text()).may("error", text()).asked(),
        ),
        ("Extend", Object::new().must("receipts", receipts()).must("visibility", duration()).asked()),
    ]
}

fn queues() -> Named {
    let count = || or_null(whole());
    vec![
        (
            "QueueStats",
            Object::new()
                .must("queue", text())
                .must("ready", count())
                .must("in_flight", count())
                .must("delayed", count())
                .must("dead", count())
                .must("oldest_age_seconds", or_null(json!({ "type": "number", "minimum": 0 })))
                .must("paused", flag())
                .must("approximate", list(text()))
                .must("unknown", list(text()))
                .answered(),
        ),
        (
            "QueueHealth",
            Object::new()
                .must("healthy", list(text()))
                .must("missing", list(text()))
                .must("errors", list(Object::new().must("queue", text()).must("error", text()).answered()))
                .answered(),
        ),
        ("Paused", Object::new().must("queue", text()).must("paused", flag()).answered()),
        (
            "Capabilities",
            Object::new()
                .must("provider", text())
                .must("server_version", text())
                .must(
                    "features",
                    list(
                        Object::new()
                            .must("feature", text())
                            .must("name", text())
                            .must("support", one_of(&["native", "emulated", "refused"]))
                            .maybe("note", text())
                            .answered(),
                    ),
                )
                .must(
                    "limits",
                    Object::new()
                        .must("max_body_bytes", whole())
                        .must("max_header_bytes", whole())
                        .must("max_delay", text())
                        .must("max_visibility", text())
                        .must("time_resolution", text())
                        .maybe("dedup_window", text())
                        .answered(),
                )
                .answered(),
        ),
        (
            "Finding",
            Object::new()
                .must("check", text())
                .must("severity", one_of(&["fine", "note", "warning", "problem"]))
                .must("found", text())
                .maybe("fix", text())
                .answered(),
        ),
    ]
}

fn dead_letters() -> Named {
    let choice = || {
        Object::new()
            .may("ids", json!({ "type": "array", "items": uuid(), "maxItems": 10_000 }))
            .may("reason", text())
            .may("error", text())
    };
    vec![
        (
            "DeadLetter",
            Object::new()
                .must("id", uuid())
                .must("queue", text())
                .bytes("body", "body_base64")
                .must("content_type", text())
                .must("headers", headers())
                .maybe("ordering_key", text())
                .maybe("dedup_key", text())
                .must("priority", priority())
                .maybe("expires_at", time())
                .must("reason", text())
                .maybe("error", text())
                .must("receive_count", whole())
                .must("attempts_count", whole())
                .must("enqueued_at", time())
                .maybe("first_attempt_at", time())
                .maybe("last_attempt_at", time())
                .must("dead_at", time())
                .must("revision", whole())
                .answered(),
        ),
        (
            "DeadLetterEdit",
            Object::new().bytes("body", "body_base64").may("content_type", line(128)).may("headers", headers()).asked(),
        ),
        (
            "DeadLetterGroup",
            Object::new()
                .must("reason", text())
                .maybe("error", text())
                .must("count", whole())
                .must("first_dead_at", time())
                .must("last_dead_at", time())
                .must("example_id", uuid())
                .answered(),
        ),
        (
            "DeadLetterGroups",
            Object::new()
                .must("groups", list(named("DeadLetterGroup")))
                .must("looked_at", whole())
                .must("complete", flag())
                .answered(),
        ),
        ("Redrive", choice().may("to", queue_name()).may("dry_run", flag()).asked()),
        (
            "Redriven",
            Object::new()
                .must("redriven", list(uuid()))
                .must(
                    "skipped",
                    list(
                        Object::new()
                            .must("id", uuid())
                            .must("why", one_of(&["leased", "dedup_key_taken", "not_found"]))
                            .answered(),
                    ),
                )
                .answered(),
        ),
        (
            "RedriveJob",
            choice().may("to", queue_name()).may("rate", json!({ "type": "number", "exclusiveMinimum": 0 })).asked(),
        ),
        ("Purge", choice().may("dry_run", flag()).asked()),
        ("Purged", only("purged", whole())),
        (
            "Job",
            Object::new()
                .must("id", uuid())
                .must("kind", one_of(&["redrive", "replay"]))
                .maybe("queue", text())
                .must("state", one_of(&["running", "done", "failed", "canceled"]))
                .must("total", whole())
                .must("done", whole())
                .must("skipped", whole())
                .maybe("error", text())
                .must("started_at", time())
                .maybe("ended_at", time())
                .answered(),
        ),
    ]
}

fn task_state() -> Value {
    one_of(&["PENDING", "ENQUEUED", "PROCESSING", "SUCCEEDED", "DEAD", "CANCELED"])
}

fn task_info() -> Object {
    Object::new()
        .must("id", uuid())
        .must("type", text())
        .must("state", task_state())
        .must("priority", priority())
        .must("attempt_count", whole())
        .must("max_attempts", whole())
        .must("created_at", time())
        .must("scheduled_for", time())
        .maybe("deadline", time())
        .maybe("enqueued_at", time())
        .maybe("started_at", time())
        .maybe("finished_at", time())
        .maybe("worker", text())
        .maybe("lease_expires_at", time())
        .maybe("progress", json!({ "type": "object" }))
        .maybe("dead_reason", text())
        .maybe("last_error", text())
        .maybe("ordering_key", text())
        .maybe("blocked", flag())
        .maybe("idempotency_key", text())
        .must("tags", list(text()))
        .maybe("schedule", text())
        .maybe("retry_strategy", json!({ "type": "object" }))
        .must("revision", whole())
        .must("replay_count", whole())
}

fn task_type() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9_.-]+$" })
}

fn task_choice() -> Object {
    Object::new()
        .may("type", list(task_type()))
        .may("tag", list(text()))
        .may("reason", one_of(&["max_attempts", "permanent", "lease_lost", "deadline", "retries_exhausted"]))
        .may("error", text())
        .may("schedule", text())
        .may("since", time())
        .may("before", time())
        .may("ids", json!({ "type": "array", "items": uuid(), "maxItems": 10_000 }))
        .may("limit", json!({ "type": "integer", "minimum": 1 }))
}

fn new_task(new: Object) -> Object {
    new.may("max_attempts", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("priority", priority())
        .may("ordering_key", line(128))
        .may("retry_strategy", retry_strategy())
        .may("deadline_in", duration())
        .may("tags", json!({ "type": "array", "items": line(128), "maxItems": 32 }))
}

fn tasks() -> Named {
    let standing = Object::new().must("held", flag()).maybe("state", task_state()).answered();
    let finish = Object::new()
        .must("lease", text())
        .must("outcome", one_of(&["succeeded", "retry", "dead", "released"]))
        .bytes("result", "result_base64")
        .may("after", duration())
        .may("error", text())
        .may("reason", text());
    let worker = || line(128);
    let claimed = Object::new()
        .must("lease", text())
        .must("id", uuid())
        .must("type", text())
        .bytes("payload", "payload_base64")
        .must("attempt_count", whole())
        .must("max_attempts", whole())
        .maybe("retry_strategy", json!({ "type": "object" }))
        .must("priority", priority())
        .maybe("ordering_key", text())
        .must("tags", list(text()))
        .must("created_at", time())
        .must("scheduled_for", time())
        .must("since_first_attempt", text())
        .maybe("time_left", text());
    let made = || Object::new().must("id", uuid()).must("state", task_state()).must("is_new", flag());
    let schedule = Object::new()
        .must("name", text())
        .must("type", text())
        .maybe("cron", text())
        .maybe("time_zone", text())
        .maybe("every", text())
        .must("missed", one_of(&["skip", "one", "all"]))
        .must("paused", flag())
        .maybe("paused_at", time())
        .must("created_at", time())
        .maybe("next_run_at", time())
        .maybe("last_run_at", time())
        .maybe("last_task", uuid())
        .must("payload", text())
        .maybe("max_attempts", whole())
        .must("priority", priority())
        .maybe("ordering_key", text())
        .maybe("retry_strategy", json!({ "type": "object" }))
        .maybe("deadline_in", text())
        .must("tags", list(text()));
    vec![
        (
            "NewTask",
            new_task(Object::new().may("id", uuid()).must("type", task_type()).must_bytes("payload", "payload_base64"))
                .may("scheduled_for", time())
                .may("in", duration())
                .may("idempotency_key", line(512))
                .may("deadline", time())
                .asked(),
        ),
        ("CreatedTask", made().answered()),
        (
            "CreatedRow",
            Object::new()
                .may("id", uuid())
                .may("state", task_state())
                .may("is_new", flag())
                .may("problem", named("Problem"))
                .answered(),
        ),
        ("TaskInfo", task_info().answered()),
        ("ChangedTask", task_info().maybe("left", task_state()).answered()),
        (
            "Task",
            task_info()
                .bytes("payload", "payload_base64")
                .bytes("result", "result_base64")
                .must(
                    "attempts",
                    list(
                        Object::new()
                            .must("attempt", whole())
                            .must("replay", whole())
                            .must("worker", text())
                            .must("started_at", time())
                            .maybe("ended_at", time())
                            .must("outcome", text())
                            .maybe("error", text())
                            .answered(),
                    ),
                )
                .must(
                    "revisions",
                    list(
                        Object::new()
                            .must("revision", whole())
                            .bytes("payload", "payload_base64")
                            .must("replaced_at", time())
                            .answered(),
                    ),
                )
                .answered(),
        ),
        ("Payload", Object::new().must_bytes("payload", "payload_base64").asked()),
        ("Revision", only("revision", whole())),
        ("Replay", task_choice().may("dry_run", flag()).asked()),
        ("ReplayJob", task_choice().may("rate", json!({ "type": "number", "exclusiveMinimum": 0 })).asked()),
        ("Replayed", Object::new().must("replayed", list(uuid())).must("skipped", list(uuid())).answered()),
        ("Standing", standing),
        ("Finish", finish.asked()),
        (
            "Claim",
            Object::new()
                .must("types", json!({ "type": "array", "items": task_type(), "maxItems": 100 }))
                .may("max", json!({ "type": "integer", "minimum": 1, "maximum": 1000 }))
                .may("lease", duration())
                .must("worker", worker())
                .may("wait", duration())
                .may("finish", json!({ "type": "array", "items": named("Finish"), "maxItems": 1000 }))
                .asked(),
        ),
        ("ClaimedTask", claimed.answered()),
        (
            "Claimed",
            Object::new()
                .must("finished", list(named("Standing")))
                .must("tasks", list(named("ClaimedTask")))
                .maybe("next_due", text())
                .answered(),
        ),
        (
            "ClaimById",
            Object::new()
                .must("ids", json!({ "type": "array", "items": uuid(), "maxItems": 1000 }))
                .may("lease", duration())
                .must("worker", worker())
                .asked(),
        ),
        (
            "ClaimAnswer",
            Object::new()
                .may("claimed", named("ClaimedTask"))
                .may("not_due", text())
                .may("not_claimable", flag())
                .answered(),
        ),
        ("FinishTasks", asks_only("finish", json!({ "type": "array", "items": named("Finish"), "maxItems": 1000 }))),
        (
            "Heartbeats",
            Object::new()
                .must(
                    "heartbeats",
                    json!({
                        "type": "array", "maxItems": 1000,
                        "items": Object::new()
                            .must("lease", text())
                            .may("progress", Object::new()
                                .may("fraction", json!({ "type": "number", "minimum": 0, "maximum": 1 }))
                                .may("text", text())
                                .asked())
                            .asked(),
                    }),
                )
                .may("extend", duration())
                .asked(),
        ),
        ("Leases", asks_only("leases", json!({ "type": "array", "items": text(), "maxItems": 1000 }))),
        (
            "TaskRoutes",
            Object::new()
                .must("mode", one_of(&["polling", "queue"]))
                .must("queue_prefix", text())
                .maybe("dead_events", text())
                .must("max_payload_bytes", whole())
                .must("store", text())
                .answered(),
        ),
        ("Schedule", schedule.answered()),
        (
            "NewSchedule",
            new_task(Object::new().must("type", task_type()).must("payload", text()))
                .may("cron", text())
                .may("time_zone", text())
                .may("every", duration())
                .may("missed", one_of(&["skip", "one", "all"]))
                .asked(),
        ),
    ]
}

fn people() -> Named {
    let role = || one_of(&["read", "produce", "consume", "operate", "admin"]);
    let token = || {
        Object::new()
            .must("id", text())
            .must("name", text())
            .must("roles", list(role()))
            .maybe("queues", list(text()))
            .must("created_at", time())
            .maybe("expires_at", time())
            .maybe("last_used_at", time())
    };
    let numbers = || json!({ "type": "array", "items": { "type": ["integer", "null"] } });
    vec![
        ("Health", only("ok", flag())),
        (
            "Worker",
            Object::new()
                .must("name", text())
                .must("kind", one_of(&["http", "task"]))
                .maybe("address", text())
                .must("queues", list(text()))
                .must("in_flight", whole())
                .must("waiting", flag())
                .must("first_seen_at", time())
                .must("last_seen_at", time())
                .must("idle_seconds", json!({ "type": "number" }))
                .answered(),
        ),
        (
            "History",
            Object::new()
                .must("interval_seconds", json!({ "type": "number" }))
                .must("since_seconds", json!({ "type": "number" }))
                .must("now", time())
                .must(
                    "queues",
                    list(
                        Object::new()
                            .must("queue", text())
                            .must("ready", numbers())
                            .must("in_flight", numbers())
                            .must("delayed", numbers())
                            .must("dead", numbers())
                            .must("sent", numbers())
                            .must("received", numbers())
                            .must("acked", numbers())
                            .must("retried", numbers())
                            .must("dead_lettered", numbers())
                            .answered(),
                    ),
                )
                .answered(),
        ),
        (
            "AuditEntry",
            Object::new()
                .must("id", text())
                .must("at", time())
                .must("who", text())
                .must("action", text())
                .must("target", text())
                .may("detail", json!({ "type": "object" }))
                .answered(),
        ),
        ("Token", token().answered()),
        ("CreatedToken", token().must("token", text()).answered()),
        (
            "NewToken",
            Object::new()
                .must("name", json!({ "type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[!-~]+$" }))
                .must("roles", json!({ "type": "array", "items": role(), "minItems": 1 }))
                .may("queues", json!({ "type": "array", "items": line(81), "minItems": 1, "maxItems": 100 }))
                .may("expires_in", duration())
                .asked(),
        ),
        (
            "Session",
            Object::new()
                .must("open", flag())
                .must("authenticated", flag())
                .maybe("name", text())
                .must("roles", list(role()))
                .maybe("queues", list(text()))
                .maybe("provider", text())
                .maybe("store", text())
                .must("version", text())
                .must("now", time())
                .answered(),
        ),
        ("NewSession", asks_only("token", text())),
        ("Status", Object::new().must("status", text()).maybe("why", text()).answered()),
    ]
}
