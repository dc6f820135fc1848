//! Sends and acks inside the caller's transaction.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use postrider_core::{
    Begun, IdempotencyKey, IdempotencyStore, Limits, Message, MessageId, MessagingError, MessagingService, Nack,
    QueueAdmin, QueuedMessage, ReceiveOptions, Standing,
};
use postrider_mysql::{ArchivePolicy, MysqlOptions, MysqlProvider, mysql_async};

use crate::locks::{AT_ONCE, PATIENCE, until_a_session_waits};
use crate::{Fixture, options, queue, soon};

async fn callers_own(fixture: &Fixture) -> Conn {
    let mut client = fixture.client().await;
    client.query_drop("create table if not exists orders (id bigint auto_increment primary key)").await.unwrap();
    client
}

async fn orders(client: &mut Conn) -> Option<i64> {
    client.query_first("select count(*) from orders").await.unwrap()
}

const INSERT: &str = "insert into orders values ()";

async fn received(provider: &MysqlProvider) -> Vec<QueuedMessage> {
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

    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    transaction.query_drop(INSERT).await.unwrap();
    store.send_in(&mut transaction, &queue("orders"), &Message::new("rolled back")).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(orders(&mut own).await, Some(0));
    assert_eq!(provider.list_queues(soon()).await.unwrap(), []);

    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    transaction.query_drop(INSERT).await.unwrap();
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
    let provider = fixture.connect_with(MysqlOptions { limits, create_queues: false, ..options() }).await;
    let store = provider.store().clone();
    let orders = queue("orders");
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();

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
    own.query_drop("alter table message add constraint refused check (queue <> 'orders')").await.unwrap();
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let refused = provider.store().send_in(&mut transaction, &queue("orders"), &Message::new("x")).await;
    assert!(matches!(refused, Err(MessagingError::Provider { retryable: false, .. })), "{refused:?}");
    transaction.query_drop(INSERT).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(orders(&mut own).await, Some(1), "the caller's own changes stand");
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
        let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
        transaction.query_drop(INSERT).await.unwrap();
        store.ack_in(&mut transaction, &receipt).await.unwrap();
        assert!(received(&provider).await.is_empty(), "the key is held until the commit");
        if attempt == 0 { transaction.rollback().await } else { transaction.commit().await }.unwrap();
    }
    assert_eq!(orders(&mut own).await, Some(1));
    assert_eq!(ids(&received(&provider).await), [next], "the next of its key");
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let again = store.ack_in(&mut transaction, &receipt).await;
    assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    transaction.query_drop(INSERT).await.expect("the transaction goes on");
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
        let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
        provider.store().complete_in(&mut transaction, &token).await.unwrap();
        if attempt == 0 { transaction.rollback().await } else { transaction.commit().await }.unwrap();
        let found = provider.begin(&key, lease, soon()).await.unwrap();
        assert_eq!(found == Begun::Done, attempt == 1, "{found:?}");
    }
}

