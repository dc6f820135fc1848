//! Dead letters, redrives and jobs.

use serde_json::json;

use super::*;

pub(super) fn shapes() -> Named {
    let choice = || {
        Object::new()
            .may("ids", json!({ "type": "array", "items": uuid(), "maxItems": 10_000 }))
            .may("reason", text())
            .may("error", text())
            .may("filter", named("DeadLetterFilter"))
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
                .answer(),
        ),
        (
            "DeadLetterEdit",
            Object::new()
                .bytes("body", "body_base64")
                .may("content_type", line(128))
                .may("headers", headers())
                .request(),
        ),
        (
            "DeadLetterFilter",
            Object::new()
                .may("reason", text())
                .may("error", text())
                .may("error_contains", text())
                .may("fingerprint", text())
                .may("key", text())
                .may("id", text())
                .may("since", time())
                .may("before", time())
                .may("text", text())
                .request(),
        ),
        (
            "DeadLetterGroup",
            Object::new()
                .must("reason", text())
                .must("fingerprint", text())
                .maybe("error", text())
                .must("count", whole())
                .must("first_dead_at", time())
                .must("last_dead_at", time())
                .must("example_id", uuid())
                .answer(),
        ),
        (
            "DeadLetterGroups",
            Object::new()
                .must("groups", list(named("DeadLetterGroup")))
                .must("more_kinds", whole())
                .must("more_count", whole())
                .must("looked_at", whole())
                .must("complete", flag())
                .answer(),
        ),
        ("Redrive", choice().may("to", queue_name()).may("dry_run", flag()).request()),
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
                            .answer(),
                    ),
                )
                .may("dry_run", flag())
                .answer(),
        ),
        (
            "RedriveJob",
            choice().may("to", queue_name()).may("rate", json!({ "type": "number", "exclusiveMinimum": 0 })).request(),
        ),
        ("Purge", choice().may("dry_run", flag()).request()),
        ("Purged", Object::new().must("purged", whole()).may("dry_run", flag()).answer()),
        (
            "Job",
            Object::new()
                .must("id", uuid())
                .must("kind", one_of(&["redrive", "replay", "cancel", "retry", "deliver_now", "dead_letter", "delete"]))
                .maybe("queue", text())
                .must("state", one_of(&["running", "done", "failed", "canceled"]))
                .must("total", whole())
                .must("done", whole())
                .must("skipped", whole())
                .maybe("error", text())
                .must("started_at", time())
                .maybe("ended_at", time())
                .answer(),
        ),
    ]
}
