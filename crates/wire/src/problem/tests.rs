use postrider_core::{Capabilities, Support};

use super::*;
use crate::testing::{json, round_trip};

fn every_error() -> Vec<MessagingError> {
    use MessagingError as E;
    let queue = QueueName::new("orders").unwrap();
    let (id, other) = (MessageId::generate(), MessageId::generate());
    let task = TaskId::generate();
    let source = || remote_cause("below".into());
    vec![
        E::Connection { provider: "sqlite", detail: "/x/y.db: gone".into(), source: None },
        E::QueueNotFound { queue: queue.clone() },
        E::Serialization { content_type: "application/json", source: source() },
        E::Deserialization { content_type: "application/msgpack", source: source() },
        E::MessageNotFound { queue: queue.clone(), id },
        E::MessageLeased { queue: queue.clone(), id },
        E::VisibilityExpired { queue: queue.dead_letters(), id },
        E::Provider { provider: "postgres", operation: "send", source: source(), retryable: true },
        E::Provider { provider: "mysql", operation: "receive", source: source(), retryable: false },
        E::busy("the file is locked"),
        E::CircuitBreakerOpen { provider: "rabbitmq", retry_after: Duration::from_millis(1500) },
        Capabilities::native("sqs")
            .with(Feature::ReceiveById, Support::refused("it cannot"))
            .require(Feature::ReceiveById)
            .unwrap_err(),
        E::OutcomeUnknown { operation: "settle", ids: vec![id, other], source: Some(source()) },
        E::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None },
        E::invalid_receipt("it is damaged"),
        E::invalid("dedup key", "it is empty"),
        E::TaskNotFound { id: task },
        E::TaskConflict { id: task, state: TaskState::Succeeded, operation: "replayed" },
        E::DeadlineExceeded { operation: "receive" },
        E::Closed { provider: "spool" },
    ]
}

#[test]
fn errors_round_trip() {
    for error in every_error() {
        let problem = Problem::of(&error);
        assert_eq!((problem.status, &problem.detail), (problem.code.status(), &error.to_string()));
        let back = round_trip(&problem).into_error("http");
        // The text contains every field; a source differs only in its type.
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!(std::mem::discriminant(&back), std::mem::discriminant(&error), "{back:?}");
        assert_eq!(back.is_retryable(), error.is_retryable(), "{back:?}");
        assert_eq!(Problem::of(&back), problem);
    }
}

#[test]
fn every_error_has_a_code_of_its_own() {
    let codes: std::collections::HashSet<_> = every_error().iter().map(code_of).collect();
    // Two kinds of errors occur twice.
    assert_eq!(codes.len(), every_error().len() - 2);
}

#[test]
fn codes_round_trip_and_unknown_ones_are_read() {
    for code in Code::ALL {
        assert_eq!(round_trip(code), *code);
        assert!((400..=504).contains(&code.status()), "{code}");
    }
    let newer = r#"{"type":"x","title":"x","status":418,"code":"teapot","detail":"short and stout","spout":1}"#;
    let problem: Problem = serde_json::from_str(newer).unwrap();
    assert_eq!(problem.code, Code::Unknown);
    let error = problem.into_error("http");
    assert_eq!(error.to_string(), "the server failed to handle the request: short and stout");
    assert!(!error.is_retryable());
}

#[test]
fn codes_of_http_itself_become_errors() {
    use MessagingError as E;
    let error = |code| Problem::new(code, "text").into_error("http");
    assert!(matches!(error(Code::Unauthorized), E::InvalidInput { what: "token", .. }));
    assert!(matches!(error(Code::Forbidden), E::InvalidInput { what: "token", .. }));
    assert!(matches!(error(Code::PayloadTooLarge), E::InvalidInput { what: "body", .. }));
    assert!(matches!(error(Code::TooManyRequests), E::Busy { .. }));
    assert!(matches!(error(Code::IdempotencyInProgress), E::Busy { .. }));
    assert!(error(Code::RequestTimeout).is_retryable());
    for code in [Code::MalformedRequest, Code::NotFound, Code::MethodNotAllowed, Code::UnsupportedMediaType] {
        assert!(matches!(error(code), E::Provider { retryable: false, .. }), "{code}");
    }
}

#[test]
fn a_problem_without_its_fields_is_still_an_error() {
    for code in Code::ALL {
        let error = Problem::new(*code, "the text").into_error("http");
        let is_complete = error.to_string().contains("the text")
            || matches!(
                error,
                MessagingError::CircuitBreakerOpen { .. }
                    | MessagingError::OutcomeUnknown { .. }
                    | MessagingError::DeadlineExceeded { .. }
                    | MessagingError::Closed { .. }
            );
        assert!(is_complete, "{code}: {error}");
    }
}

#[test]
fn unknown_operations_and_values_are_named_in_the_text() {
    let mut problem = Problem::new(Code::StoreFailed, "long text");
    problem.operation = Some("vacuum".into());
    problem.why = Some("disk full".into());
    assert_eq!(problem.into_error("http").to_string(), "the server failed to handle the request: vacuum: disk full");
    let mut problem = Problem::new(Code::InvalidInput, "long text");
    problem.what = Some("colour".into());
    problem.why = Some("too bright".into());
    assert_eq!(problem.into_error("http").to_string(), "invalid value: colour: too bright");
}

#[test]
fn irrelevant_fields_are_absent() {
    let expected = serde_json::json!({
        "type": "/reference#invalid_receipt", "title": "The receipt cannot be used here", "status": 400,
        "code": "invalid_receipt", "why": "it is damaged", "retryable": false, "request_id": "r1",
        "detail": "this receipt cannot be used here: it is damaged. Use the complete receipt, on the queue and the store that issued it",
    });
    let problem =
        Problem { request_id: Some("r1".into()), ..Problem::of(&MessagingError::invalid_receipt("it is damaged")) };
    assert_eq!(json(&problem), expected);
}
