//! Sends and acks inside the caller's transaction, from Rust and from SQL.

use std::time::Duration;

use postrider_core::{
    Begun, ContentType, IdempotencyKey, IdempotencyStore, Limits, Message, MessageId, MessagingError, MessagingService,
    Nack, QueueAdmin, QueuedMessage, ReceiveOptions,
};
use postrider_postgres::tokio_postgres::Client;
use postrider_postgres::{PostgresOptions, PostgresProvider};
use uuid::Uuid;

use crate::{Fixture, client, queue, soon};

async fn callers_own(fixture: &Fixture) -> Client {
    let client = client().await;
    let own = format!("create table if not exists {}.orders (id bigint generated always as identity)", fixture.schema);
    client.batch_execute(&own).await.unwrap();
    client
}

async fn orders(client: &Client, fixture: &Fixture) -> i64 {
    client.query_one(&format!("select count(*) from {}.orders", fixture.schema), &[]).await.unwrap().get(0)
}

async fn received(provider: &PostgresProvider) -> Vec<QueuedMessage> {
    provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(9), soon()).await.unwrap()
}

fn ids(messages: &[QueuedMessage]) -> Vec<MessageId> {
    messages.iter().map(QueuedMessage::id).collect()
}

#[tokio::test]
async fn a_message_is_there_if_and_only_if_the_callers_changes_are() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let store = provider.store().clone();
    let mut own = callers_own(&fixture).await;
    let insert = format!("insert into {}.orders default values", fixture.schema);

    let mut transaction = own.transaction().await.unwrap();
    transaction.batch_execute(&insert).await.unwrap();
    store.send_in(&mut transaction, &queue("orders"), &Message::new("rolled back")).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(orders(&own, &fixture).await, 0);
    assert_eq!(provider.list_queues(soon()).await.unwrap(), []);

    let mut transaction = own.transaction().await.unwrap();
    transaction.batch_execute(&insert).await.unwrap();
    let message = Message::new("committed").ordering_key("k").unwrap().header("tenant", "acme").unwrap();
    let id = store.send_in(&mut transaction, &queue("orders"), &message).await.unwrap();
    assert!(received(&provider).await.is_empty(), "it is not there yet");
    transaction.commit().await.unwrap();
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [queue("orders")]);
    let found = received(&provider).await;
    assert_eq!(ids(&found), [id]);
    assert_eq!(found[0].envelope.headers.get("tenant"), Some("acme"));
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [queue("orders")], "listed for good by the first read");
}

#[tokio::test]
async fn the_rules_are_the_same_as_for_any_send() {
    let fixture = Fixture::new();
    let limits = Limits { max_body_bytes: 10, ..Limits::default() };
    let provider = fixture.connect_with(PostgresOptions { limits, create_queues: false, ..fixture.options() }).await;
    let store = provider.store().clone();
    let orders = queue("orders");
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.transaction().await.unwrap();

    let refused = store.send_in(&mut transaction, &orders, &Message::new("far too large")).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "body", .. })), "{refused:?}");
    let missing = store.send_in(&mut transaction, &queue("missing"), &Message::new("x")).await;
    assert!(matches!(missing, Err(MessagingError::QueueNotFound { .. })), "{missing:?}");
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    let first = store.send_in(&mut transaction, &orders, &keyed("1").dedup_key("d").unwrap()).await.unwrap();
    let again = store.send_in(&mut transaction, &orders, &Message::new("2").dedup_key("d").unwrap()).await.unwrap();
    assert_eq!(again, first);
    store.send_in(&mut transaction, &orders, &keyed("3")).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(ids(&received(&provider).await), [first], "the head of its key");
}

#[tokio::test]
async fn a_send_that_fails_leaves_nothing_in_the_transaction() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut own = callers_own(&fixture).await;
    let refuse = format!("alter table {}.message add constraint refused check (queue <> 'orders')", fixture.schema);
    own.batch_execute(&refuse).await.unwrap();
    let mut transaction = own.transaction().await.unwrap();
    let refused = provider.store().send_in(&mut transaction, &queue("orders"), &Message::new("x")).await;
    assert!(matches!(refused, Err(MessagingError::Provider { retryable: false, .. })), "{refused:?}");
    transaction.batch_execute(&format!("insert into {}.orders default values", fixture.schema)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(orders(&own, &fixture).await, 1, "the caller's own changes stand");
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [], "its queue was made all the same");
}

