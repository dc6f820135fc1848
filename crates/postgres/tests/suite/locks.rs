//! Others are in the way: nobody waits who need not.

use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService, QueuedMessage, ReceiveOptions, Settlement};
use postrider_postgres::PostgresProvider;

use crate::{Place, client, queue, soon};

/// Shorter than a statement waits for a lock, and longer than a busy machine takes for a few statements.
const PATIENCE: Duration = Duration::from_secs(4);

async fn received(provider: &PostgresProvider, max: usize) -> Vec<QueuedMessage> {
    let mut found = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(max), soon()).await.unwrap();
    found.sort_by_key(|message| message.message.to_vec());
    found
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("nobody waits for the open transaction")
}

#[tokio::test]
async fn one_message_that_a_transaction_has_does_not_stop_the_others() {
    let place = Place::new();
    let (provider, orders) = (place.connect().await, queue("orders"));
    let keyed = |body: &'static str| Message::new(body).ordering_key(body).unwrap();
    let sent = vec![Message::new("1"), Message::new("2"), Message::new("3"), keyed("4"), keyed("5")];
    provider.send_batch(&orders, sent, soon()).await.unwrap();
    let mut held = received(&provider, 9).await;
    assert_eq!(held.len(), 5);
    let taken = [0, 3].map(|n: usize| held[n].receipt().clone());
    let mut own = client().await;
    let mut transaction = own.transaction().await.unwrap();
    for receipt in &taken {
        provider.store().ack_in(&mut transaction, receipt).await.unwrap();
    }

    let receipts: Vec<_> = held.iter().map(|message| message.receipt().clone()).collect();
    let minute = Duration::from_secs(60);
    let extend = receipts.iter().map(|receipt| provider.extend_visibility(&orders, receipt, minute, soon()));
    let extended = in_time(futures_util::future::join_all(extend)).await;
    let is_busy = |result: &Result<(), MessagingError>| match result {
        Ok(()) => false,
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            true
        }
    };
    assert_eq!(extended.iter().map(is_busy).collect::<Vec<_>>(), [true, false, false, true, false]);

    // Some with a claim in the same transaction, some without.
    let last = held.split_off(2);
    let acks = |messages: Vec<QueuedMessage>| messages.into_iter().map(Settlement::ack).collect::<Vec<_>>();
    let settled = in_time(provider.settle(acks(held), soon())).await.unwrap();
    assert_eq!(settled.iter().map(is_busy).collect::<Vec<_>>(), [true, false]);
    let next = provider.send_message(&orders, Message::new("6"), soon()).await.unwrap();
    let (queues, options) = ([orders], ReceiveOptions::batch(9));
    let both = in_time(provider.settle_and_receive(acks(last), &queues, &options, soon())).await.unwrap();
    assert_eq!(both.settled.iter().map(is_busy).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(both.received.unwrap().iter().map(QueuedMessage::id).collect::<Vec<_>>(), [next]);

    transaction.commit().await.unwrap();
    for receipt in taken {
        let again = provider.settle(vec![Settlement::ack(receipt)], soon()).await.unwrap().remove(0);
        assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    }
}
