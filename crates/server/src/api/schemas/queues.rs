//! Queues and the store.

use serde_json::json;

use super::*;

pub(super) fn shapes() -> Named {
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
                .answer(),
        ),
        (
            "QueueHealth",
            Object::new()
                .must("healthy", list(text()))
                .must("missing", list(text()))
                .must("errors", list(Object::new().must("queue", text()).must("error", text()).answer()))
                .answer(),
        ),
        (
            "QueueDurations",
            Object::new().maybe("waited", named("Percentiles")).maybe("took", named("Percentiles")).answer(),
        ),
        ("Paused", Object::new().must("queue", text()).must("paused", flag()).answer()),
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
                            .answer(),
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
                        .answer(),
                )
                .answer(),
        ),
        (
            "Finding",
            Object::new()
                .must("check", text())
                .must("severity", one_of(&["fine", "note", "warning", "problem"]))
                .must("found", text())
                .maybe("fix", text())
                .answer(),
        ),
    ]
}
