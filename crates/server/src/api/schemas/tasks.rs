//! Tasks and schedules.

use postrider_wire::task::MOST_BY_ID;
use serde_json::{Value, json};

use super::*;

/// A retry strategy, tagged by its name.
fn retry_strategy() -> Value {
    let limits = Object::new()
        .may("max_attempts", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("max_total_delay", duration())
        .request();
    let growing = |name: &str| {
        let strategy = Object::new().must("strategy", one_of(&[name])).may("initial_delay", duration());
        strategy.may("max_delay", duration()).may("limits", limits.clone())
    };
    let factor = json!({ "type": "number", "minimum": 1, "maximum": 1000 });
    json!({ "oneOf": [
        Object::new().must("strategy", one_of(&["no_retry"])).request(),
        Object::new().must("strategy", one_of(&["constant"])).must("delay", duration()).may("limits", limits.clone()).request(),
        growing("linear").must("increment", duration()).request(),
        growing("exponential").may("multiplier", factor.clone()).request(),
        growing("exponential_with_jitter").may("multiplier", factor).request(),
        Object::new()
            .must("strategy", one_of(&["constant_with_jitter"]))
            .must("delay", duration())
            .must("jitter", duration())
            .may("limits", limits.clone())
            .request(),
    ] })
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
    task_filter().may("limit", json!({ "type": "integer", "minimum": 1 }))
}

fn task_filter() -> Object {
    Object::new()
        .may("type", list(task_type()))
        .may("tag", list(text()))
        .may("reason", one_of(&["max_attempts", "permanent", "lease_lost", "deadline", "retries_exhausted"]))
        .may("error", text())
        .may("schedule", text())
        .may("since", time())
        .may("before", time())
        .may("ids", json!({ "type": "array", "items": uuid(), "maxItems": 10_000 }))
}

fn new_task(new: Object) -> Object {
    new.may("max_attempts", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("priority", priority())
        .may("ordering_key", line(128))
        .may("retry_strategy", retry_strategy())
        .may("deadline_in", duration())
        .may("tags", json!({ "type": "array", "items": line(128), "maxItems": 32 }))
}

pub(super) fn shapes() -> Named {
    let standing =
        Object::new().must("held", flag()).maybe("state", task_state()).may("problem", named("Problem")).answer();
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
    let created = || Object::new().must("id", uuid()).must("state", task_state()).must("is_new", flag());
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
                .request(),
        ),
        ("CreatedTask", created().answer()),
        (
            "CreatedRow",
            Object::new()
                .may("id", uuid())
                .may("state", task_state())
                .may("is_new", flag())
                .may("problem", named("Problem"))
                .answer(),
        ),
        ("TaskInfo", task_info().answer()),
        ("ChangedTask", task_info().maybe("left", task_state()).answer()),
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
                            .answer(),
                    ),
                )
                .must(
                    "revisions",
                    list(
                        Object::new()
                            .must("revision", whole())
                            .bytes("payload", "payload_base64")
                            .must("replaced_at", time())
                            .answer(),
                    ),
                )
                .answer(),
        ),
        ("Payload", Object::new().must_bytes("payload", "payload_base64").request()),
        ("Revision", only("revision", whole())),
        (
            "BulkTasks",
            task_filter()
                .may("state", list(task_state()))
                .may("rate", json!({ "type": "number", "exclusiveMinimum": 0 }))
                .may("dry_run", flag())
                .request(),
        ),
        (
            "ChosenTasks",
            Object::new()
                .must("tasks", list(uuid()))
                .must("processing", whole())
                .must("skipped", list(uuid()))
                .may("dry_run", flag())
                .answer(),
        ),
        (
            "TaskCounts",
            Object::new()
                .must("counts", json!({ "type": "object", "additionalProperties": whole() }))
                .must("looked_at", whole())
                .must("complete", flag())
                .must("by_type", list(named("TaskCount")))
                .maybe("waited", named("Percentiles"))
                .maybe("took", named("Percentiles"))
                .answer(),
        ),
        (
            "TaskCount",
            Object::new()
                .must("type", task_type())
                .must("state", task_state())
                .must("count", whole())
                .must("approximate", flag())
                .answer(),
        ),
        (
            "Percentiles",
            Object::new()
                .must("count", whole())
                .must("p50_ms", whole())
                .must("p95_ms", whole())
                .must("p99_ms", whole())
                .answer(),
        ),
        (
            "ScheduleTimes",
            Object::new().must("times", list(time())).maybe("time_zone", text()).must("paused", flag()).answer(),
        ),
        ("Replay", task_choice().may("dry_run", flag()).request()),
        ("ReplayJob", task_choice().may("rate", json!({ "type": "number", "exclusiveMinimum": 0 })).request()),
        (
            "Replayed",
            Object::new().must("replayed", list(uuid())).must("skipped", list(uuid())).may("dry_run", flag()).answer(),
        ),
        ("Standing", standing),
        ("Finish", finish.request()),
        (
            "Claim",
            Object::new()
                .must("types", json!({ "type": "array", "items": task_type(), "maxItems": 100 }))
                .may("max", json!({ "type": "integer", "minimum": 1, "maximum": 1000 }))
                .must("lease", duration())
                .must("worker", worker())
                .may("wait", duration())
                .may("finish", json!({ "type": "array", "items": named("Finish"), "maxItems": 1000 }))
                .request(),
        ),
        ("ClaimedTask", claimed.answer()),
        (
            "Claimed",
            Object::new()
                .must("finished", list(named("Standing")))
                .must("tasks", list(named("ClaimedTask")))
                .maybe("next_due", text())
                .answer(),
        ),
        (
            "ClaimById",
            Object::new()
                .must("ids", json!({ "type": "array", "items": uuid(), "maxItems": MOST_BY_ID }))
                .must("lease", duration())
                .must("worker", worker())
                .request(),
        ),
        (
            "ClaimAnswer",
            Object::new()
                .may("claimed", named("ClaimedTask"))
                .may("not_due", text())
                .may("not_claimable", flag())
                .answer(),
        ),
        ("FinishTasks", request_only("finish", json!({ "type": "array", "items": named("Finish"), "maxItems": 1000 }))),
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
                                .request())
                            .request(),
                    }),
                )
                .must("extend", duration())
                .request(),
        ),
        ("Leases", request_only("leases", json!({ "type": "array", "items": text(), "maxItems": 1000 }))),
        (
            "TaskRoutes",
            Object::new()
                .must("mode", one_of(&["polling", "queue"]))
                .must("queue_prefix", text())
                .maybe("dead_events", text())
                .must("max_payload_bytes", whole())
                .must("store", text())
                .answer(),
        ),
        ("Schedule", schedule.answer()),
        (
            "NewSchedule",
            new_task(Object::new().must("type", task_type()).must("payload", text_or_json()))
                .may("cron", text())
                .may("time_zone", text())
                .may("every", duration())
                .may("missed", one_of(&["skip", "one", "all"]))
                .request(),
        ),
    ]
}
