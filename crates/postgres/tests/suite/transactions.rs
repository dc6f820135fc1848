//! Sends and acks inside the caller's transaction, from Rust and from SQL.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::transactions::{self, Answer, Caller, Transaction, ids, received};
use postrider_core::{
    ContentType, IdempotencyToken, Limits, Message, MessageId, MessagingService, QueueName, ReceiptHandle,
    ReceiveOptions,
};
use postrider_postgres::tokio_postgres::{self, Client};
use postrider_postgres::{PostgresOptions, PostgresProvider, PostgresStore};
use uuid::Uuid;

use crate::{Fixture, client, queue, soon};

/// A program with a connection of its own.
pub(crate) struct Own {
    store: PostgresStore,
    schema: String,
    client: Client,
}

impl Own {
    pub(crate) async fn new(fixture: &Fixture, provider: &PostgresProvider) -> Self {
        let (schema, client) = (fixture.schema.clone(), client().await);
        let orders = format!("create table if not exists {schema}.orders (id bigint generated always as identity)");
        client.batch_execute(&orders).await.unwrap();
        Self { store: provider.store().clone(), schema, client }
    }
}

impl Caller for Own {
    fn begin<'c>(&'c mut self) -> BoxFuture<'c, Box<dyn Transaction<'c> + 'c>> {
        Box::pin(async {
            let inner = self.client.transaction().await.unwrap();
            Box::new(Open { store: &self.store, schema: &self.schema, inner }) as Box<dyn Transaction>
        })
    }

    fn orders(&mut self) -> BoxFuture<'_, i64> {
        Box::pin(async {
            let count = format!("select count(*) from {}.orders", self.schema);
            self.client.query_one(&count, &[]).await.unwrap().get(0)
        })
    }
}

struct Open<'c> {
    store: &'c PostgresStore,
    schema: &'c str,
    inner: tokio_postgres::Transaction<'c>,
}

impl<'c> Transaction<'c> for Open<'c> {
    fn insert(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let insert = format!("insert into {}.orders default values", self.schema);
            self.inner.batch_execute(&insert).await.unwrap();
        })
    }

    fn send<'a>(&'a mut self, queue: &'a QueueName, message: &'a Message) -> Answer<'a, MessageId> {
        Box::pin(self.store.send_in(&mut self.inner, queue, message))
    }

    fn ack<'a>(&'a mut self, receipt: &'a ReceiptHandle) -> Answer<'a> {
        Box::pin(self.store.ack_in(&mut self.inner, receipt))
    }

    fn complete<'a>(&'a mut self, token: &'a IdempotencyToken) -> Answer<'a> {
        Box::pin(self.store.complete_in(&mut self.inner, token))
    }

    fn commit(self: Box<Self>) -> BoxFuture<'c, ()> {
        Box::pin(async { self.inner.commit().await.unwrap() })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'c, ()> {
        Box::pin(async { self.inner.rollback().await.unwrap() })
    }
}

async fn with_caller() -> (Fixture, PostgresProvider, Own) {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let own = Own::new(&fixture, &provider).await;
    (fixture, provider, own)
}

#[tokio::test]
async fn a_message_is_there_if_and_only_if_the_callers_changes_are() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::a_message_and_the_callers_changes_are_one(&provider, &mut own).await;
}

#[tokio::test]
async fn the_rules_are_the_same_as_for_any_send() {
    let fixture = Fixture::new();
    let limits = Limits { max_body_bytes: 10, ..Limits::default() };
    let provider = fixture.connect_with(PostgresOptions { limits, create_queues: false, ..fixture.options() }).await;
    let mut own = Own::new(&fixture, &provider).await;
    transactions::the_rules_are_the_same_as_for_any_send(&provider, &mut own).await;
}

#[tokio::test]
async fn a_send_that_fails_leaves_nothing_in_the_transaction() {
    let (fixture, provider, mut own) = with_caller().await;
    let refuse = format!("alter table {}.message add constraint refused check (queue <> 'orders')", fixture.schema);
    own.client.batch_execute(&refuse).await.unwrap();
    transactions::a_send_that_fails_leaves_nothing(&provider, &mut own).await;
}

#[tokio::test]
async fn an_ack_and_the_handlers_changes_are_one() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::an_ack_and_the_handlers_changes_are_one(&provider, &mut own).await;
}

#[tokio::test]
async fn a_record_and_the_handlers_changes_are_one() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::a_record_and_the_handlers_changes_are_one(&provider, &mut own).await;
}

#[tokio::test]
async fn a_keyed_send_in_an_open_transaction_delays_no_other_call() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::a_keyed_send_delays_no_other_call(&provider, &mut own).await;
}

#[tokio::test]
async fn a_waiting_receiver_is_woken_by_the_commit() {
    let fixture = Fixture::new();
    let provider =
        fixture.connect_with(PostgresOptions { poll_interval: Duration::from_secs(600), ..fixture.options() }).await;
    let mut own = Own::new(&fixture, &provider).await;
    let waiting = {
        let provider = provider.clone();
        let options = ReceiveOptions::default().wait(Duration::from_secs(20));
        tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
    };
    crate::wake_ups::listening(&fixture).await;
    let mut transaction = own.begin().await;
    let message = Message::new("x").ordering_key("k").unwrap();
    let id = transaction.send(&queue("orders"), &message).await.unwrap();
    transaction.commit().await;
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
    let send = format!("select {}.send('orders', 'new', dedup_key => $1)", fixture.schema);
    let send_new = async |new: &Message| {
        let row = client().await.query_one(&send, &[&new.dedup_key.as_ref().unwrap().as_str()]).await.unwrap();
        MessageId::from_uuid(row.get(0))
    };
    transactions::an_expired_message_swallows_no_other(&provider, send_new).await;
}

#[tokio::test]
async fn a_message_released_meanwhile_is_not_acknowledged() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::a_message_released_meanwhile_is_not_acknowledged(&provider, &mut own).await;
}
