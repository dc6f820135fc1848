//! Messages with keys, with other consumers on the same partition.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use postrider_core::{
    Message, MessagingError, MessagingService, Nack, QueueAdmin, QueueName, QueuedMessage, ReceiveOptions, Timestamp,
};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider};
use tokio::time::Instant;

use crate::{connect_with, options, prefix, soon, url};

/// Time limit of an event that normally happens at once.
const LONG: Duration = Duration::from_secs(20);

fn queue() -> QueueName {
    QueueName::new(format!("{}_keyed", prefix())).unwrap()
}

/// Options with all keys in one partition.
fn one_partition() -> RabbitmqOptions {
    RabbitmqOptions { partitions: 1, ..options() }
}

async fn send(provider: &RabbitmqProvider, queue: &QueueName, key: &str, body: &str) {
    let message = Message::new(body.to_owned()).ordering_key(key).unwrap();
    provider.send_message(queue, message, soon()).await.unwrap();
}

async fn take(provider: &RabbitmqProvider, queue: &QueueName, options: ReceiveOptions) -> QueuedMessage {
    let received = provider.receive_messages(queue, &options.wait(LONG), soon()).await.unwrap();
    received.into_iter().next().expect("a message")
}

/// Another consumer on the only partition of a queue.
struct Other {
    /// Kept open for the channel.
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

impl Other {
    /// Registers a consumer behind the present ones, with the prefetch count `count`.
    async fn at(queue: &QueueName, count: u16) -> Self {
        let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.basic_qos(count, BasicQosOptions::default()).await.unwrap();
        let (name, options) = (format!("{queue}:key:0"), BasicConsumeOptions::default());
        let consumer =
            channel.basic_consume(name.into(), "other".into(), options, FieldTable::default()).await.unwrap();
        Self { _connection: connection, channel, consumer }
    }

    async fn next(&mut self) -> String {
        let delivery = tokio::time::timeout(LONG, self.consumer.next()).await.expect("a message in time");
        String::from_utf8(delivery.unwrap().unwrap().data).unwrap()
    }
}

#[tokio::test]
async fn a_peek_beside_a_worker_keeps_the_order() {
    let (provider, orders) = (connect_with(one_partition()).await, queue());
    for body in ["1", "2", "3"] {
        send(&provider, &orders, "k", body).await;
    }
    for turn in 1..=20 {
        let mut before = Other::at(&orders, 1).await;
        assert_eq!(before.next().await, "1");
        let looking = {
            let (provider, orders) = (provider.clone(), orders.clone());
            tokio::spawn(async move { provider.peek(&orders, 2, soon()).await.unwrap() })
        };
        // Waiting consumers cannot be observed, so the pause is a guess; the order must hold either way.
        tokio::time::sleep(Duration::from_millis(50) * turn).await;
        let mut behind = Other::at(&orders, 3).await;
        before.channel.close(200, "done".into()).await.unwrap();
        let seen = looking.await.unwrap();
        let came = [behind.next().await, behind.next().await, behind.next().await];
        assert_eq!(came, ["1", "2", "3"], "after {} were peeked at", seen.len());
        behind.channel.close(200, "done".into()).await.unwrap();
        // A peek that came too late, or was not served in time, is empty.
        if !seen.is_empty() {
            provider.delete_queue(&orders, soon()).await.unwrap();
            return;
        }
    }
    panic!("no peek was served");
}

#[tokio::test]
async fn after_a_peek_a_returned_message_stays_the_first() {
    let (provider, orders) = (connect_with(one_partition()).await, queue());
    let unlimited = || ReceiveOptions::default().max_receive_count(1000);
    for body in ["1", "2", "3"] {
        send(&provider, &orders, "k", body).await;
    }
    let seen = provider.peek(&orders, 3, soon()).await.unwrap();
    let seen: Vec<_> = seen.iter().map(|peeked| peeked.body.as_ref()).collect();
    assert_eq!(seen, [b"1"], "the messages behind it would overtake it when it is returned alone");
    let received = provider.receive_messages(&orders, &unlimited(), soon()).await.unwrap();
    assert_eq!(received.len(), 1, "a peek that has ended hides nothing");
    drop(received);
    let worker = connect_with(one_partition()).await;
    let killed = take(&worker, &orders, unlimited()).await.into_receipt();
    worker.close(soon()).await.unwrap();
    drop(killed);
    let mut counts = Vec::new();
    for (body, nack) in [
        ("1", Some(Nack::retry_after(Duration::ZERO))),
        ("1", Some(Nack::Release)),
        ("1", None),
        ("2", None),
        ("3", None),
    ] {
        let message = take(&provider, &orders, unlimited()).await;
        assert_eq!(message.message.as_ref(), body.as_bytes());
        counts.push(message.receive_count());
        match nack {
            Some(nack) => provider.nack_message(&orders, message, nack, soon()).await.unwrap(),
            None => provider.ack_message(&orders, message, soon()).await.unwrap(),
        }
    }
    // The peek, the dropped message and the closed worker count; the messages behind were never delivered.
    assert_eq!(counts, [4, 5, 6, 1, 1]);
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_closes_with_a_leased_message_keeps_the_order() {
    let (admin, orders) = (connect_with(one_partition()).await, queue());
    for body in ["1", "2", "3"] {
        send(&admin, &orders, "k", body).await;
    }
    let worker = connect_with(one_partition()).await;
    let held = take(&worker, &orders, ReceiveOptions::default()).await.into_receipt();
    let mut behind = Other::at(&orders, 3).await;
    worker.close(soon()).await.unwrap();
    assert_eq!([behind.next().await, behind.next().await, behind.next().await], ["1", "2", "3"]);
    drop(held);
    behind.channel.close(200, "done".into()).await.unwrap();
    admin.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn every_partition_with_messages_gets_its_turn() {
    let (provider, orders) = (connect_with(RabbitmqOptions { partitions: 2, ..options() }).await, queue());
    let keys = ["a", "b", "c", "d"];
    for n in 0..20 {
        for key in keys {
            send(&provider, &orders, key, &format!("{key}{n}")).await;
        }
    }
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        let message = take(&provider, &orders, ReceiveOptions::default()).await;
        seen.insert(message.envelope.ordering_key.as_ref().unwrap().as_str().to_owned());
        provider.ack_message(&orders, message, soon()).await.unwrap();
        // Long enough for the broker to deliver the partition's next message.
        tokio::time::sleep(Duration::from_millis(60)).await;
        if seen.len() == keys.len() {
            break;
        }
    }
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), keys);
    provider.delete_queue(&orders, soon()).await.unwrap();
}

