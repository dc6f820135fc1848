//! Messages from and for other clients of SQS.

use std::time::Duration;

use postrider_core::{
    ContentType, DeadLetterQuery, DeadLetterReason, DeadLetters, Message, MessagingService, Nack, ReceiveOptions,
};
use postrider_sqs::aws_sdk_sqs::Client;
use postrider_sqs::aws_sdk_sqs::primitives::Blob;
use postrider_sqs::aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName};

use crate::{Emulator, TestStore, queue, soon, take};

async fn client(store: &TestStore) -> Client {
    postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap()
}

async fn url_of(client: &Client, name: &str) -> String {
    client.get_queue_url().queue_name(name).send().await.unwrap().queue_url.unwrap()
}

fn text(value: &str) -> MessageAttributeValue {
    MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap()
}

#[tokio::test]
async fn a_foreign_message_keeps_one_id_and_its_attributes() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, client, orders) = (store.connect().await, client(&store).await, queue("orders"));
        provider.ensure_queue(&orders, soon()).await.unwrap();
        let url = url_of(&client, &format!("{}orders", store.prefix)).await;
        let number = MessageAttributeValue::builder().data_type("Number").string_value("7").build().unwrap();
        let bytes =
            MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new([0xff])).build().unwrap();
        let send = client.send_message().queue_url(&url).message_body("{\"a\":1}");
        let send = send.message_attributes("content-type", text("application/json"));
        send.message_attributes("n", number).message_attributes("b", bytes).send().await.unwrap();
        let mut seen = Vec::new();
        for failures in 0..3 {
            let message = take(&provider, &orders).await;
            assert_eq!(message.message, "{\"a\":1}");
            assert_eq!(message.envelope.content_type, ContentType::JSON, "{emulator:?}");
            assert_eq!(message.envelope.headers.get("n"), Some("7"));
            assert_eq!(message.envelope.headers.get("b"), Some("/w=="));
            assert_eq!(message.envelope.attempts_count, failures);
            seen.push(message.id());
            provider.nack_message(&orders, message, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
        }
        seen.dedup();
        assert_eq!(seen.len(), 1, "its id is the same over redelivery and copies");
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn a_foreign_group_is_an_ordering_key() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, client, orders) = (store.connect().await, client(&store).await, queue("orders"));
    provider.send_message(&orders, Message::new("1").ordering_key("k").unwrap(), soon()).await.unwrap();
    let url = url_of(&client, &format!("{}orders.fifo", store.prefix)).await;
    let send = client.send_message().queue_url(&url).message_body("2").message_group_id("k");
    send.message_deduplication_id("2").send().await.unwrap();
    for body in ["1", "2"] {
        let message = take(&provider, &orders).await;
        assert_eq!(message.message, body);
        assert_eq!(message.envelope.ordering_key.as_ref().map(|key| key.as_str()), Some("k"));
        provider.ack_message(&orders, message, soon()).await.unwrap();
    }
    store.delete_queues().await;
}

#[tokio::test]
async fn other_clients_read_text_and_attributes() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, client, orders) = (store.connect().await, client(&store).await, queue("orders"));
        let message = Message::new("plain").header("tenant", "acme").unwrap();
        provider.send_message(&orders, message, soon()).await.unwrap();
        let url = url_of(&client, &format!("{}orders", store.prefix)).await;
        let receive = client.receive_message().queue_url(&url).message_attribute_names("All").wait_time_seconds(5);
        let received = receive.send().await.unwrap().messages.unwrap();
        assert_eq!(received[0].body(), Some("plain"));
        let attributes = received[0].message_attributes().unwrap();
        assert_eq!(attributes["tenant"].string_value(), Some("acme"));
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn many_and_odd_headers_and_bytes_arrive_whole() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, orders) = (store.connect().await, queue("orders"));
        for body in [vec![], vec![0, 255, 10], b"\x01 control".to_vec(), "\u{ffff} \u{1F40E}".into()] {
            let mut message = Message::new(body.clone());
            for n in 0..40 {
                message = message.header(format!("h{n}"), "x".repeat(1500)).unwrap();
            }
            message = message.header("empty", "").unwrap().header("odd", "\u{1}\u{fffe}").unwrap();
            let headers = message.headers.clone();
            provider.send_message(&orders, message, soon()).await.unwrap();
            let message = take(&provider, &orders).await;
            assert_eq!(message.message, body, "{emulator:?}");
            assert_eq!(message.envelope.headers, headers);
            // A copy is as large, and has an error text too.
            let nack = Nack::dead_letter("large").with_error("\u{1}".repeat(8 * 1024));
            provider.nack_message(&orders, message, nack, soon()).await.unwrap();
            let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
            assert_eq!((&dead.letters[0].headers, dead.letters.len()), (&headers, 1));
            let all = postrider_core::DeadLetterSelection::All;
            provider.purge_dead_letters(&orders, &all, soon()).await.unwrap();
        }
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn the_largest_bodies_arrive_and_can_be_dead_lettered() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders) = (store.connect().await, queue("orders"));
    let limits = provider.capabilities().limits.clone();
    let binary = (1024 * 1024 - 128 * 1024) / 4 * 3;
    for body in [vec![b'x'; limits.max_body_bytes], vec![0xff; binary]] {
        let message = Message::new(body.clone()).header("large", "h".repeat(limits.max_header_bytes - 5)).unwrap();
        provider.send_message(&orders, message, soon()).await.unwrap();
        let message = take(&provider, &orders).await;
        assert!(message.message == body, "{} bytes arrived changed", body.len());
        let nack = Nack::dead_letter("large").with_error("\u{1}".repeat(8 * 1024));
        provider.nack_message(&orders, message, nack, soon()).await.unwrap();
    }
    let too_much = provider.send_message(&orders, Message::new(vec![0xff; 900 * 1024]), soon()).await.unwrap_err();
    assert!(too_much.to_string().contains("at most 917504"), "{too_much}");
    let in_base64 = provider.send_message(&orders, Message::new(vec![0xff; 890 * 1024]), soon()).await.unwrap_err();
    assert!(in_base64.to_string().contains("base64"), "{in_base64}");
    store.delete_queues().await;
}

#[tokio::test]
async fn a_message_that_sqs_moved_to_the_dead_letters_has_the_reason() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, client, orders) = (store.connect().await, client(&store).await, queue("orders"));
        provider.ensure_queue(&orders, soon()).await.unwrap();
        let url = url_of(&client, &format!("{}orders", store.prefix)).await;
        let policy = client.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::RedrivePolicy);
        let policy = policy.send().await.unwrap().attributes.unwrap()[&QueueAttributeName::RedrivePolicy].clone();
        assert!(policy.contains("1000"), "the redrive policy has the highest limit: {policy}");
        let lower = policy.replace("1000", "1");
        let set = client.set_queue_attributes().queue_url(&url);
        set.attributes(QueueAttributeName::RedrivePolicy, lower).send().await.unwrap();
        let id = provider.send_message(&orders, Message::new("one"), soon()).await.unwrap();
        let message = take(&provider, &orders).await;
        provider.nack_message(&orders, message, Nack::Release, soon()).await.unwrap();
        let none = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
        assert!(none.is_empty());
        let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
        assert_eq!(dead.iter().map(|letter| letter.id).collect::<Vec<_>>(), [id], "{emulator:?}");
        assert_eq!(dead[0].reason, DeadLetterReason::MAX_RECEIVE_COUNT, "{emulator:?}");
        store.delete_queues().await;
    }
}
