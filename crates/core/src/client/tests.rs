use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::capabilities::Support;
use crate::clock::Timestamp;
use crate::disposition::Disposition;
use crate::message::{ContentType, Priority};
use crate::router::{DefaultMessageRouter, QueuesConfig};
use crate::shared_provider::fake_provider::FakeProvider;
use crate::workflow_message::{FinalizationReason, StepStatus, TraceContext};

const NEVER: Deadline = Deadline::never();

fn client(provider: FakeProvider) -> MessageClient<FakeProvider> {
    let router = DefaultMessageRouter::from_config(&QueuesConfig::default()).unwrap();
    MessageClient::new(Arc::new(provider), router)
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn step() -> StepMessage {
    StepMessage::new(Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3))
}

#[tokio::test]
async fn every_message_is_sent_and_received_on_its_own_queue() {
    let client = client(FakeProvider::default());
    let options = ReceiveOptions::default();
    let result = StepExecutionResult::new(&step(), 1, StepStatus::Canceled, Timestamp::EPOCH, Timestamp::EPOCH);
    let request = TaskRequestMessage::new("billing", "charge", "1", json!({"order": 7}));
    let finalization =
        TaskFinalizationMessage::new(Uuid::from_u128(1), Uuid::from_u128(3), FinalizationReason::StepsFinished);
    let event = DomainEvent::new("billing", "order.paid", Uuid::from_u128(3), json!(null));

    let id = client.send_step_message("billing", step(), NEVER).await.unwrap();
    client.send_step_result(result.clone(), NEVER).await.unwrap();
    client.send_task_request(request.clone(), NEVER).await.unwrap();
    client.send_task_finalization(finalization.clone(), NEVER).await.unwrap();
    client.publish_domain_event("audit", event.clone(), NEVER).await.unwrap();
    assert_eq!(
        client.provider().queue_names(),
        ["audit_domain_events", "step_results", "task_finalizations", "task_requests", "worker_billing_queue"]
    );
    assert_eq!(client.provider().waiting(&queue("step_results"))[0].content_type, ContentType::JSON);

    let steps = client.receive_step_messages("billing", &options, NEVER).await.unwrap();
    assert_eq!((steps[0].id(), &steps[0].message), (id, &step()));
    assert_eq!(client.receive_step_results(&options, NEVER).await.unwrap()[0].message, result);
    assert_eq!(client.receive_task_requests(&options, NEVER).await.unwrap()[0].message, request);
    assert_eq!(client.receive_task_finalizations(&options, NEVER).await.unwrap()[0].message, finalization);
    assert_eq!(client.receive_domain_events("audit", &options, NEVER).await.unwrap()[0].message, event);
}

#[tokio::test]
async fn the_trace_of_a_step_is_in_the_headers_and_in_the_body() {
    let client = client(FakeProvider::default());
    let trace = TraceContext { traceparent: "00-ab-cd-01".into(), tracestate: Some("vendor=1".into()) };
    let traced = step().with_trace_context(trace);
    client.send_step_message("billing", traced.clone(), NEVER).await.unwrap();
    client.send_step_message("billing", step(), NEVER).await.unwrap();
    let received = client.receive_step_messages("billing", &ReceiveOptions::batch(2), NEVER).await.unwrap();
    let headers = &received[0].envelope.headers;
    assert_eq!(headers.get("traceparent"), Some("00-ab-cd-01"));
    assert_eq!(headers.get("tracestate"), Some("vendor=1"));
    assert_eq!(received[0].message, traced);
    assert!(received[1].envelope.headers.is_empty());
}

#[tokio::test]
async fn queues_are_created_for_namespaces_and_for_the_orchestrator() {
    let client = client(FakeProvider::default());
    let error = client.initialize_namespace_queues(&["billing", "a b"], NEVER).await.unwrap_err();
    assert!(matches!(error, MessagingError::InvalidInput { what: "namespace", .. }));
    assert!(client.provider().calls().is_empty(), "no queue is created if one name is invalid");
    client.initialize_namespace_queues(&["billing", "mail"], NEVER).await.unwrap();
    client.initialize_orchestration_queues(NEVER).await.unwrap();
    assert_eq!(client.provider().calls(), ["ensure_queues"; 2]);
    let names = [
        "billing_domain_events",
        "mail_domain_events",
        "step_results",
        "task_finalizations",
        "task_requests",
        "worker_billing_queue",
        "worker_mail_queue",
    ];
    assert_eq!(client.provider().queue_names(), names);
}

#[tokio::test]
async fn a_request_has_the_priority_of_its_task_where_priorities_are_supported() {
    let mut request = TaskRequestMessage::new("billing", "charge", "1", json!(null));
    request.priority = Priority::HIGHEST;
    for (support, priority) in [(Support::Native, Priority::HIGHEST), (Support::refused("none"), Priority::default())] {
        let client = client(FakeProvider::default().with(Feature::Priority, support));
        client.send_task_request(request.clone(), NEVER).await.unwrap();
        assert_eq!(client.provider().waiting(&queue("task_requests"))[0].priority, priority);
        let received = client.receive_task_requests(&ReceiveOptions::default(), NEVER).await.unwrap();
        assert_eq!(received[0].message.priority, Priority::HIGHEST);
    }
}

#[tokio::test]
async fn messages_are_settled_on_their_own_queue_only() {
    let client = client(FakeProvider::default());
    let steps = queue("worker_billing_queue");
    for _ in 0..3 {
        client.send_step_message("billing", step(), NEVER).await.unwrap();
    }
    assert_eq!(client.get_queue_metrics(&steps, NEVER).await.unwrap().ready.value(), Some(3));
    let clone = client.clone();
    let mut received = clone.receive_step_messages("billing", &ReceiveOptions::batch(3), NEVER).await.unwrap();
    let (third, second, first) = (received.pop().unwrap(), received.pop().unwrap(), received.pop().unwrap());
    let wrong = client.delete_message(&queue("other"), &first, NEVER).await.unwrap_err();
    assert!(matches!(wrong, MessagingError::InvalidReceipt { .. }));
    client.extend_visibility(&steps, first.receipt(), Duration::from_secs(60), NEVER).await.unwrap();
    client.delete_message(&steps, first, NEVER).await.unwrap();
    client.ack_message(&steps, second, NEVER).await.unwrap();
    client.nack_message(&steps, third, Nack::Release, NEVER).await.unwrap();
    let dispositions: Vec<_> =
        client.provider().settle_calls().into_iter().flatten().map(|row| row.disposition).collect();
    assert_eq!(dispositions, [Disposition::Ack, Disposition::Ack, Disposition::Nack(Nack::Release)]);
    assert_eq!(client.provider_name(), "fake");
    assert!(format!("{client:?}").contains("worker_"));
}
