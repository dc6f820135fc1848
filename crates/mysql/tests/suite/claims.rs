//! Floors of claims: messages below them are found.

use std::time::Duration;

use mysql_async::TxOpts;
use postrider_core::{Message, MessagingService, Nack, QueuedMessage, ReceiveOptions, Settlement};
use postrider_mysql::{MysqlProvider, mysql_async};

use crate::{Fixture, queue, soon};

const BATCH: usize = 20;

/// Claims a batch and acknowledges it.
async fn next(provider: &MysqlProvider) -> Vec<String> {
    let messages = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(BATCH), soon()).await.unwrap();
    let bodies = messages.iter().map(|message| String::from_utf8(message.message.to_vec()).unwrap()).collect();
    let acks = messages.into_iter().map(Settlement::ack).collect();
    provider.settle(acks, soon()).await.unwrap();
    bodies
}

async fn send(provider: &MysqlProvider, count: usize, body: &str) {
    let messages = (0..count).map(|_| Message::new(body.to_owned())).collect();
    for row in provider.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

#[tokio::test]
async fn a_message_that_was_committed_late_is_found_in_a_long_queue_and_at_its_end() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut own = fixture.client().await;
    for backlog in [2 * BATCH, 40 * BATCH] {
        let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
        let late = Message::new("late");
        provider.store().send_in(&mut transaction, &queue("orders"), &late).await.unwrap();
        send(&provider, backlog, "backlog").await;
        assert_eq!(next(&provider).await, vec!["backlog"; BATCH], "it is not there yet");
        transaction.commit().await.unwrap();
        let mut claims = 0;
        loop {
            claims += 1;
            let bodies = next(&provider).await;
            assert!(!bodies.is_empty(), "the late one was never found");
            if bodies.iter().any(|body| body == "late") {
                break;
            }
        }
        assert!(claims <= 17, "it took {claims} claims");
        while !next(&provider).await.is_empty() {}
    }
}

#[tokio::test]
async fn what_was_claimed_once_and_comes_back_is_found_with_the_rest() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    send(&provider, 2 * BATCH, "x").await;
    let options = ReceiveOptions::batch(BATCH);
    let mut held = provider.receive_messages(&orders, &options, soon()).await.unwrap();
    assert_eq!(held.len(), BATCH);
    let back = held.split_off(BATCH / 2);
    for message in back {
        provider.nack_message(&orders, message, Nack::Release, soon()).await.unwrap();
    }
    let rest = provider.receive_messages(&orders, &ReceiveOptions::batch(2 * BATCH), soon()).await.unwrap();
    assert_eq!(rest.len(), BATCH + BATCH / 2);
}

#[tokio::test]
async fn leases_that_ran_out_below_the_floor_come_back() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    send(&provider, BATCH, "x").await;
    let short = ReceiveOptions::batch(BATCH).visibility(Duration::from_millis(50)).max_receive_count(100);
    let first = provider.receive_messages(&orders, &short, soon()).await.unwrap();
    assert_eq!(first.len(), BATCH);
    let receipts: Vec<_> = first.into_iter().map(QueuedMessage::into_receipt).collect();
    let again = provider.receive_messages(&orders, &short.clone().wait(Duration::from_secs(10)), soon()).await.unwrap();
    assert_eq!((again.len(), receipts.len()), (BATCH, BATCH));
}

#[tokio::test]
async fn a_lost_lease_does_not_affect_the_rest_of_its_batch() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    send(&provider, 3, "x").await;
    let held = provider.receive_messages(&orders, &ReceiveOptions::batch(3), soon()).await.unwrap();
    let receipts: Vec<_> = held.into_iter().map(QueuedMessage::into_receipt).collect();
    provider.nack_message(&orders, receipts[1].clone(), Nack::Release, soon()).await.unwrap();
    let acks = receipts.iter().cloned().map(Settlement::ack).collect();
    let both = provider.settle_and_receive(acks, &[orders], &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(both.settled.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(both.received.unwrap().len(), 1, "the one that was given back");
}
