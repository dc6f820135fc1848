//! Error answers and malformed answers.

use postrider_core::{Capabilities, Feature, Message, MessagingError, MessagingService, QueueAdmin, Support};
use postrider_http::{HttpOptions, HttpStore};
use postrider_wire::{Code, Problem};
use serde_json::json;

use crate::fake::{Fake, Reply, http_receipt};
use crate::{queue, soon};

async fn send_to(fake: &Fake) -> Result<postrider_core::MessageId, MessagingError> {
    fake.connect().await.send_message(&queue("orders"), Message::new("a"), soon()).await
}

fn html(status: &str) -> Vec<u8> {
    let page = "<html>no</html>";
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", page.len());
    format!("{head}{page}").into_bytes()
}

#[tokio::test]
async fn every_problem_becomes_its_error() {
    for code in Code::ALL.iter().copied() {
        let mut problem = Problem::new(code, "the whole text");
        problem.queue = Some(queue("orders"));
        problem.id = Some(*postrider_core::MessageId::generate().as_uuid());
        problem.feature = Some("dedup".into());
        problem.what = Some("dedup key".into());
        problem.state = Some(postrider_core::TaskState::Dead);
        let expected = problem.clone().into_error("http");
        let fake = Fake::start(move |_| Reply::problem(&problem)).await;
        let error = send_to(&fake).await.unwrap_err();
        match code {
            // The server is stopping; this connection is not closed.
            Code::Closed => assert!(matches!(error, MessagingError::Connection { .. }), "{code}: {error:?}"),
            _ => {
                let same = std::mem::discriminant(&error) == std::mem::discriminant(&expected);
                assert!(same && error.is_retryable() == expected.is_retryable(), "{code}: {error:?}");
            }
        }
        assert_eq!(fake.rest().await.len(), 1, "{code}: sent once");
    }
}

#[tokio::test]
async fn a_token_that_is_missing_or_refused_is_named() {
    for code in [Code::Unauthorized, Code::Forbidden] {
        let problem = Problem::new(code, "no such token");
        let fake = Fake::start(move |_| Reply::problem(&problem)).await;
        let error = send_to(&fake).await.unwrap_err();
        assert!(matches!(error, MessagingError::InvalidInput { what: "token", .. }) && !error.is_retryable());
        assert!(error.to_string().contains("option 'token'"), "{error}");
    }
    // The same on opening.
    let fake = Fake::start_bare(|_| Reply::problem(&Problem::new(Code::Unauthorized, "no token"))).await;
    let opened = HttpStore::open(&fake.url, HttpOptions::default()).await;
    assert!(matches!(opened, Err(MessagingError::InvalidInput { what: "token", .. })), "{opened:?}");
    let bad = HttpOptions { token: Some("a\nb".into()), ..HttpOptions::default() };
    let opened = HttpStore::open(&fake.url, bad).await;
    assert!(matches!(opened, Err(MessagingError::InvalidInput { what: "token", .. })), "{opened:?}");
}

#[tokio::test]
async fn answers_of_other_servers_are_judged_by_their_status() {
    let is_unknown = |error: &MessagingError| matches!(error, MessagingError::OutcomeUnknown { .. });
    let is_connection = |error: &MessagingError| matches!(error, MessagingError::Connection { .. });
    let is_foreign = |error: &MessagingError| {
        matches!(error, MessagingError::Provider { retryable: false, .. })
            && error.to_string().contains("check the URL")
    };
    type Is = fn(&MessagingError) -> bool;
    let answers: [(&str, Is, Is); 6] = [
        ("502 Bad Gateway", is_unknown, is_connection),
        ("504 Gateway Timeout", is_unknown, is_connection),
        ("500 Oops", is_unknown, is_connection),
        ("503 Service Unavailable", is_unknown, is_connection),
        ("404 Not Found", is_foreign, is_foreign),
        ("301 Moved Permanently", is_foreign, is_foreign),
    ];
    for (status, is_send_error, is_read_error) in answers {
        let fake = Fake::start(move |_| Reply::Bytes(html(status))).await;
        let error = send_to(&fake).await.unwrap_err();
        assert!(is_send_error(&error), "{status}: {error:?}");
        let error = fake.connect().await.queue_stats(&queue("orders"), soon()).await.unwrap_err();
        assert!(is_read_error(&error), "{status}: {error:?}");
    }
}

