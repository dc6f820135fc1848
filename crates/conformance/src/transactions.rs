//! Tests of sends and acks inside the caller's transaction.
//!
//! A provider's test passes a provider and a [`Caller`]: another program with a connection of its own to the same
//! database, which no other test uses. A failed test panics.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::{
    Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, Message, MessageId, MessagingError, MessagingService,
    Nack, Provider, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions,
};

use crate::locks::AT_ONCE;
use crate::probe::soon;

/// An answer of the provider.
pub type Answer<'a, T = ()> = BoxFuture<'a, Result<T, MessagingError>>;

/// A program with a connection to the provider's database, and with a table of its own, `orders`.
pub trait Caller: Send {
    /// Begins a transaction.
    fn begin<'c>(&'c mut self) -> BoxFuture<'c, Box<dyn Transaction<'c> + 'c>>;

    /// Counts the rows of `orders`.
    fn orders(&mut self) -> BoxFuture<'_, i64>;
}

/// An open transaction of a [`Caller`].
pub trait Transaction<'c>: Send {
    /// Inserts a row into `orders`.
    fn insert(&mut self) -> BoxFuture<'_, ()>;

    /// Sends a message inside the transaction.
    fn send<'a>(&'a mut self, queue: &'a QueueName, message: &'a Message) -> Answer<'a, MessageId>;

    /// Acks a message inside the transaction.
    fn ack<'a>(&'a mut self, receipt: &'a ReceiptHandle) -> Answer<'a>;

    /// Completes the work of an idempotency key inside the transaction.
    fn complete<'a>(&'a mut self, token: &'a IdempotencyToken) -> Answer<'a>;

    /// Commits it.
    fn commit(self: Box<Self>) -> BoxFuture<'c, ()>;

    /// Rolls it back.
    fn rollback(self: Box<Self>) -> BoxFuture<'c, ()>;
}

/// The queue of these tests.
fn queue() -> QueueName {
    QueueName::new("orders").expect("a queue's name")
}

/// A message of one ordering key.
fn keyed(body: &'static str) -> Message {
    Message::new(body).ordering_key("k").expect("a key")
}

/// A message of one dedup key.
fn single(body: &'static str) -> Message {
    Message::new(body).dedup_key("d").expect("a key")
}

async fn send<P: MessagingService>(provider: &P, message: Message) -> MessageId {
    provider.send_message(&queue(), message, soon()).await.expect("a send")
}

async fn ack<P: MessagingService>(provider: &P, message: QueuedMessage) {
    provider.ack_message(&queue(), message, soon()).await.expect("an ack");
}

/// Receives all messages of `orders` that are due.
pub async fn received<P: MessagingService>(provider: &P) -> Vec<QueuedMessage> {
    provider.receive_messages(&queue(), &ReceiveOptions::batch(9), soon()).await.expect("a receive")
}

/// The ids of messages.
pub fn ids(messages: &[QueuedMessage]) -> Vec<MessageId> {
    messages.iter().map(QueuedMessage::id).collect()
}

/// Receives exactly this message.
async fn take_only<P: MessagingService>(provider: &P, id: MessageId) -> QueuedMessage {
    let mut found = received(provider).await;
    assert_eq!(ids(&found), [id]);
    found.remove(0)
}

async fn queues<P: Provider>(provider: &P) -> Vec<QueueName> {
    provider.list_queues(soon()).await.expect("a list")
}

/// A message is there if and only if the caller's changes are.
pub async fn a_message_and_the_callers_changes_are_one<P: Provider>(provider: &P, own: &mut dyn Caller) {
    let mut transaction = own.begin().await;
    transaction.insert().await;
    transaction.send(&queue(), &Message::new("rolled back")).await.expect("a send");
    transaction.rollback().await;
    assert_eq!(own.orders().await, 0);
    assert_eq!(queues(provider).await, []);

    let mut transaction = own.begin().await;
    transaction.insert().await;
    let message = keyed("committed").header("tenant", "acme").expect("a header");
    let id = transaction.send(&queue(), &message).await.expect("a send");
    assert!(received(provider).await.is_empty(), "it is not there yet");
    transaction.commit().await;
    assert_eq!(queues(provider).await, [queue()]);
    let found = take_only(provider, id).await;
    assert_eq!(found.envelope.headers.get("tenant"), Some("acme"));
    assert_eq!(queues(provider).await, [queue()], "listed for good by the first read");
}

/// A send in a transaction is checked as any other, and has its keys. The provider has a body limit of at most ten
/// bytes, and creates no queues.
pub async fn the_rules_are_the_same_as_for_any_send<P: Provider>(provider: &P, own: &mut dyn Caller) {
    provider.ensure_queue(&queue(), soon()).await.expect("a queue");
    let mut transaction = own.begin().await;
    let refused = transaction.send(&queue(), &Message::new("far too large")).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "body", .. })), "{refused:?}");
    let missing = QueueName::new("missing").expect("a queue's name");
    let missing = transaction.send(&missing, &Message::new("x")).await;
    assert!(matches!(missing, Err(MessagingError::QueueNotFound { .. })), "{missing:?}");
    let first = single("1").ordering_key("k").expect("a key");
    let first = transaction.send(&queue(), &first).await.expect("a send");
    assert_eq!(transaction.send(&queue(), &single("2")).await.expect("a send"), first);
    transaction.send(&queue(), &keyed("3")).await.expect("a send");
    transaction.commit().await;
    assert_eq!(ids(&received(provider).await), [first], "the head of its key");
}

