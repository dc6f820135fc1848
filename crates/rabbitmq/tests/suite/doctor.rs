//! Findings of `postrider doctor`.

use std::time::Duration;

use postrider_core::{Finding, Message, MessagingService, QueueAdmin, QueueName, Severity};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore};
use serde_json::json;

use crate::{connect_with, manage, manage_with, options, prefix, soon, url};

async fn examine(options: RabbitmqOptions) -> Vec<Finding> {
    RabbitmqStore::examine(&url(), options, soon()).await.unwrap()
}

fn about<'f>(findings: &'f [Finding], name: &str) -> Vec<&'f Finding> {
    findings.iter().filter(|finding| finding.found.contains(&format!("'{name}'"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_drops_dead_letters_is_a_problem_as_long_as_it_exists() {
    let provider = connect_with(options()).await;
    let queue = QueueName::new(format!("{}_policy", prefix())).unwrap();
    provider.ensure_queue(&queue, soon()).await.unwrap();
    let dead = queue.dead_letters();
    assert_eq!(about(&examine(options()).await, dead.as_str()), Vec::<&Finding>::new());

    let path = format!("/api/policies/%2f/{queue}");
    let policy = json!({"pattern": format!("^{dead}$"), "definition": {"max-length": 10}, "apply-to": "queues"});
    manage_with("PUT", &path, &policy.to_string()).await;
    let of_policy = async |is_there: bool| {
        // The broker applies a policy asynchronously.
        for _ in 0..200 {
            let findings = examine(options()).await;
            let found: Vec<_> = about(&findings, dead.as_str()).into_iter().cloned().collect();
            if found.is_empty() != is_there {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the policy is not seen to be {}", if is_there { "there" } else { "gone" });
    };
    let found = of_policy(true).await;
    assert_eq!((found[0].check, found[0].severity), ("policies", Severity::Problem), "{found:?}");
    assert!(found[0].found.contains("beyond 10 messages the oldest messages are lost"), "{found:?}");
    assert!(found[0].fix.as_ref().unwrap().contains(&format!("from the policy '{queue}'")), "{found:?}");
    manage("DELETE", &path).await;
    of_policy(false).await;
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_postrider_declares_are_fine_and_another_type_of_queue_is_not() {
    let provider = connect_with(options()).await;
    let queue = QueueName::new(format!("{}_own", prefix())).unwrap();
    let messages = vec![
        Message::new("plain"),
        Message::new("waits").delay(Duration::from_secs(3600)),
        Message::new("keyed").ordering_key("k").unwrap(),
    ];
    for row in provider.send_batch(&queue, messages, soon()).await.unwrap() {
        row.unwrap();
    }
    let findings = examine(options()).await;
    let mine = |findings: &[Finding]| {
        findings.iter().filter(|finding| finding.found.contains(queue.as_str())).cloned().collect::<Vec<_>>()
    };
    assert_eq!(mine(&findings), []);
    for check in ["connection", "rights", "version", "management", "alarms"] {
        let found = findings.iter().find(|finding| finding.check == check);
        assert_eq!(found.map(|finding| finding.severity), Some(Severity::Fine), "{check}: {findings:#?}");
    }
    let leases = findings.iter().find(|finding| finding.check == "leases").unwrap();
    assert!(leases.fix.as_ref().unwrap().contains("consumer_timeout_seconds"), "{leases:?}");

    let fewer = RabbitmqOptions { partitions: 2, ..options() };
    let unread = mine(&examine(fewer).await);
    assert!(unread.iter().any(|finding| finding.found.contains("no worker reads the partitions 2, 3")), "{unread:#?}");
    let classic = RabbitmqOptions { queue_type: postrider_rabbitmq::QueueType::Classic, ..options() };
    let other = mine(&examine(classic).await);
    assert!(other.iter().any(|finding| finding.check == "queue type" && finding.severity == Severity::Warning));
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_binding_is_a_problem() {
    let provider = connect_with(options()).await;
    let queue = QueueName::new(format!("{}_way", prefix())).unwrap();
    provider.send_message(&queue, Message::new("x").delay(Duration::from_secs(3600)), soon()).await.unwrap();
    let path = format!("/api/bindings/%2f/e/postrider:delay:out/q/{queue}");
    let ways: Vec<serde_json::Value> = serde_json::from_slice(&manage("GET", &path).await).unwrap();
    assert_eq!(ways.len(), 1);
    manage("DELETE", &format!("{path}/{}", ways[0]["properties_key"].as_str().unwrap())).await;
    let findings = examine(options()).await;
    let found = about(&findings, queue.as_str());
    assert!(found.iter().any(|finding| finding.check == "bindings" && finding.severity == Severity::Problem));
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_and_an_unreachable_management_interface_are_reported() {
    let user = prefix();
    let made = json!({"password": "x7", "tags": ""}).to_string();
    manage_with("PUT", &format!("/api/users/{user}"), &made).await;
    let reads = json!({"configure": ".*", "write": "^$", "read": ".*"}).to_string();
    manage_with("PUT", &format!("/api/permissions/%2f/{user}"), &reads).await;
    let mut other = url::Url::parse(&url()).unwrap();
    other.set_username(&user).unwrap();
    other.set_password(Some("x7")).unwrap();
    // No server listens on that port.
    let silent = RabbitmqOptions { management_url: Some("http://127.0.0.1:1".to_owned()), ..options() };
    let findings = RabbitmqStore::examine(other.as_str(), silent, soon()).await.unwrap();
    manage("DELETE", &format!("/api/users/{user}")).await;
    let of = |check: &str| findings.iter().find(|finding| finding.check == check).unwrap();
    assert_eq!(of("rights").severity, Severity::Problem);
    assert!(of("rights").found.contains("lacks the right to write"), "{findings:#?}");
    assert!(of("rights").fix.as_ref().unwrap().contains(&format!("'{user}' '.*' '.*' '.*'")), "{findings:#?}");
    assert_eq!(of("management").severity, Severity::Warning);
    assert!(of("management").found.contains("queues cannot be listed"), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_broker_is_a_problem_and_an_invalid_url_an_error() {
    let findings = RabbitmqStore::examine("amqp://127.0.0.1:1", options(), soon()).await.unwrap();
    assert_eq!((findings.len(), findings[0].check, findings[0].severity), (1, "connection", Severity::Problem));
    RabbitmqStore::examine("amqp://host:port", options(), soon()).await.unwrap_err();
}

#[tokio::test]
async fn a_refused_login_names_the_user_the_broker_and_the_remedy() {
    let right = url::Url::parse(&url()).unwrap();
    let place = format!("{}:{}", right.host_str().unwrap(), right.port().unwrap());
    let (mut password, mut vhost) = (right.clone(), right.clone());
    password.set_password(Some("wrong")).unwrap();
    vhost.set_path("/nowhere");
    let user = right.username();
    for (wrong, words) in [
        (password, [format!("{place} does not accept user '{user}'"), format!("rabbitmqctl change_password '{user}'")]),
        (vhost, [format!("user '{user}' into virtual host 'nowhere'"), "rabbitmqctl add_vhost 'nowhere'".to_owned()]),
    ] {
        let refused = RabbitmqStore::new(wrong.as_str(), options()).unwrap().connect().await.unwrap_err();
        assert!(!refused.is_retryable(), "{refused:?}");
        let found = RabbitmqStore::examine(wrong.as_str(), options(), soon()).await.unwrap();
        assert_eq!((found[0].check, found[0].severity), ("connection", Severity::Problem));
        for told in [refused.to_string(), found[0].found.clone()] {
            assert!(words.iter().all(|words| told.contains(words)), "{told}");
            assert!(!told.contains("Check that it is running") && !told.contains("wrong"), "{told}");
        }
    }
}
