//! Administration of queues and dead letters: paths and conversions.

use bytes::Bytes;
use postrider_core::{
    DeadLetterCursor, DeadLetterEdit, DeadLetterQuery, DeadLetterReason, DeadLetterSelection, DeadLetters, MessageId,
    MessagingError, MessagingService, QueueAdmin, Redrive, RedriveSkip, Severity,
};
use postrider_http::{HttpOptions, HttpStore};
use postrider_wire::Problem;
use serde_json::{Value, json};

use crate::fake::{Fake, Reply, Seen};
use crate::{queue, soon};

fn dead(id: MessageId, seconds: u32) -> Value {
    json!({"id": id, "queue": "orders", "body": "a", "content_type": "application/json", "headers": {}, "priority": 4,
        "reason": "rejected", "error": "no", "receive_count": 1, "attempts_count": 1,
        "enqueued_at": "2026-01-01T00:00:00Z", "dead_at": format!("2026-01-01T00:00:{seconds:02}Z"), "revision": 0})
}

#[tokio::test]
async fn queues_are_created_listed_peeked_and_deleted() {
    let fake = Fake::start(|seen| match (seen.method.as_str(), seen.path.as_str()) {
        ("PUT", "/v1/queues/orders") | ("DELETE", "/v1/queues/orders") => Reply::Json(204, Value::Null),
        ("GET", "/v1/queue-names") => Reply::ok(json!({"queues": ["a", "orders"]})),
        ("POST", "/v1/queues/orders/purge") => Reply::ok(json!({"purged": 7})),
        ("POST", "/v1/queues/orders/pause") => Reply::ok(json!({"queue": "orders", "paused": true})),
        ("POST", "/v1/queues/orders/resume") => Reply::ok(json!({"queue": "orders", "paused": false})),
        ("POST", "/v1/queues/verify") => {
            Reply::ok(json!({"healthy": ["a"], "missing": ["b"], "errors": [{"queue": "c", "error": "no right"}]}))
        }
        ("GET", "/v1/queues/orders/messages?limit=7") => Reply::ok(json!({"messages": []})),
        ("GET", "/v1/health") => Reply::ok(json!({"ok": true})),
        other => panic!("{other:?}"),
    })
    .await;
    let provider = fake.connect().await;
    let orders = queue("orders");
    provider.ensure_queue(&orders.dead_letters(), soon()).await.unwrap();
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [queue("a"), orders.clone()]);
    assert_eq!(provider.purge(&orders, soon()).await.unwrap(), 7);
    provider.pause(&orders, soon()).await.unwrap();
    provider.resume(&orders, soon()).await.unwrap();
    let report = provider.verify_queues(&[queue("a"), queue("b"), queue("c")], soon()).await.unwrap();
    assert_eq!(report.errors, [(queue("c"), "no right".to_owned())]);
    assert!(provider.peek(&orders, 7, soon()).await.unwrap().is_empty());
    provider.health_check(soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
    let refused = provider.delete_queue(&orders.dead_letters(), soon()).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn a_prefix_is_part_of_every_path() {
    let fake = Fake::start_bare(|seen| {
        assert!(seen.path.starts_with("/rider/v1/"), "{}", seen.path);
        Reply::Cut
    })
    .await;
    let opened = HttpStore::open(&format!("{}/rider/", fake.url), HttpOptions::default()).await;
    assert!(matches!(opened, Err(MessagingError::Connection { .. })), "{opened:?}");
}

#[tokio::test]
async fn dead_letters_are_listed_by_reason_and_by_id() {
    let ids: Vec<MessageId> = (0..3).map(|_| MessageId::generate()).collect();
    let known = ids.clone();
    let fake = Fake::start(move |seen: &Seen| {
        let path = seen.path.strip_prefix("/v1/queues/orders/dead-letters").unwrap();
        if let Some(query) = path.strip_prefix('?') {
            assert_eq!(query, "limit=2&reason=not+so&after=a%26b");
            return Reply::ok(json!({"dead_letters": [dead(known[0], 1)], "next": "7"}));
        }
        let id: MessageId = path.trim_start_matches('/').parse().unwrap();
        match known.iter().position(|known| *known == id) {
            // The later id was dead-lettered first.
            Some(at) => Reply::ok(dead(id, 30 - u32::try_from(at).unwrap())),
            None => Reply::problem(&Problem::of(&MessagingError::MessageNotFound { queue: queue("orders"), id })),
        }
    })
    .await;
    let provider = fake.connect().await;
    let query = DeadLetterQuery {
        selection: DeadLetterSelection::Reason(DeadLetterReason::from("not so")),
        limit: 2,
        after: Some(DeadLetterCursor("a&b".into())),
    };
    let page = provider.list_dead_letters(&queue("orders"), &query, soon()).await.unwrap();
    assert_eq!((page.letters[0].id, page.next), (ids[0], Some(DeadLetterCursor("7".into()))));
    let selected = [ids.clone(), vec![MessageId::generate()]].concat();
    let mut query = DeadLetterQuery { selection: DeadLetterSelection::Ids(selected), limit: 2, after: None };
    let page = provider.list_dead_letters(&queue("orders"), &query, soon()).await.unwrap();
    assert_eq!(page.letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [ids[2], ids[1]]);
    query.after = page.next;
    let page = provider.list_dead_letters(&queue("orders"), &query, soon()).await.unwrap();
    assert_eq!((page.letters.len(), page.letters[0].id, page.next), (1, ids[0], None));
    query.after = Some(DeadLetterCursor("invalid".into()));
    assert!(provider.list_dead_letters(&queue("orders"), &query, soon()).await.is_err());
}

#[tokio::test]
async fn dead_letters_are_edited_redriven_and_purged() {
    let id = MessageId::generate();
    let fake = Fake::start(move |seen| match (seen.method.as_str(), seen.path.rsplit('/').next().unwrap()) {
        ("PATCH", _) => {
            assert_eq!(seen.body, json!({"body": "b"}));
            Reply::ok(dead(id, 1))
        }
        ("POST", "redrive") => {
            assert_eq!(seen.body, json!({"ids": [id], "to": "other", "dry_run": true}));
            Reply::ok(json!({"redriven": [], "skipped": [{"id": id, "why": "dedup_key_taken"}]}))
        }
        ("POST", "purge") => {
            assert_eq!(seen.body, json!({"reason": "expired"}));
            Reply::ok(json!({"purged": 3}))
        }
        other => panic!("{other:?}"),
    })
    .await;
    let provider = fake.connect().await;
    let orders = queue("orders");
    let edit = DeadLetterEdit { body: Some(Bytes::from_static(b"b")), ..DeadLetterEdit::default() };
    assert_eq!(provider.edit_dead_letter(&orders, id, edit, soon()).await.unwrap().id, id);
    let redrive = Redrive { selection: DeadLetterSelection::Ids(vec![id]), to: Some(queue("other")), dry_run: true };
    let report = provider.redrive_dead_letters(&orders, &redrive, soon()).await.unwrap();
    assert_eq!(report.skipped, [(id, RedriveSkip::DedupKeyTaken)]);
    let expired = DeadLetterSelection::Reason(DeadLetterReason::EXPIRED);
    assert_eq!(provider.purge_dead_letters(&orders, &expired, soon()).await.unwrap(), 3);
}

#[tokio::test]
async fn doctor_checks_the_server_and_its_store() {
    let fake = Fake::start(|_| {
        Reply::ok(json!({"findings": [
            {"check": "schema", "severity": "warning", "found": "old", "fix": "migrate"},
            {"check": "moon", "severity": "fine", "found": "full", "fix": null},
        ]}))
    })
    .await;
    let findings = HttpStore::examine(&fake.url, HttpOptions::default(), soon()).await.unwrap();
    assert_eq!((findings[0].check, findings[0].severity), ("connection", Severity::Fine));
    assert_eq!((findings[1].check, findings[1].severity), ("schema", Severity::Warning));
    assert_eq!((findings[2].check, findings[2].found.as_str()), ("server", "moon: full"));
    let url = fake.url.clone();
    fake.stop().await;
    let findings = HttpStore::examine(&url, HttpOptions::default(), soon()).await.unwrap();
    assert_eq!((findings.len(), findings[0].severity), (1, Severity::Problem));
}
