//! Sends and acks inside the caller's own transaction.

use postrider_core::{Limits, Message, MessagingError, MessagingService, QueueAdmin, QueuedMessage, ReceiveOptions};
use postrider_sqlite::rusqlite::{Connection, TransactionBehavior};
use postrider_sqlite::{SqliteOptions, SqliteStore};

use crate::{TestStore, queue, soon};

fn callers_own(test_store: &TestStore) -> Connection {
    let connection = Connection::open(test_store.file()).unwrap();
    connection.execute_batch("create table if not exists orders (id integer primary key)").unwrap();
    connection
}

fn orders(connection: &Connection) -> i64 {
    connection.query_row("select count(*) from orders", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_message_and_the_callers_changes_are_committed_together() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let store = provider.store().clone();
    let orders_queue = queue("orders");
    let mut own = callers_own(&test_store);

    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("insert into orders default values", []).unwrap();
    store.send_in(&transaction, &orders_queue, &Message::new("rolled back")).unwrap();
    transaction.rollback().unwrap();
    assert_eq!(orders(&own), 0);
    assert_eq!(provider.list_queues(soon()).await.unwrap(), []);

    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("insert into orders default values", []).unwrap();
    let id = store.send_in(&transaction, &orders_queue, &Message::new("committed")).unwrap();
    transaction.commit().unwrap();
    let received = provider.receive_messages(&orders_queue, &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.iter().map(QueuedMessage::id).collect::<Vec<_>>(), [id]);
}

#[tokio::test]
async fn the_rules_are_the_same_as_for_any_send() {
    let test_store = TestStore::new();
    let limits = Limits { max_body_bytes: 10, ..Limits::default() };
    let options = SqliteOptions { limits, create_queues: false, ..SqliteOptions::default() };
    let provider = test_store.connect_with(options).await;
    let store = provider.store().clone();
    let orders = queue("orders");
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let mut own = callers_own(&test_store);
    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let send = |queue, message: Message| store.send_in(&transaction, queue, &message);

    let refused = send(&orders, Message::new("far too large"));
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "body", .. })), "{refused:?}");
    let missing = store.send_in(&transaction, &queue("missing"), &Message::new("x"));
    assert!(matches!(missing, Err(MessagingError::QueueNotFound { .. })), "{missing:?}");
    let first = send(&orders, Message::new("1").dedup_key("d").unwrap().ordering_key("k").unwrap()).unwrap();
    assert_eq!(send(&orders, Message::new("2").dedup_key("d").unwrap()).unwrap(), first);
    send(&orders, Message::new("3").ordering_key("k").unwrap()).unwrap();
    transaction.commit().unwrap();
    let received = provider.receive_messages(&orders, &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.iter().map(QueuedMessage::id).collect::<Vec<_>>(), [first], "the head of its key");
}

#[tokio::test]
async fn a_send_that_fails_leaves_nothing_in_the_transaction() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let mut own = callers_own(&test_store);
    own.execute_batch("create trigger refuse before insert on message begin select raise(abort, 'no'); end").unwrap();
    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let refused = provider.store().send_in(&transaction, &queue("orders"), &Message::new("x"));
    assert!(matches!(refused, Err(MessagingError::Provider { retryable: false, .. })), "{refused:?}");
    transaction.commit().unwrap();
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [], "the queue was created all the same");
}

#[tokio::test]
async fn an_ack_and_the_handlers_changes_are_committed_together() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let store = provider.store().clone();
    let queue = queue("orders");
    let mut own = callers_own(&test_store);
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    let mut received = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap();
    let receipt = received.remove(0).into_receipt();
    for attempt in 0..2 {
        let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("insert into orders default values", []).unwrap();
        store.ack_in(&transaction, &receipt).unwrap();
        if attempt == 0 { transaction.rollback() } else { transaction.commit() }.unwrap();
    }
    assert_eq!(orders(&own), 1);
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(0));
    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let again = store.ack_in(&transaction, &receipt);
    assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    transaction.execute("insert into orders default values", []).expect("the transaction stays usable");
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let test_store = TestStore::new();
    let store = SqliteStore::open(test_store.file(), SqliteOptions::default()).await.unwrap();
    let mut elsewhere = Connection::open(test_store.folder.path().join("elsewhere.db")).unwrap();
    let transaction = elsewhere.transaction().unwrap();
    let refused = store.send_in(&transaction, &queue("orders"), &Message::new("x"));
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "transaction", .. })), "{refused:?}");
}