/// Options with which the provider limits a lease and its retry to ten seconds together.
fn ten_seconds() -> RabbitmqOptions {
    RabbitmqOptions { consumer_timeout: Duration::from_secs(130), ..one_partition() }
}

#[tokio::test]
async fn the_longest_retry_delay_counts_the_time_of_the_lease() {
    let (provider, orders) = (connect_with(ten_seconds()).await, queue());
    send(&provider, &orders, "k", "x").await;
    let options = ReceiveOptions::default().visibility(Duration::from_secs(10));
    let message = take(&provider, &orders, options.clone()).await;
    // The provider computes the remaining time by tokio's clock.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(3500)).await;
    tokio::time::resume();
    let receipt = message.into_receipt();
    let late = Nack::retry_after(Duration::from_secs(7));
    let error = provider.nack_message(&orders, receipt.clone(), late, soon()).await.unwrap_err();
    assert!(matches!(&error, MessagingError::InvalidInput { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("for at most") && !text.contains("at most 7 s"), "{text}");
    // The message is still leased, and a shorter delay fits.
    provider.nack_message(&orders, receipt, Nack::retry_after(Duration::from_millis(10)), soon()).await.unwrap();
    let again = take(&provider, &orders, options).await;
    assert_eq!(again.receive_count(), 2);
    provider.ack_message(&orders, again, soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_lease_of_a_delayed_message_ends_before_the_brokers_consumer_timeout() {
    let (provider, orders) = (connect_with(ten_seconds()).await, queue());
    let message = Message::new("x").ordering_key("k").unwrap().delay(Duration::from_secs(1));
    provider.send_message(&orders, message, soon()).await.unwrap();
    let options = ReceiveOptions::default().visibility(Duration::from_secs(10));
    let message = take(&provider, &orders, options).await;
    let lease = message.envelope.lease_expires_at.as_micros() - Timestamp::now().as_micros();
    assert!(lease <= 9_000_000, "leased for {lease} µs after a wait of one second");
    provider.ack_message(&orders, message, soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_delayed_message_waits_once() {
    let (provider, orders) = (connect_with(one_partition()).await, queue());
    let delay = Duration::from_secs(1);
    let message = Message::new("x").ordering_key("k").unwrap().delay(delay);
    provider.send_message(&orders, message, soon()).await.unwrap();
    let mut message = take(&provider, &orders, ReceiveOptions::default()).await;
    assert_eq!(message.receive_count(), 1);
    // A busy machine may take as long once; a message whose delay is repeated takes as long every time.
    let mut took = delay;
    for delivery in 2..=5 {
        provider.nack_message(&orders, message, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
        let released = Instant::now();
        message = take(&provider, &orders, ReceiveOptions::default()).await;
        assert_eq!(message.receive_count(), delivery);
        took = released.elapsed();
        if took < delay {
            break;
        }
    }
    assert!(took < delay, "it waited again, for {took:?}");
    provider.ack_message(&orders, message, soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn after_an_acknowledgement_the_next_message_of_the_key_is_ready_at_once() {
    let (provider, orders) = (connect_with(one_partition()).await, queue());
    for n in 0..20 {
        send(&provider, &orders, "k", &n.to_string()).await;
    }
    for n in 0..20 {
        // A caller that does not wait takes an empty answer for an empty queue.
        let mut received = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
        let message = received.pop().unwrap_or_else(|| panic!("message {n} is there, and was not received"));
        assert_eq!((message.message.as_ref(), message.receive_count()), (n.to_string().as_bytes(), 1));
        provider.ack_message(&orders, message, soon()).await.unwrap();
    }
    provider.delete_queue(&orders, soon()).await.unwrap();
}
