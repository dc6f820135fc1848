//! Workers, sessions, tokens and the audit log.

use serde_json::json;

use super::*;

pub(super) fn shapes() -> Named {
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
                .answer(),
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
                            .answer(),
                    ),
                )
                .answer(),
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
                .answer(),
        ),
        ("Token", token().answer()),
        ("CreatedToken", token().must("token", text()).answer()),
        (
            "NewToken",
            Object::new()
                .must("name", json!({ "type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[!-~]+$" }))
                .must("roles", json!({ "type": "array", "items": role(), "minItems": 1 }))
                .may("queues", json!({ "type": "array", "items": line(81), "minItems": 1, "maxItems": 100 }))
                .may("expires_in", duration())
                .request(),
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
                .answer(),
        ),
        ("NewSession", request_only("token", text())),
        ("Status", Object::new().must("status", text()).maybe("why", text()).answer()),
    ]
}