/// A send that fails leaves the transaction as it was. The database refuses messages of the queue `orders`.
pub async fn a_send_that_fails_leaves_nothing<P: Provider>(provider: &P, own: &mut dyn Caller) {
    let mut transaction = own.begin().await;
    let refused = transaction.send(&queue(), &Message::new("x")).await;
    assert!(matches!(refused, Err(MessagingError::Provider { retryable: false, .. })), "{refused:?}");
    transaction.insert().await;
    transaction.commit().await;
    assert_eq!(own.orders().await, 1, "the caller's own changes stand");
    assert_eq!(queues(provider).await, [], "its queue was made all the same");
}

/// A message is acknowledged if and only if the handler's changes are there.
pub async fn an_ack_and_the_handlers_changes_are_one<P: Provider>(provider: &P, own: &mut dyn Caller) {
    let first = send(provider, keyed("1")).await;
    let next = send(provider, keyed("2")).await;
    let receipt = take_only(provider, first).await.into_receipt();
    for commits in [false, true] {
        let mut transaction = own.begin().await;
        transaction.insert().await;
        transaction.ack(&receipt).await.expect("an ack");
        assert!(received(provider).await.is_empty(), "the key is held until the commit");
        if commits { transaction.commit().await } else { transaction.rollback().await }
    }
    assert_eq!(own.orders().await, 1);
    assert_eq!(ids(&received(provider).await), [next], "the next of its key");
    let mut transaction = own.begin().await;
    let again = transaction.ack(&receipt).await;
    assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    // The transaction goes on.
    transaction.insert().await;
    transaction.rollback().await;
}

/// The work of an idempotency key is done if and only if the handler's changes are there.
pub async fn a_record_and_the_handlers_changes_are_one<S: IdempotencyStore>(store: &S, own: &mut dyn Caller) {
    let (key, lease) = (IdempotencyKey::new("orders/7").expect("a key"), Duration::from_secs(30));
    let Begun::Fresh(token) = store.begin(&key, lease, soon()).await.expect("an answer") else { panic!("it is fresh") };
    for commits in [false, true] {
        let mut transaction = own.begin().await;
        transaction.complete(&token).await.expect("a record");
        if commits {
            transaction.commit().await
        } else {
            transaction.rollback().await
        }
        let found = store.begin(&key, lease, soon()).await.expect("an answer");
        assert_eq!(found == Begun::Done, commits, "{found:?}");
    }
}

/// A keyed send in an open transaction delays no other call, and takes its place in the order at its commit.
pub async fn a_keyed_send_delays_no_other_call<P: Provider>(provider: &P, own: &mut dyn Caller) {
    let mut transaction = own.begin().await;
    // A new queue, whose name must not be a lock either.
    let late = transaction.send(&queue(), &keyed("late")).await.expect("a send");
    for _ in 0..3 {
        let meanwhile = async {
            let id = send(provider, keyed("meanwhile")).await;
            ack(provider, take_only(provider, id).await).await;
        };
        tokio::time::timeout(AT_ONCE, meanwhile).await.expect("it does not wait for the open transaction");
    }
    let head = send(provider, keyed("head")).await;
    transaction.commit().await;
    let mut found = received(provider).await;
    assert_eq!(ids(&found), [head], "what was there first stays the head, although its row is younger");
    let after = send(provider, keyed("after")).await;
    ack(provider, found.remove(0)).await;
    for expected in [late, after] {
        ack(provider, take_only(provider, expected).await).await;
    }
}

/// A message that has expired does not swallow a new one with its dedup key, which `send_new` sends to `orders`, and
/// does not hold up the next of its ordering key.
pub async fn an_expired_message_swallows_no_other<P: Provider>(
    provider: &P,
    send_new: impl AsyncFnOnce(&Message) -> MessageId,
) {
    let over = keyed("over").dedup_key("d").expect("a key").expires_in(Duration::ZERO);
    send(provider, over).await;
    let next = send(provider, keyed("next")).await;
    let new = send_new(&single("new")).await;
    let mut found = ids(&received(provider).await);
    found.sort();
    let mut expected = [next, new];
    expected.sort();
    assert_eq!(found, expected, "the next of its key is free, and the new one is there");
    let stats = provider.queue_stats(&queue(), soon()).await.expect("an answer");
    assert_eq!(stats.dead.value(), Some(1));
}

/// A message that was released meanwhile is not acknowledged.
pub async fn a_message_released_meanwhile_is_not_acknowledged<P: Provider>(provider: &P, own: &mut dyn Caller) {
    let id = send(provider, Message::new("x")).await;
    let receipt = take_only(provider, id).await.into_receipt();
    provider.nack_message(&queue(), receipt.clone(), Nack::Release, soon()).await.expect("a release");
    let mut transaction = own.begin().await;
    let late = transaction.ack(&receipt).await;
    assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
    transaction.rollback().await;
}
