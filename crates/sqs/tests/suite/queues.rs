//! Queues that are missing, deleted, or created by others.

use std::time::Duration;

use postrider_core::{
    DeadLetterQuery, DeadLetters, Message, MessagingError, MessagingService, Nack, QueueAdmin, ReceiveOptions,
};
use postrider_sqs::SqsOptions;
use postrider_sqs::aws_sdk_sqs::types::QueueAttributeName;

use crate::{Emulator, TestStore, queue, soon, take};

#[tokio::test]
async fn a_missing_queue_is_an_error_if_queues_are_not_created() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let careful = store.connect_with(SqsOptions { create_queues: false, ..SqsOptions::default() }).await;
        let orders = queue("orders");
        for message in [Message::new("x"), Message::new("x").ordering_key("k").unwrap()] {
            let error = careful.send_message(&orders, message, soon()).await.unwrap_err();
            assert!(matches!(error, MessagingError::QueueNotFound { .. }), "{error}");
        }
        careful.ensure_queue(&orders, soon()).await.unwrap();
        careful.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        let keyed = careful.send_message(&orders, Message::new("x").ordering_key("k").unwrap(), soon()).await;
        assert!(matches!(keyed, Err(MessagingError::QueueNotFound { .. })), "{keyed:?}");
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn a_queue_that_another_client_deleted_is_created_again_or_reported() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, other, orders) = (store.connect().await, store.connect().await, queue("orders"));
        let careful = store.connect_with(SqsOptions { create_queues: false, ..SqsOptions::default() }).await;
        provider.send_message(&orders, Message::new("lost with the queue"), soon()).await.unwrap();
        careful.send_message(&orders, Message::new("lost with the queue"), soon()).await.unwrap();
        let held = take(&provider, &orders).await;
        other.delete_queue(&orders, soon()).await.unwrap();
        let told = careful.send_message(&orders, Message::new("x"), soon()).await;
        assert!(matches!(told, Err(MessagingError::QueueNotFound { .. })), "{emulator:?}: {told:?}");
        let late = provider.ack_message(&orders, held, soon()).await;
        assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{emulator:?}: {late:?}");
        let id = provider.send_message(&orders, Message::new("anew"), soon()).await.unwrap();
        assert_eq!(take(&provider, &orders).await.id(), id);
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn a_queue_that_is_deleted_under_a_waiting_receiver_is_waited_for() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, other, orders) = (store.connect().await, store.connect().await, queue("orders"));
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let waiting = tokio::spawn({
        let (provider, orders) = (provider.clone(), orders.clone());
        async move { take(&provider, &orders).await }
    });
    other.delete_queue(&orders, soon()).await.unwrap();
    let id = other.send_message(&orders, Message::new("anew"), soon()).await.unwrap();
    assert_eq!(waiting.await.unwrap().id(), id);
    store.delete_queues().await;
}

#[tokio::test]
async fn a_waiting_receiver_finds_the_fifo_queue_that_another_process_created() {
    let store = TestStore::new(Emulator::Ministack);
    let (receiver, sender, orders) = (store.connect().await, store.connect().await, queue("orders"));
    receiver.ensure_queue(&orders, soon()).await.unwrap();
    // The receiver caches that there is no FIFO queue.
    assert!(receiver.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap().is_empty());
    let id = sender.send_message(&orders, Message::new("x").ordering_key("k").unwrap(), soon()).await.unwrap();
    assert_eq!(take(&receiver, &orders).await.id(), id);
    store.delete_queues().await;
}

#[tokio::test]
async fn neither_side_of_a_queue_starves_the_other() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders) = (store.connect().await, queue("orders"));
    let plain = (0..20).map(|_| Message::new("plain"));
    let keyed = (0..20).map(|n| Message::new("keyed").ordering_key(format!("{n}")).unwrap());
    for row in provider.send_batch(&orders, plain.chain(keyed).collect(), soon()).await.unwrap() {
        row.unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        let received = provider.receive_messages(&orders, &ReceiveOptions::batch(10), soon()).await.unwrap();
        seen.extend(received.into_iter().map(|message| (message.message.clone(), message.into_receipt())));
    }
    let keyed = seen.iter().filter(|(body, _)| body == "keyed").count();
    assert_eq!((seen.len(), keyed), (20, 10));
    store.delete_queues().await;
}

#[tokio::test]
async fn queues_have_the_longest_retention() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, orders) = (store.connect().await, queue("orders"));
        let client = postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap();
        // Created with SQS's default retention of four days.
        let made = client.create_queue().queue_name(format!("{}orders", store.prefix)).send().await.unwrap();
        provider.ensure_queue(&orders, soon()).await.unwrap();
        provider.send_message(&orders, Message::new("x").ordering_key("k").unwrap(), soon()).await.unwrap();
        let mut urls = vec![made.queue_url.unwrap()];
        for name in ["orders_dlq", "orders.fifo"] {
            let url = client.get_queue_url().queue_name(format!("{}{name}", store.prefix)).send().await.unwrap();
            urls.push(url.queue_url.unwrap());
        }
        for url in urls {
            let name = QueueAttributeName::MessageRetentionPeriod;
            let answer =
                client.get_queue_attributes().queue_url(&url).attribute_names(name.clone()).send().await.unwrap();
            assert_eq!(answer.attributes.unwrap()[&name], "1209600", "{emulator:?}: {url}");
        }
        let error =
            provider.send_message(&orders, Message::new("x").delay(Duration::from_secs(13 * 86400)), soon()).await;
        assert!(matches!(error, Err(MessagingError::InvalidInput { .. })), "{error:?}");
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn names_that_sqs_does_not_allow_are_refused() {
    let store = TestStore::new(Emulator::Ministack);
    let provider = store.connect().await;
    for name in ["a.b".to_owned(), "x".repeat(70)] {
        let name = queue(&name);
        let refused = [
            provider.send_message(&name, Message::new("x"), soon()).await.map(drop),
            provider.receive_messages(&name, &ReceiveOptions::default(), soon()).await.map(drop),
            provider.ensure_queue(&name, soon()).await,
        ];
        for answer in refused {
            assert!(matches!(answer, Err(MessagingError::InvalidInput { .. })), "{answer:?}");
        }
    }
    store.delete_queues().await;
}

#[tokio::test]
async fn the_first_dead_letter_creates_its_queue() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders) = (store.connect().await, queue("orders"));
    let client = postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap();
    client.create_queue().queue_name(format!("{}orders", store.prefix)).send().await.unwrap();
    provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    let message = take(&provider, &orders).await;
    provider.nack_message(&orders, message, Nack::dead_letter("no"), soon()).await.unwrap();
    let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
    assert_eq!(dead.letters.len(), 1);
    store.delete_queues().await;
}