#[tokio::test]
async fn a_missing_record_delays_no_other_call() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let lease = Duration::from_secs(30);
    let begin = async |key: &str| provider.begin(&IdempotencyKey::new(key).unwrap(), lease, soon()).await.unwrap();
    let Begun::Fresh(token) = begin("orders/7").await else { panic!("it is fresh") };
    assert_eq!(provider.abandon(&token, soon()).await.unwrap(), Standing::Held);
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().complete_in(&mut transaction, &token).await.expect_err("it was abandoned");
    let others = tokio::time::timeout(AT_ONCE, begin("orders/8")).await;
    assert!(matches!(others, Ok(Begun::Fresh(_))), "it does not wait for the open transaction: {others:?}");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_keyed_send_in_an_open_transaction_delays_no_other_call() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let store = provider.store().clone();
    let orders = queue("orders");
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
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
async fn a_message_that_has_expired_does_not_swallow_one_that_is_sent_in_a_transaction() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut own = callers_own(&fixture).await;
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    let over = keyed("over").dedup_key("d").unwrap().expires_in(Duration::ZERO);
    provider.send_message(&queue("orders"), over, soon()).await.unwrap();
    let next = provider.send_message(&queue("orders"), keyed("next"), soon()).await.unwrap();
    let new = Message::new("new").dedup_key("d").unwrap();
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let new = provider.store().send_in(&mut transaction, &queue("orders"), &new).await.unwrap();
    transaction.commit().await.unwrap();
    let mut found = ids(&received(&provider).await);
    found.sort();
    let mut expected = [next, new];
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
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let late = provider.store().ack_in(&mut transaction, &receipt).await;
    assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_new_dedup_key_in_an_open_transaction_delays_no_other_key() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |key: &str| Message::new("x").dedup_key(key).unwrap();
    for key in ["a", "z"] {
        provider.send_message(&orders, with_key(key), soon()).await.unwrap();
    }
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().send_in(&mut transaction, &orders, &with_key("m")).await.unwrap();
    let meanwhile = async {
        for key in ["l", "n", "zz"] {
            provider.send_message(&orders, with_key(key), soon()).await.unwrap();
        }
        provider.send_message(&queue("others"), with_key("m"), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn the_holder_of_a_dedup_key_is_received_and_settled_beside_a_transaction_that_found_it() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    let holder = provider.send_message(&orders, with_key("holder"), soon()).await.unwrap();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let met = provider.store().send_in(&mut transaction, &orders, &with_key("second")).await.unwrap();
    assert_eq!(met, holder);
    let meanwhile = async {
        let mut found = received(&provider).await;
        assert_eq!(ids(&found), [holder]);
        provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    // The transaction still sees the holder in its snapshot; but it is gone.
    let new = provider.store().send_in(&mut transaction, &orders, &with_key("new")).await.unwrap();
    assert_ne!(new, holder);
    transaction.commit().await.unwrap();
    assert_eq!(ids(&received(&provider).await), [new]);
}

#[tokio::test]
async fn a_transaction_that_acks_the_holder_of_a_dedup_key_can_send_with_it() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    provider.send_message(&orders, with_key("1"), soon()).await.unwrap();
    let receipt = received(&provider).await.remove(0).into_receipt();
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().ack_in(&mut transaction, &receipt).await.unwrap();
    let next = with_key("2");
    assert_eq!(provider.store().send_in(&mut transaction, &orders, &next).await.unwrap(), next.id);
    transaction.commit().await.unwrap();
    assert_eq!(ids(&received(&provider).await), [next.id]);
}

#[tokio::test]
async fn an_ack_with_an_expired_lease_delays_no_other_call() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
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
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().ack_in(&mut transaction, &twice).await.unwrap();
    receipts.push(twice);
    for receipt in &receipts {
        let late = provider.store().ack_in(&mut transaction, receipt).await;
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
    transaction.commit().await.unwrap();
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
    let mut own = callers_own(&fixture).await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().ack_in(&mut transaction, &receipt).await.unwrap();
    let meanwhile = async {
        provider.send_message(&orders, Message::new("2"), soon()).await.unwrap();
        let second = received(&provider).await.remove(0);
        provider.nack_message(&orders, second, retry(), soon()).await.unwrap();
    };
    tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    transaction.commit().await.unwrap();
    let left: Option<u64> = own.query_first("select count(*) from failed_attempt").await.unwrap();
    assert_eq!(left, Some(1), "those of the first are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_transactions_with_one_dedup_key_the_second_returns_the_first_id() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    let mut own = callers_own(&fixture).await;
    let mut first = own.start_transaction(TxOpts::default()).await.unwrap();
    let holder = provider.store().send_in(&mut first, &orders, &with_key("1")).await.unwrap();
    let mut others = fixture.client().await;
    let store = provider.store().clone();
    let second = tokio::spawn(async move {
        let mut second = others.start_transaction(TxOpts::default()).await.unwrap();
        let id = store.send_in(&mut second, &queue("orders"), &with_key("2")).await.unwrap();
        second.query_drop(INSERT).await.expect("the transaction goes on");
        second.commit().await.unwrap();
        id
    });
    until_a_session_waits(&fixture, None).await;
    first.commit().await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap(), holder);
    assert_eq!(ids(&received(&provider).await), [holder]);
}