#[tokio::test]
async fn an_ack_and_the_handlers_changes_are_one() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let store = provider.store().clone();
    let mut own = callers_own(&fixture).await;
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    provider.send_message(&queue("orders"), keyed("1"), soon()).await.unwrap();
    let next = provider.send_message(&queue("orders"), keyed("2"), soon()).await.unwrap();
    let receipt = received(&provider).await.remove(0).into_receipt();
    for attempt in 0..2 {
        let mut transaction = own.transaction().await.unwrap();
        transaction.batch_execute(&format!("insert into {}.orders default values", fixture.schema)).await.unwrap();
        store.ack_in(&mut transaction, &receipt).await.unwrap();
        assert!(received(&provider).await.is_empty(), "the key is held until the commit");
        if attempt == 0 { transaction.rollback().await } else { transaction.commit().await }.unwrap();
    }
    assert_eq!(orders(&own, &fixture).await, 1);
    assert_eq!(ids(&received(&provider).await), [next], "the next of its key");
    let mut transaction = own.transaction().await.unwrap();
    let again = store.ack_in(&mut transaction, &receipt).await;
    assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    let goes_on = format!("insert into {}.orders default values", fixture.schema);
    transaction.batch_execute(&goes_on).await.expect("the transaction goes on");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_record_and_the_handlers_changes_are_one() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut own = callers_own(&fixture).await;
    let (key, lease) = (IdempotencyKey::new("orders/7").unwrap(), Duration::from_secs(30));
    let Begun::Fresh(token) = provider.begin(&key, lease, soon()).await.unwrap() else { panic!("it is fresh") };
    for attempt in 0..2 {
        let mut transaction = own.transaction().await.unwrap();
        provider.store().complete_in(&mut transaction, &token).await.unwrap();
        if attempt == 0 { transaction.rollback().await } else { transaction.commit().await }.unwrap();
        let found = provider.begin(&key, lease, soon()).await.unwrap();
        assert_eq!(found == Begun::Done, attempt == 1, "{found:?}");
    }
}

