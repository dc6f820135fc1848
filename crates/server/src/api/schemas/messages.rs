//! Messages: send, receive, settle.

use serde_json::{Value, json};

use super::*;

fn receive_options() -> Object {
    Object::new()
        .may("max", json!({ "type": "integer", "minimum": 1, "maximum": 1000 }))
        .may("visibility", duration())
        .may("wait", duration())
        .may("max_receive_count", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }))
        .may("worker", line(128))
}

fn receipts() -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "maxItems": 10_000 })
}

pub(super) fn shapes() -> Named {
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
        .may("id", about(uuid(), "Id of the message; generated if omitted. Two sends with one id make two messages"))
        .must_bytes("body", "body_base64")
        .may("content_type", line(128))
        .may("headers", headers())
        .may("ordering_key", key())
        .may("dedup_key", about(key(), "While a message with this key lives, a send with it returns that message's id"))
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
                .answer(),
        ),
        ("NewMessage", new_message.request()),
        ("Sent", Object::new().must("id", uuid()).must("queue", text()).answer()),
        ("SentRow", Object::new().may("id", uuid()).may("problem", named("Problem")).answer()),
        (
            "PeekedMessage",
            envelope()
                .must("state", one_of(&["PENDING", "PROCESSING", "RETRYABLE"]))
                .must("next_attempt_at", time())
                .maybe("last_error", text())
                .answer(),
        ),
        (
            "ReceivedMessage",
            envelope()
                .must("receipt", text())
                .maybe("dedup_key", text())
                .maybe("expires_at", time())
                .must("first_attempt_at", time())
                .must("lease_expires_at", time())
                .answer(),
        ),
        (
            "MessageAttempt",
            Object::new()
                .must("attempt", whole())
                .maybe("started_at", time())
                .must("failed_at", time())
                .maybe("worker", text())
                .maybe("error", text())
                .answer(),
        ),
        ("Death", Object::new().must("reason", text()).may("error", text()).request()),
        (
            "BulkMessages",
            Object::new()
                .may("state", one_of(&["ready", "delayed"]))
                .may("key", text())
                .may("header", about(text(), "As name=value"))
                .may("since", time())
                .may("before", time())
                .may("ids", json!({ "type": "array", "items": uuid(), "maxItems": 10_000 }))
                .may("reason", about(text(), "Reason of the dead-lettering, one word; for dead-letter jobs only"))
                .may("error", about(text(), "Details of the reason"))
                .may("rate", json!({ "type": "number", "exclusiveMinimum": 0 }))
                .may("dry_run", flag())
                .request(),
        ),
        (
            "ChosenMessages",
            Object::new()
                .must("messages", whole())
                .must("skipped", whole())
                .must("complete", flag())
                .may("dry_run", flag())
                .answer(),
        ),
        ("Receive", receive_options().may("id", uuid()).request()),
        (
            "ReceiveSeveral",
            receive_options()
                .must("queues", json!({ "type": "array", "items": queue_name(), "minItems": 1, "maxItems": 100 }))
                .may("settlements", json!({ "type": "array", "items": named("Settlement"), "maxItems": 10_000 }))
                .request(),
        ),
        (
            "SettledAndReceived",
            Object::new()
                .must("settled", list(named("SettledRow")))
                .must("messages", list(named("ReceivedMessage")))
                .maybe("receive_problem", named("Problem"))
                .answer(),
        ),
        (
            "Settlement",
            Object::new()
                .must("receipt", text())
                .must("outcome", one_of(&["ack", "retry", "release", "dead_letter"]))
                .may("after", duration())
                .may("error", text())
                .may("reason", text())
                .may("worker", text())
                .request(),
        ),
        (
            "SettledRow",
            Object::new()
                .must("receipt", text())
                .may("new_receipt", text())
                .may("outcome", one_of(&["done"]))
                .may("problem", named("Problem"))
                .answer(),
        ),
        ("Receipts", request_only("receipts", receipts())),
        ("Nack", Object::new().must("receipts", receipts()).may("after", duration()).may("error", text()).request()),
        (
            "DeadLetterMessages",
            Object::new().must("receipts", receipts()).must("reason", text()).may("error", text()).request(),
        ),
        ("Extend", Object::new().must("receipts", receipts()).must("visibility", duration()).request()),
    ]
}