#[tokio::test]
async fn malformed_answers_make_sends_unknown_and_fail_reads() {
    let malformed: [fn() -> Reply; 4] = [
        || Reply::Bytes(b"SSH-2.0-OpenSSH\r\n".to_vec()),
        || Reply::Bytes(html("200 OK")),
        || Reply::ok(json!("hello")),
        || Reply::ok(json!({"id": 7})),
    ];
    for (at, reply) in malformed.into_iter().enumerate() {
        let fake = Fake::start(move |_| reply()).await;
        let error = send_to(&fake).await.unwrap_err();
        assert!(matches!(error, MessagingError::OutcomeUnknown { .. }), "{at}: {error:?}");
        let error = fake.connect().await.queue_stats(&queue("orders"), soon()).await.unwrap_err();
        let is_failure = matches!(error, MessagingError::Provider { .. } | MessagingError::Connection { .. });
        assert!(is_failure, "{at}: {error:?}");
    }
}

#[tokio::test]
async fn another_kind_of_server_is_not_opened() {
    let fake = Fake::start_bare(|_| Reply::Bytes(html("200 OK"))).await;
    let opened = HttpStore::open(&fake.url, HttpOptions::default()).await;
    assert!(matches!(opened, Err(MessagingError::Provider { retryable: false, .. })), "{opened:?}");
}

#[tokio::test]
async fn capabilities_are_those_of_the_server() {
    let store = Capabilities::native("rabbitmq")
        .with(Feature::PortableReceipts, Support::refused("bound to a channel"))
        .with(Feature::ReceiveById, Support::refused("no index"))
        .with(Feature::Priority, Support::refused("no"));
    let fake = Fake::start_with(store, |_| Reply::Cut).await;
    let provider = fake.connect().await;
    let capabilities = provider.capabilities();
    assert_eq!((provider.provider_name(), capabilities.provider()), ("http", "http"));
    assert_eq!(capabilities.support(Feature::PortableReceipts), &Support::Native);
    assert!(provider.store().server().contains("rabbitmq, version 9.9.9"), "{}", provider.store().server());
    let refused = provider
        .receive_by_id(&queue("orders"), postrider_core::MessageId::generate(), &Default::default(), soon())
        .await;
    assert!(matches!(refused, Err(MessagingError::NotSupported { feature: Feature::ReceiveById, .. })));
    let urgent = Message::new("a").priority(postrider_core::Priority::HIGHEST);
    let refused = provider.send_message(&queue("orders"), urgent, soon()).await;
    assert!(matches!(refused, Err(MessagingError::NotSupported { feature: Feature::Priority, .. })));
    assert!(fake.rest().await.is_empty(), "no request is sent for a refused feature");
}

#[tokio::test]
async fn foreign_receipts_are_refused_without_a_request() {
    let fake = Fake::start(|_| Reply::Cut).await;
    let provider = fake.connect().await;
    let own = http_receipt("orders");
    let (id, token, native) = (own.message_id(), own.token(), own.native().clone());
    let foreign = postrider_core::ReceiptHandle::new("sqlite", queue("orders"), id, token, native);
    let ack = provider.ack_message(&queue("orders"), foreign.clone(), soon()).await;
    assert!(matches!(ack, Err(MessagingError::InvalidReceipt { .. })), "{ack:?}");
    let extend =
        provider.extend_visibility(&queue("orders"), &foreign, std::time::Duration::from_secs(1), soon()).await;
    assert!(matches!(extend, Err(MessagingError::InvalidReceipt { .. })), "{extend:?}");
    let elsewhere = provider.ack_message(&queue("mail"), own, soon()).await;
    assert!(matches!(elsewhere, Err(MessagingError::InvalidReceipt { .. })), "{elsewhere:?}");
    assert!(fake.rest().await.is_empty());
}

#[tokio::test]
async fn an_endless_answer_is_read_up_to_a_limit() {
    for (status, mebibytes) in [("200 OK", 128), ("500 Internal Server Error", 1), ("404 Not Found", 1)] {
        let fake = Fake::start(move |_| Reply::Endless(status)).await;
        let provider = fake.connect().await;
        let error = provider.list_queues(soon()).await.unwrap_err();
        let expected =
            format!("answered more than {} bytes; check the URL or request fewer rows", mebibytes * 1024 * 1024);
        assert!(error_text(&error).contains(&expected), "{status}: {}", error_text(&error));
        assert_eq!(fake.rest().await.len(), 1, "{status}: not repeated");
    }
    // Also when a stream of events is refused.
    let fake = Fake::start(|_| Reply::Endless("500 Internal Server Error")).await;
    let error = fake.connect().await.subscribe(&queue("orders"), soon()).await.err().unwrap();
    assert!(error_text(&error).contains("answered more than"), "{}", error_text(&error));
}

/// The error with its causes.
fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
