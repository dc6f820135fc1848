//! Queues that are missing, deleted, declared by other clients, or declared with other arguments.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use postrider_core::{
    Bytes, DeadLetterQuery, DeadLetters, Limits, Message, MessageId, MessagingError, MessagingService, Nack,
    QueueAdmin, QueueName, ReceiveOptions,
};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider};

use crate::{connect_with, options, prefix, soon, url};

fn queue(name: &str) -> QueueName {
    QueueName::new(format!("{}_{name}", prefix())).unwrap()
}

/// A channel of another client.
async fn channel() -> Channel {
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    channel
}

async fn delete(queue: &QueueName) {
    channel().await.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
}

async fn take(provider: &RabbitmqProvider, queue: &QueueName) -> postrider_core::QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(15));
    provider.receive_messages(queue, &options, soon()).await.unwrap().pop().expect("a message")
}

#[tokio::test]
async fn a_send_to_a_missing_queue_fails_if_queues_are_not_created() {
    let provider = connect_with(RabbitmqOptions { create_queues: false, ..options() }).await;
    let missing = queue("missing");
    let keyed = Message::new("k").ordering_key("k").unwrap();
    for message in [Message::new("x"), keyed, Message::new("d").delay(Duration::from_secs(1))] {
        let error = provider.send_message(&missing, message, soon()).await.unwrap_err();
        assert!(matches!(&error, MessagingError::QueueNotFound { queue } if *queue == missing), "{error:?}");
    }
    let report = provider.verify_queues(std::slice::from_ref(&missing), soon()).await.unwrap();
    assert_eq!(report.missing, [missing]);
}

#[tokio::test]
async fn of_many_sends_only_those_without_a_queue_fail() {
    // More messages than the publisher's window, for two queues in turn: returned messages must be told apart.
    let made = queue("made");
    let admin = connect_with(options()).await;
    admin.ensure_queue(&made, soon()).await.unwrap();
    let provider = connect_with(RabbitmqOptions { create_queues: false, ..options() }).await;
    let missing = queue("missing");
    let sends = (0..1200).map(|n| {
        let (provider, queue) = (provider.clone(), if n % 3 == 0 { made.clone() } else { missing.clone() });
        async move { (n, provider.send_message(&queue, Message::new(format!("{n}")), soon()).await) }
    });
    let mut stored = 0;
    for (n, sent) in futures_util::future::join_all(sends).await {
        match sent {
            Ok(_) if n % 3 == 0 => stored += 1,
            Err(MessagingError::QueueNotFound { .. }) if n % 3 != 0 => {}
            other => panic!("message {n}: {other:?}"),
        }
    }
    let stats = admin.queue_stats(&made, soon()).await.unwrap();
    assert_eq!((stored, stats.ready.value()), (400, Some(400)));
    admin.delete_queue(&made, soon()).await.unwrap();
}

