//! Archived messages.

use super::*;

pub(super) fn shapes() -> Named {
    vec![(
        "ArchivedMessage",
        Object::new()
            .must("id", uuid())
            .must("queue", text())
            .must(
                "state",
                about(
                    one_of(&["COMPLETED", "FAILED"]),
                    "COMPLETED: acknowledged; FAILED: a dead letter that was purged",
                ),
            )
            .bytes("body", "body_base64")
            .must("content_type", text())
            .must("headers", headers())
            .maybe("ordering_key", text())
            .must("priority", priority())
            .must("receive_count", whole())
            .must("attempts_count", whole())
            .must("enqueued_at", time())
            .maybe("first_attempt_at", time())
            .maybe("last_attempt_at", time())
            .must("archived_at", about(time(), "When it ended"))
            .maybe("last_error", text())
            .answer(),
    )]
}