#[tokio::test]
async fn a_keyed_send_in_an_open_transaction_delays_no_other_call() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let store = provider.store().clone();
    let orders = queue("orders");
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.transaction().await.unwrap();
    // A new queue, whose name must not be a lock either.
    let late = store.send_in(&mut transaction, &orders, &keyed("late")).await.unwrap();
    let patience = Duration::from_secs(3);
    for _ in 0..3 {
        let meanwhile = async {
            let id = provider.send_message(&orders, keyed("meanwhile"), soon()).await.unwrap();
            let mut found = received(&provider).await;
            assert_eq!(ids(&found), [id]);
            provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
        };
        tokio::time::timeout(patience, meanwhile).await.expect("it does not wait for the open transaction");
    }
    let head = provider.send_message(&orders, keyed("head"), soon()).await.unwrap();
    transaction.commit().await.unwrap();
    let mut found = received(&provider).await;
    assert_eq!(ids(&found), [head], "what was there first stays the head, although its row is younger");
    let after = provider.send_message(&orders, keyed("after"), soon()).await.unwrap();
    provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
    for expected in [late, after] {
        let mut found = received(&provider).await;
        assert_eq!(ids(&found), [expected]);
        provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_receiver_is_woken_by_the_commit() {
    let fixture = Fixture::new();
    let provider =
        fixture.connect_with(PostgresOptions { poll_interval: Duration::from_secs(600), ..fixture.options() }).await;
    let mut own = callers_own(&fixture).await;
    let waiting = {
        let provider = provider.clone();
        let options = ReceiveOptions::default().wait(Duration::from_secs(20));
        tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
    };
    crate::wake_ups::listening(&fixture).await;
    let mut transaction = own.transaction().await.unwrap();
    let message = Message::new("x").ordering_key("k").unwrap();
    let id = provider.store().send_in(&mut transaction, &queue("orders"), &message).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(ids(&waiting.await.unwrap()), [id]);
}

#[tokio::test]
async fn every_program_can_send_by_sql() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let client = client().await;
    let s = &fixture.schema;
    let send = format!(
        "select {s}.send('orders', 'text'), {s}.send('orders', '\\x00ff'::bytea, priority => 9),
                {s}.send('orders', '{{\"a\": 1}}'::jsonb, headers => '{{\"tenant\": \"acme\"}}', dedup_key => 'd'),
                {s}.send('orders', 'swallowed', dedup_key => 'd'),
                {s}.send('orders', 'later', delay => '1 day')"
    );
    let row = client.query_one(&send, &[]).await.unwrap();
    let sent: Vec<Uuid> = (0..5).map(|column| row.get(column)).collect();
    assert_eq!(sent[2], sent[3], "one message a dedup key");
    assert!(sent.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
    let found = received(&provider).await;
    let of = |n: usize| found.iter().find(|message| *message.id().as_uuid() == sent[n]).unwrap();
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!((&*of(0).message, &of(0).envelope.content_type), (&b"text"[..], &ContentType::OCTET_STREAM));
    assert_eq!((&*of(1).message, of(1).envelope.priority.get()), (&[0, 255][..], 9));
    assert_eq!((&*of(2).message, &of(2).envelope.content_type), (&b"{\"a\": 1}"[..], &ContentType::JSON));
    assert_eq!(of(2).envelope.headers.get("tenant"), Some("acme"));

    let batch = format!("select {s}.send_batch('lines', array['a', 'b', 'c'], ordering_key => 'k')");
    let sent: Vec<Uuid> = client.query(&batch, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    for id in sent {
        let mut found = provider.receive_messages(&queue("lines"), &ReceiveOptions::batch(9), soon()).await.unwrap();
        assert_eq!(ids(&found), [MessageId::from_uuid(id)]);
        provider.ack_message(&queue("lines"), found.remove(0), soon()).await.unwrap();
    }

    for (call, why) in [
        ("send('a b', 'x')", "invalid queue name"),
        ("send('..', 'x')", "neither '.' nor '..'"),
        ("send('orders_dlq', 'x')", "holds dead letters"),
        ("send('orders', 'x', priority => 10)", "invalid priority"),
        ("send('orders', 'x', ordering_key => '')", "invalid key"),
        ("send('orders', 'x', delay => '-1 second')", "invalid delay"),
        ("send('orders', 'x', delay => '100 years')", "invalid delay"),
        ("send('orders', null::text)", "invalid payload"),
        ("send_batch('orders', array['x', null])", "invalid payload"),
        ("send('orders', 'x', headers => '{\"a\": 1}')", "invalid headers"),
        ("send('orders', 'x', headers => '{\"Postrider-a\": \"b\"}')", "invalid headers"),
    ] {
        let refused = client.query(&format!("select {s}.{call}"), &[]).await.unwrap_err();
        let text = refused.as_db_error().unwrap().message();
        assert!(text.contains(why), "{call}: {text}");
    }
}

#[tokio::test]
async fn a_message_that_has_expired_does_not_swallow_one_that_is_sent_by_sql() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let client = client().await;
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    let over = keyed("over").dedup_key("d").unwrap().expires_in(Duration::ZERO);
    provider.send_message(&queue("orders"), over, soon()).await.unwrap();
    let next = provider.send_message(&queue("orders"), keyed("next"), soon()).await.unwrap();
    let send = format!("select {}.send('orders', 'new', dedup_key => 'd')", fixture.schema);
    let new: Uuid = client.query_one(&send, &[]).await.unwrap().get(0);
    let mut found = ids(&received(&provider).await);
    found.sort();
    let mut expected = [next, MessageId::from_uuid(new)];
    expected.sort();
    assert_eq!(found, expected, "the next of its key is free, and the new one is there");
    let stats = provider.queue_stats(&queue("orders"), soon()).await.unwrap();
    assert_eq!(stats.dead.value(), Some(1));
}

#[tokio::test]
async fn a_message_released_meanwhile_is_not_acknowledged() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut own = callers_own(&fixture).await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    let receipt = received(&provider).await.remove(0).into_receipt();
    provider.nack_message(&queue("orders"), receipt.clone(), Nack::Release, soon()).await.unwrap();
    let mut transaction = own.transaction().await.unwrap();
    let late = provider.store().ack_in(&mut transaction, &receipt).await;
    assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
    transaction.rollback().await.unwrap();
}
