//! Messages with keys beside others who are at the same partition.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use postrider_core::{Message, MessagingService, QueueAdmin, QueueName, QueuedMessage, ReceiveOptions};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider};

use crate::{connect_with, options, prefix, soon, url};

/// How long something may take that happens at once.
const LONG: Duration = Duration::from_secs(20);

fn queue() -> QueueName {
    QueueName::new(format!("{}_keyed", prefix())).unwrap()
}

/// All keys in one partition.
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

/// Somebody else at the only partition of a queue, as another worker is.
struct Other {
    /// Kept open for the channel.
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

impl Other {
    /// Waits behind those who are there, for up to `count` messages.
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
async fn a_look_beside_a_worker_keeps_the_order() {
    let (provider, orders) = (connect_with(one_partition()).await, queue());
    for body in ["1", "2", "3"] {
        send(&provider, &orders, "k", body).await;
    }
    for _ in 0..20 {
        let mut before = Other::at(&orders, 1).await;
        assert_eq!(before.next().await, "1");
        let looking = {
            let (provider, orders) = (provider.clone(), orders.clone());
            tokio::spawn(async move { provider.peek(&orders, 2, soon()).await.unwrap() })
        };
        // The broker does not count those who wait, so this is a guess, and the order must hold either way.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut behind = Other::at(&orders, 3).await;
        before.channel.close(200, "done".into()).await.unwrap();
        let seen = looking.await.unwrap();
        let came = [behind.next().await, behind.next().await, behind.next().await];
        assert_eq!(came, ["1", "2", "3"], "after {} were looked at", seen.len());
        behind.channel.close(200, "done".into()).await.unwrap();
        // A look that came too late, or was not served in time, shows nothing.
        if seen.len() == 2 {
            provider.delete_queue(&orders, soon()).await.unwrap();
            return;
        }
    }
    panic!("no look was served");
}

#[tokio::test]
async fn a_worker_that_leaves_with_a_message_in_hand_keeps_the_order() {
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
