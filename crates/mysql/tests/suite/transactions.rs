//! Sends and acks inside the caller's transaction.

use std::time::Duration;

use futures_util::future::BoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use postrider_conformance::locks::AT_ONCE;
use postrider_conformance::transactions::{self, Answer, Caller, Transaction, ids, received};
use postrider_core::{
    Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, Limits, Message, MessageId, MessagingError,
    MessagingService, Nack, QueueName, ReceiptHandle, Standing,
};
use postrider_mysql::{ArchivePolicy, MysqlOptions, MysqlProvider, MysqlStore, mysql_async};

use crate::locks::{PATIENCE, until_a_session_waits};
use crate::{Fixture, options, queue, soon};

/// A program with a connection of its own.
pub(crate) struct Own {
    store: MysqlStore,
    client: Conn,
}

impl Own {
    pub(crate) async fn new(fixture: &Fixture, provider: &MysqlProvider) -> Self {
        let mut client = fixture.client().await;
        client.query_drop("create table if not exists orders (id bigint auto_increment primary key)").await.unwrap();
        Self { store: provider.store().clone(), client }
    }
}

impl Caller for Own {
    fn begin<'c>(&'c mut self) -> BoxFuture<'c, Box<dyn Transaction<'c> + 'c>> {
        Box::pin(async {
            let inner = self.client.start_transaction(TxOpts::default()).await.unwrap();
            Box::new(Open { store: &self.store, inner }) as Box<dyn Transaction>
        })
    }

    fn orders(&mut self) -> BoxFuture<'_, i64> {
        Box::pin(async { self.client.query_first("select count(*) from orders").await.unwrap().unwrap() })
    }
}

struct Open<'c> {
    store: &'c MysqlStore,
    inner: mysql_async::Transaction<'c>,
}

impl<'c> Transaction<'c> for Open<'c> {
    fn insert(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.inner.query_drop("insert into orders values ()").await.unwrap() })
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

async fn with_caller() -> (Fixture, MysqlProvider, Own) {
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
    let provider = fixture.connect_with(MysqlOptions { limits, create_queues: false, ..options() }).await;
    let mut own = Own::new(&fixture, &provider).await;
    transactions::the_rules_are_the_same_as_for_any_send(&provider, &mut own).await;
}

