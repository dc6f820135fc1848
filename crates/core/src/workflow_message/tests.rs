use serde_json::json;

use super::*;

const TASK: Uuid = Uuid::from_u128(1);
const STEP: Uuid = Uuid::from_u128(2);
const CORRELATION: Uuid = Uuid::from_u128(3);
const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn step() -> StepMessage {
    StepMessage::new(TASK, STEP, CORRELATION)
}

fn result(status: StepStatus) -> StepExecutionResult {
    StepExecutionResult::new(&step(), 2, status, NOON, NOON.saturating_add(Duration::from_millis(1500)))
}

fn written<T: QueueMessage>(message: &T) -> Value {
    serde_json::from_slice(&message.to_bytes().unwrap()).unwrap()
}

fn read<T: QueueMessage>(text: &Value) -> Result<T, MessagingError> {
    T::from_bytes(text.to_string().as_bytes())
}

/// Serializes and deserializes, with a field of a newer program added.
#[track_caller]
fn assert_survives<T: QueueMessage + PartialEq + std::fmt::Debug>(message: T) {
    let mut text = written(&message);
    assert_eq!(T::CONTENT_TYPE, ContentType::JSON);
    assert_eq!(text["schema"], SCHEMA);
    assert_eq!(read::<T>(&text).unwrap(), message);
    text["added_later"] = json!({"by": ["a", "newer", "program"]});
    assert_eq!(read::<T>(&text).unwrap(), message);
}

#[test]
fn every_message_round_trips() {
    let trace = TraceContext { traceparent: "00-1-2-01".into(), tracestate: Some("v=1".into()) };
    assert_survives(step());
    assert_survives(step().with_trace_context(trace));
    for output in [
        StepOutput::Inline(json!({"total": 12.5, "ids": [1, u64::MAX, -3]})),
        StepOutput::Inline(Value::Null),
        StepOutput::Reference("s3://bucket/key".into()),
    ] {
        assert_survives(result(StepStatus::Succeeded { output }).with_worker_id("w1"));
    }
    let error = StepError { message: "no route".into(), kind: "connection".into(), retryable: true };
    assert_survives(result(StepStatus::Failed { error }));
    assert_survives(result(StepStatus::Canceled));
    let request = TaskRequestMessage::new("billing", "charge", "1.0.0", json!({"order": 7}));
    assert_survives(request.clone());
    assert_survives(TaskRequestMessage {
        requested_by: Some("cron".into()),
        priority: Priority::HIGHEST,
        scheduled_for: Some(NOON),
        ..request.with_idempotency_key("order-7")
    });
    assert_survives(TaskFinalizationMessage::new(TASK, CORRELATION, FinalizationReason::StepsFinished));
    assert_survives(TaskFinalizationMessage {
        step_uuid: Some(STEP),
        ..TaskFinalizationMessage::new(TASK, CORRELATION, FinalizationReason::StepFailed)
    });
    let event = DomainEvent::new("billing", "order.paid", CORRELATION, json!({"order": 7}));
    assert_survives(event.clone().with_step(&step()));
    assert_survives(event);
}

#[test]
fn a_step_message_has_ids_only() {
    assert_eq!(
        written(&step()),
        json!({"schema": 1, "task_uuid": TASK, "step_uuid": STEP, "correlation_id": CORRELATION})
    );
}

#[test]
fn a_result_has_its_status_beside_its_ids() {
    let error = StepError { message: "no".into(), kind: "timeout".into(), retryable: true };
    let failed = result(StepStatus::Failed { error });
    assert!(failed.is_retryable());
    assert!(!result(StepStatus::Canceled).is_retryable());
    assert_eq!(failed.duration(), Duration::from_millis(1500));
    assert_eq!(
        written(&failed),
        json!({
            "schema": 1, "task_uuid": TASK, "step_uuid": STEP, "correlation_id": CORRELATION, "attempt": 2,
            "status": "failed", "error": {"message": "no", "kind": "timeout", "retryable": true},
            "started_at": "2023-11-14T22:13:20Z", "finished_at": "2023-11-14T22:13:21.5Z",
        })
    );
    let done = written(&result(StepStatus::Succeeded { output: StepOutput::Inline(json!(7)) }));
    assert_eq!((&done["status"], &done["output"]), (&json!("succeeded"), &json!({"inline": 7})));
}

#[test]
fn missing_fields_have_defaults() {
    let ids = json!({"task_uuid": TASK, "step_uuid": STEP, "correlation_id": CORRELATION});
    assert_eq!(read::<StepMessage>(&ids).unwrap(), step(), "no schema is the first one");
    let request = json!({
        "namespace": "billing", "name": "charge", "version": "1", "correlation_id": CORRELATION, "requested_at": NOON,
    });
    let request = read::<TaskRequestMessage>(&request).unwrap();
    assert_eq!(request.priority, Priority::default());
    assert_eq!((request.context, request.idempotency_key), (Value::Null, None));
}

#[test]
fn a_newer_schema_is_refused_whatever_its_shape() {
    let newer = json!({"schema": SCHEMA + 1, "ids": [TASK, STEP]});
    let error = read::<StepMessage>(&newer).unwrap_err();
    assert!(matches!(error, MessagingError::Deserialization { .. }));
    assert_eq!(
        error.to_string(),
        "cannot decode the message as JSON: it has schema 2, this program reads up to 1; upgrade this program, then \
         redrive the message"
    );
    let mut same_shape = written(&step());
    same_shape["schema"] = json!(u16::MAX);
    assert!(read::<StepMessage>(&same_shape).is_err());
}

#[test]
fn invalid_messages_are_refused() {
    let good = written(&step());
    for (field, wrong) in
        [("task_uuid", json!("no id")), ("schema", json!("1")), ("schema", json!(-1)), ("correlation_id", Value::Null)]
    {
        let mut text = good.clone();
        text[field] = wrong;
        assert!(read::<StepMessage>(&text).is_err(), "{field}");
    }
    for bytes in [&b""[..], b"{", b"null", b"[]", b"\xff"] {
        assert!(StepMessage::from_bytes(bytes).is_err(), "{bytes:?}");
    }
    let mut unknown = written(&result(StepStatus::Canceled));
    unknown["status"] = json!("vanished");
    assert!(read::<StepExecutionResult>(&unknown).is_err());
}