#[tokio::test]
async fn a_send_creates_a_deleted_queue_again() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    provider.send_message(&orders, Message::new("first"), soon()).await.unwrap();
    delete(&orders).await;
    let second = provider.send_message(&orders, Message::new("second"), soon()).await.unwrap();
    assert_eq!(take(&provider, &orders).await.id(), second);
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn delayed_messages_arrive_in_a_queue_that_was_deleted_and_created_again() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    let waits = Message::new("waits").delay(Duration::from_secs(2));
    let waits = provider.send_message(&orders, waits, soon()).await.unwrap();
    delete(&orders).await;
    let plain = provider.send_message(&orders, Message::new("plain"), soon()).await.unwrap();
    for id in [plain, waits] {
        let message = take(&provider, &orders).await;
        assert_eq!(message.id(), id);
        provider.ack_message(&orders, message, soon()).await.unwrap();
    }
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn hints_that_are_not_read_block_no_other_call() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    let mut hints = provider.subscribe(&orders, soon()).await.unwrap();
    // Polled now and then, as by a busy caller.
    let mut seen = 0;
    while seen < 3 {
        seen += usize::from(futures_util::FutureExt::now_or_never(hints.next()).flatten().is_some());
        provider.health_check(soon()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_queue_deleted_under_a_waiting_receiver_is_created_again_or_reported() {
    for create_queues in [true, false] {
        let (admin, orders) = (connect_with(options()).await, queue("orders"));
        admin.ensure_queue(&orders, soon()).await.unwrap();
        let provider = connect_with(RabbitmqOptions { create_queues, ..options() }).await;
        let waiting = {
            let (provider, orders) = (provider.clone(), orders.clone());
            let options = ReceiveOptions::default().wait(Duration::from_secs(20));
            tokio::spawn(async move { provider.receive_messages(&orders, &options, soon()).await })
        };
        // Until the consumer is registered.
        let looking = channel().await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        while looking
            .queue_declare(orders.as_str().into(), passive, FieldTable::default())
            .await
            .unwrap()
            .consumer_count()
            == 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        delete(&orders).await;
        match create_queues {
            true => {
                let id = admin.send_message(&orders, Message::new("after"), soon()).await.unwrap();
                assert_eq!(waiting.await.unwrap().unwrap()[0].id(), id);
            }
            false => {
                let error = waiting.await.unwrap().unwrap_err();
                assert!(matches!(error, MessagingError::QueueNotFound { .. }), "{error:?}");
            }
        }
        admin.delete_queue(&orders, soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_named_with_the_differences() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel().await.queue_declare(orders.as_str().into(), durable, FieldTable::default()).await.unwrap();
    let all = [
        "x-dead-letter-exchange is none and not \"\"",
        "x-delivery-limit is none and not 1000000000",
        "x-queue-type is \"classic\" and not \"quorum\"",
        "set queue_type to its type",
    ];
    let first = ["x-dead-letter-exchange", "current is none", "set queue_type to its type"];
    // No server listens on that port, and the broker reports only the first difference.
    let silent = RabbitmqOptions { management_url: Some("http://127.0.0.1:1".to_owned()), ..options() };
    for (provider, parts) in [(&provider, &all[..]), (&connect_with(silent).await, &first[..])] {
        let error = provider.ensure_queue(&orders, soon()).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, MessagingError::InvalidInput { .. }), "{error:?}");
        for part in [&[orders.as_str()], parts].concat() {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
    }
    // It can be used as it is.
    let id = provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    let message = take(&provider, &orders).await;
    assert_eq!(message.id(), id);
    provider.nack_message(&orders, message, Nack::dead_letter("rejected"), soon()).await.unwrap();
    assert_eq!(provider.get_dead_letter(&orders, id, soon()).await.unwrap().reason.as_str(), "rejected");
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn foreign_messages_are_read_and_keep_their_ids() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let channel = channel().await;
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("acme".into()));
    headers.insert("retries".into(), AMQPValue::LongInt(7));
    headers.insert("not a name".into(), AMQPValue::Boolean(true));
    let named = BasicProperties::default().with_message_id("order-7".into()).with_content_type("text/plain".into());
    for (body, properties) in [("named", named.with_headers(headers)), ("unnamed", BasicProperties::default())] {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = channel.basic_publish("".into(), orders.as_str().into(), options, body.as_bytes(), properties).await;
        sent.unwrap().await.unwrap();
    }
    let message = take(&provider, &orders).await;
    assert_eq!(message.id(), MessageId::derived("rabbitmq", orders.as_str(), "order-7"));
    assert_eq!(message.envelope.content_type.as_str(), "text/plain");
    let headers: Vec<_> = message.envelope.headers.iter().collect();
    assert_eq!(headers, [("retries", "7"), ("tenant", "acme")]);
    provider.ack_message(&orders, message, soon()).await.unwrap();
    let first = take(&provider, &orders).await;
    let id = first.id();
    provider.nack_message(&orders, first, Nack::Release, soon()).await.unwrap();
    let again = take(&provider, &orders).await;
    assert_eq!((again.id(), again.receive_count()), (id, 2));
    // A copy keeps the id.
    provider.nack_message(&orders, again, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    let copy = take(&provider, &orders).await;
    assert_eq!((copy.id(), copy.receive_count(), copy.envelope.attempts_count), (id, 3, 1));
    provider.ack_message(&orders, copy, soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_receipt_of_another_connection_says_what_to_use_instead() {
    let (provider, orders) = (connect_with(options()).await, queue("orders"));
    provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    let receipt = take(&provider, &orders).await.into_receipt();
    let other = connect_with(options()).await;
    let error = other.ack_message(&orders, receipt.clone(), soon()).await.unwrap_err();
    assert!(error.to_string().contains("postrider work"), "{error}");
    provider.ack_message(&orders, receipt, soon()).await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test]
async fn a_name_that_the_broker_reserves_is_refused() {
    let provider = connect_with(options()).await;
    let reserved = QueueName::new("amq.orders").unwrap();
    let receive = ReceiveOptions::default();
    let refusals = [
        provider.ensure_queue(&reserved, soon()).await.unwrap_err(),
        provider.send_message(&reserved, Message::new("x"), soon()).await.unwrap_err(),
        provider.receive_messages(&reserved, &receive, soon()).await.unwrap_err(),
        provider.queue_stats(&reserved, soon()).await.unwrap_err(),
        provider.peek(&reserved, 1, soon()).await.unwrap_err(),
        provider.list_dead_letters(&reserved, &DeadLetterQuery::default(), soon()).await.unwrap_err(),
        provider.pause(&reserved, soon()).await.unwrap_err(),
        provider.purge(&reserved, soon()).await.unwrap_err(),
        provider.delete_queue(&reserved, soon()).await.unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, MessagingError::InvalidInput { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains("'amq.orders'") && text.contains("begin with 'amq.'; choose another"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_the_broker_refuses_fails_alone() {
    /// Default maximum message size of RabbitMQ.
    const LARGEST: usize = 128 * 1024 * 1024;
    let limits = Limits { max_body_bytes: LARGEST * 2, ..Limits::default() };
    let provider = connect_with(RabbitmqOptions { limits, ..options() }).await;
    let queue = queue("large");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    let others = async {
        let (mut sent, end) = (0, tokio::time::Instant::now() + Duration::from_secs(1));
        while tokio::time::Instant::now() < end {
            provider.send_message(&queue, Message::new("small"), soon()).await.unwrap();
            sent += 1;
        }
        sent
    };
    let too_large = async {
        let body = Bytes::from(vec![0; LARGEST + 1]);
        let messages = vec![Message::new("before"), Message::new(body), Message::new("after")];
        provider.send_batch(&queue, messages, soon()).await.unwrap()
    };
    let (sent, rows) = tokio::join!(others, too_large);
    assert!(rows[0].is_ok() && rows[2].is_ok(), "{rows:?}");
    let text = rows[1].as_ref().unwrap_err().to_string();
    assert!(matches!(&rows[1], Err(MessagingError::InvalidInput { .. })), "{text}");
    assert!(text.contains("the broker does not accept it") && text.contains("larger"), "{text}");
    assert_eq!(provider.purge(&queue, soon()).await.unwrap(), sent + 2);
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test]
async fn headers_too_large_for_a_frame_are_refused_and_keep_the_connection() {
    let provider = connect_with(options()).await;
    let queue = queue("headers");
    let with = |count: usize, name: &str, value: &str| {
        (0..count).fold(Message::new("x"), |message, n| message.header(format!("{name}{n}"), value).unwrap())
    };
    // Names and values are within the limit; with the overhead of each header they are not.
    let error = provider.send_message(&queue, with(12_000, "", ""), soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::InvalidInput { what: "headers", .. }), "{error:?}");
    // Escaped, each of these characters takes six bytes.
    let odd = with(1, "x-delay", &"\u{1}".repeat(60 * 1024));
    let headers = odd.headers.clone();
    for message in [odd, with(500, "many", &"x".repeat(100))] {
        provider.send_message(&queue, message, soon()).await.unwrap();
    }
    let first = take(&provider, &queue).await;
    assert_eq!(first.envelope.headers, headers);
    let error = "\u{1}".repeat(8 * 1024);
    let buried = Nack::dead_letter("rejected").with_error(error.clone());
    provider.nack_message(&queue, first, buried, soon()).await.unwrap();
    let letters = provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
    assert_eq!((&letters[0].headers, &letters[0].error), (&headers, &Some(error)));
    provider.delete_queue(&queue, soon()).await.unwrap();
}
