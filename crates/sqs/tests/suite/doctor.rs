//! Findings of `postrider doctor`.

use std::time::Duration;

use postrider_core::{Finding, Message, MessagingService, Severity};
use postrider_sqs::aws_sdk_sqs::types::QueueAttributeName;
use postrider_sqs::{SqsOptions, SqsStore};

use crate::fake_endpoint::{fake_endpoint, refused, url_of};
use crate::{Emulator, TestStore, queue, soon, take};

async fn examine(store: &TestStore, options: SqsOptions) -> Vec<Finding> {
    SqsStore::examine(&store.url(), options, soon()).await.unwrap()
}

fn found(findings: &[Finding], check: &str) -> Vec<Severity> {
    findings.iter().filter(|finding| finding.check == check).map(|finding| finding.severity).collect()
}

#[tokio::test]
async fn a_queue_that_would_lose_messages_is_reported_and_a_good_one_is_not() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let provider = store.connect().await;
        provider.ensure_queue(&queue("good"), soon()).await.unwrap();
        let findings = examine(&store, SqsOptions::default()).await;
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity > Severity::Note).collect();
        assert!(bad.is_empty(), "{emulator:?}: {bad:?}");
        assert_eq!(found(&findings, "credentials"), [Severity::Fine]);
        assert!(findings[0].found.contains("emulators"), "{findings:?}");
        let client = postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap();
        let create = client.create_queue().queue_name(format!("{}bad", store.prefix));
        let create = create.attributes(QueueAttributeName::MessageRetentionPeriod, "60");
        create.attributes(QueueAttributeName::DelaySeconds, "5").send().await.unwrap();
        let findings = examine(&store, SqsOptions { create_queues: false, ..SqsOptions::default() }).await;
        assert_eq!(found(&findings, "retention"), [Severity::Warning]);
        assert_eq!(found(&findings, "delay"), [Severity::Warning]);
        assert_eq!(found(&findings, "dead letters"), [Severity::Warning, Severity::Problem], "{findings:?}");
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn the_checks_change_nothing() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, orders) = (store.connect().await, queue("orders"));
        provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        provider.send_message(&orders, Message::new("x").ordering_key("k").unwrap(), soon()).await.unwrap();
        let client = postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap();
        let seen = async || {
            let urls = client.list_queues().queue_name_prefix(&store.prefix).send().await.unwrap().queue_urls.unwrap();
            let mut seen = Vec::new();
            for url in urls {
                let ask = client.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All);
                let mut attributes = ask.send().await.unwrap().attributes.unwrap();
                // Moto returns the time of the call.
                attributes.remove(&QueueAttributeName::LastModifiedTimestamp);
                seen.push((url, attributes));
            }
            seen.sort_by(|one, other| one.0.cmp(&other.0));
            seen
        };
        let before = seen().await;
        assert_eq!(before.len(), 3);
        let findings = examine(&store, SqsOptions::default()).await;
        assert_eq!(found(&findings, "permissions"), []);
        assert_eq!(seen().await, before, "{emulator:?}");
        for _ in 0..2 {
            assert_eq!(
                take(&provider, &orders).await.envelope.receive_count,
                1,
                "the checks do not count as deliveries"
            );
        }
        store.delete_queues().await;
    }
}

/// Findings on an endpoint with one queue and its dead letters, where some permissions are missing.
async fn strict<const N: usize>(forbidden: [&'static str; N]) -> Vec<Finding> {
    let url = fake_endpoint(move |action, body| async move {
        match action.as_str() {
            // A batch call needs the permission of the single call.
            action if forbidden.contains(&action.trim_end_matches("Batch")) => refused("AccessDeniedException"),
            "ListQueues" => (200, r#"{"QueueUrls":["http://127.0.0.1/0/orders"]}"#.to_owned()),
            "GetQueueUrl" if body.contains(".fifo") => refused("QueueDoesNotExist"),
            "GetQueueUrl" | "CreateQueue" => url_of(&body),
            "GetQueueAttributes" | "ListQueueTags" => (200, "{}".to_owned()),
            "SendMessageBatch" => refused("EmptyBatchRequest"),
            "ReceiveMessage" => refused("InvalidParameterValue"),
            "DeleteMessage" | "ChangeMessageVisibility" => refused("ReceiptHandleIsInvalid"),
            other => panic!("unexpected call {other}"),
        }
    });
    let findings = SqsStore::examine(&url.await, SqsOptions::default(), soon()).await.unwrap();
    findings.into_iter().filter(|finding| finding.check == "permissions").collect()
}

#[tokio::test]
async fn missing_permissions_are_reported_with_the_queues_and_the_effect() {
    assert_eq!(strict([]).await, []);
    let rights = [
        ("GetQueueAttributes", "statistics"),
        ("CreateQueue", "created"),
        ("SendMessage", "sent"),
        ("ReceiveMessage", "received"),
        ("DeleteMessage", "delivered again"),
        ("ChangeMessageVisibility", "extended"),
    ];
    for (right, fails) in rights {
        let findings = strict([right]).await;
        let [finding] = findings.as_slice() else { panic!("{right}: {findings:?}") };
        assert_eq!(finding.severity, Severity::Warning);
        for part in [&format!("sqs:{right} is not possible on 'orders', 'orders_dlq'"), fails, "AccessDenied"] {
            assert!(finding.found.contains(part), "{part}: {finding:?}");
        }
    }
    let all = strict(["SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"]).await;
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(strict(["ListQueues"]).await.len(), 1);
    let tags = strict(["ListQueueTags"]).await;
    assert!(tags.len() == 1 && tags[0].found.contains("on 'orders': a pause"), "{tags:?}");
}

#[tokio::test]
async fn an_unreachable_endpoint_is_a_finding() {
    let findings = SqsStore::examine("sqs+http://127.0.0.1:1/", SqsOptions::default(), soon()).await.unwrap();
    assert_eq!(found(&findings, "connection"), [Severity::Problem]);
}
