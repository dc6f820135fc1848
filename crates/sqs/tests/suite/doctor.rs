//! What is found when queues are looked at.

use std::time::Duration;

use postrider_core::{Finding, MessagingService, Severity};
use postrider_sqs::aws_sdk_sqs::types::QueueAttributeName;
use postrider_sqs::{SqsOptions, SqsStore};

use crate::{Emulator, Place, queue, soon};

async fn examine(place: &Place, options: SqsOptions) -> Vec<Finding> {
    SqsStore::examine(&place.url(), options, soon()).await.unwrap()
}

fn found(findings: &[Finding], check: &str) -> Vec<Severity> {
    findings.iter().filter(|finding| finding.check == check).map(|finding| finding.severity).collect()
}

#[tokio::test]
async fn a_queue_that_would_lose_messages_is_found_and_a_good_one_is_not() {
    for emulator in Emulator::ALL {
        let place = Place::new(emulator);
        let provider = place.connect().await;
        provider.ensure_queue(&queue("good"), soon()).await.unwrap();
        let findings = examine(&place, SqsOptions::default()).await;
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity > Severity::Note).collect();
        assert!(bad.is_empty(), "{emulator:?}: {bad:?}");
        assert_eq!(found(&findings, "credentials"), [Severity::Fine]);
        assert!(findings[0].found.contains("emulators"), "{findings:?}");
        let client = postrider_sqs::client(&place.url(), Duration::from_secs(5)).await.unwrap();
        let create = client.create_queue().queue_name(format!("{}bad", place.prefix));
        let create = create.attributes(QueueAttributeName::MessageRetentionPeriod, "60");
        create.attributes(QueueAttributeName::DelaySeconds, "5").send().await.unwrap();
        let findings = examine(&place, SqsOptions { create_queues: false, ..SqsOptions::default() }).await;
        assert_eq!(found(&findings, "retention"), [Severity::Warning]);
        assert_eq!(found(&findings, "delay"), [Severity::Warning]);
        assert_eq!(found(&findings, "dead letters"), [Severity::Warning, Severity::Problem], "{findings:?}");
        place.leave().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_a_finding() {
    let findings = SqsStore::examine("sqs+http://127.0.0.1:1/", SqsOptions::default(), soon()).await.unwrap();
    assert_eq!(found(&findings, "connection"), [Severity::Problem]);
}