#[tokio::test]
async fn a_send_that_fails_leaves_nothing_in_the_transaction() {
    let (_fixture, provider, mut own) = with_caller().await;
    let refuse = "alter table message add constraint refused check (queue <> 'orders')";
    own.client.query_drop(refuse).await.unwrap();
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
async fn a_message_that_has_expired_does_not_swallow_one_that_is_sent_in_a_transaction() {
    let (_fixture, provider, mut own) = with_caller().await;
    let send_new = async |new: &Message| {
        let mut transaction = own.begin().await;
        let id = transaction.send(&queue("orders"), new).await.unwrap();
        transaction.commit().await;
        id
    };
    transactions::an_expired_message_swallows_no_other(&provider, send_new).await;
}

#[tokio::test]
async fn a_message_released_meanwhile_is_not_acknowledged() {
    let (_fixture, provider, mut own) = with_caller().await;
    transactions::a_message_released_meanwhile_is_not_acknowledged(&provider, &mut own).await;
}

#[tokio::test]
async fn a_missing_record_delays_no_other_call() {
    let (_fixture, provider, mut own) = with_caller().await;
    let lease = Duration::from_secs(30);
    let begin = async |key: &str| provider.begin(&IdempotencyKey::new(key).unwrap(), lease, soon()).await.unwrap();
    let Begun::Fresh(token) = begin("orders/7").await else { panic!("it is fresh") };
    assert_eq!(provider.abandon(&token, soon()).await.unwrap(), Standing::Held);
    let mut transaction = own.begin().await;
    transaction.complete(&token).await.expect_err("it was abandoned");
    let others = tokio::time::timeout(AT_ONCE, begin("orders/8")).await;
    assert!(matches!(others, Ok(Begun::Fresh(_))), "it does not wait for the open transaction: {others:?}");
    transaction.rollback().await;
}

#[tokio::test]
async fn a_new_dedup_key_in_an_open_transaction_delays_no_other_key() {
    let (_fixture, provider, mut own) = with_caller().await;
    let orders = queue("orders");
    let with_key = |key: &str| Message::new("x").dedup_key(key).unwrap();
    for key in ["a", "z"] {
        provider.send_message(&orders, with_key(key), soon()).await.unwrap();
    }
    let mut transaction = own.begin().await;
    transaction.send(&orders, &with_key("m")).await.unwrap();
    let meanwhile = async {
        for key in ["l", "n", "zz"] {
            provider.send_message(&orders, with_key(key), soon()).await.unwrap();
        }
        provider.send_message(&queue("others"), with_key("m"), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    transaction.commit().await;
}

#[tokio::test]
async fn the_holder_of_a_dedup_key_is_received_and_settled_beside_a_transaction_that_found_it() {
    let (_fixture, provider, mut own) = with_caller().await;
    let orders = queue("orders");
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    let holder = provider.send_message(&orders, with_key("holder"), soon()).await.unwrap();
    let mut transaction = own.begin().await;
    let met = transaction.send(&orders, &with_key("second")).await.unwrap();
    assert_eq!(met, holder);
    let meanwhile = async {
        let mut found = received(&provider).await;
        assert_eq!(ids(&found), [holder]);
        provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    // The transaction still sees the holder in its snapshot; but it is gone.
    let new = transaction.send(&orders, &with_key("new")).await.unwrap();
    assert_ne!(new, holder);
    transaction.commit().await;
    assert_eq!(ids(&received(&provider).await), [new]);
}

#[tokio::test]
async fn a_transaction_that_acks_the_holder_of_a_dedup_key_can_send_with_it() {
    let (_fixture, provider, mut own) = with_caller().await;
    let orders = queue("orders");
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    provider.send_message(&orders, with_key("1"), soon()).await.unwrap();
    let receipt = received(&provider).await.remove(0).into_receipt();
    let mut transaction = own.begin().await;
    transaction.ack(&receipt).await.unwrap();
    let next = with_key("2");
    assert_eq!(transaction.send(&orders, &next).await.unwrap(), next.id);
    transaction.commit().await;
    assert_eq!(ids(&received(&provider).await), [next.id]);
}

#[tokio::test]
async fn an_ack_with_an_expired_lease_delays_no_other_call() {
    let (_fixture, provider, mut own) = with_caller().await;
    let orders = queue("orders");
    provider.send_message(&orders, Message::new("twice"), soon()).await.unwrap();
    let twice = received(&provider).await.remove(0).into_receipt();
    let mut receipts = Vec::new();
    // Newer than every row: their gap is where new messages are inserted.
    for body in ["1", "2"] {
        provider.send_message(&orders, Message::new(body), soon()).await.unwrap();
        let receipt = received(&provider).await.remove(0).into_receipt();
        provider.ack_message(&orders, receipt.clone(), soon()).await.unwrap();
        receipts.push(receipt);
    }
    let mut transaction = own.begin().await;
    transaction.ack(&twice).await.unwrap();
    receipts.push(twice);
    for receipt in &receipts {
        let late = transaction.ack(receipt).await;
        assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
    }
    let meanwhile = async {
        let id = provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        let mut found = received(&provider).await;
        assert_eq!(ids(&found), [id]);
        let retry = Nack::Retry { after: Duration::ZERO, error: Some("no".into()) };
        provider.nack_message(&orders, found.remove(0), retry, soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    transaction.commit().await;
}

#[tokio::test]
async fn an_ack_of_a_failed_message_delays_no_other_failure() {
    let fixture = Fixture::new();
    let (provider, orders) =
        (fixture.connect_with(MysqlOptions { archive: ArchivePolicy::None, ..options() }).await, queue("orders"));
    let retry = || Nack::Retry { after: Duration::ZERO, error: Some("no".into()) };
    provider.send_message(&orders, Message::new("1"), soon()).await.unwrap();
    let first = received(&provider).await.remove(0);
    provider.nack_message(&orders, first, retry(), soon()).await.unwrap();
    let receipt = received(&provider).await.remove(0).into_receipt();
    let mut own = Own::new(&fixture, &provider).await;
    let mut transaction = own.begin().await;
    transaction.ack(&receipt).await.unwrap();
    let meanwhile = async {
        provider.send_message(&orders, Message::new("2"), soon()).await.unwrap();
        let second = received(&provider).await.remove(0);
        provider.nack_message(&orders, second, retry(), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    transaction.commit().await;
    let left: Option<u64> = own.client.query_first("select count(*) from failed_attempt").await.unwrap();
    assert_eq!(left, Some(1), "those of the first are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_transactions_with_one_dedup_key_the_second_returns_the_first_id() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    let mut own = Own::new(&fixture, &provider).await;
    let mut first = own.begin().await;
    let holder = first.send(&orders, &with_key("1")).await.unwrap();
    let mut others = Own::new(&fixture, &provider).await;
    let second = tokio::spawn(async move {
        let mut second = others.begin().await;
        let id = second.send(&queue("orders"), &with_key("2")).await.unwrap();
        // The transaction goes on.
        second.insert().await;
        second.commit().await;
        id
    });
    until_a_session_waits(&fixture, None).await;
    first.commit().await;
    assert_eq!(tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap(), holder);
    assert_eq!(ids(&received(&provider).await), [holder]);
}
