//! Batches of recurring sizes, sent by prepared statements.

use postrider_core::{
    ContentType, Message, MessagingError, MessagingService, Priority, QueueAdmin, ReceiveOptions, Settlement,
};
use postrider_mysql::MysqlOptions;

use crate::{Fixture, options, queue, soon};

/// More sizes than a connection keeps prepared.
const ROUNDS: usize = 12;

#[tokio::test]
async fn repeated_batches_arrive_unchanged() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let bytes: Vec<u8> = (0..=255).collect();
    let batch = || {
        let plain = Message::new(bytes.clone());
        let marked = Message::new("").content_type(ContentType::JSON).priority(Priority::new(9).unwrap());
        vec![plain, marked.header("size", "'größe'\\ \u{1f4ee} ?").unwrap()]
    };
    for round in 0..ROUNDS {
        let sent = provider.send_batch(&orders, batch(), soon()).await.unwrap();
        let sent: Vec<_> = sent.into_iter().map(Result::unwrap).collect();
        let received = provider.receive_messages(&orders, &ReceiveOptions::batch(9), soon()).await.unwrap();
        let ids: Vec<_> = received.iter().map(|message| message.id()).collect();
        assert_eq!(ids, [sent[1], sent[0]], "round {round}");
        let (marked, plain) = (&received[0], &received[1]);
        assert_eq!(plain.message.to_vec(), bytes);
        assert!(plain.envelope.headers.is_empty() && plain.envelope.content_type == ContentType::OCTET_STREAM);
        assert!(marked.message.is_empty() && marked.envelope.content_type == ContentType::JSON);
        assert_eq!(marked.envelope.headers.get("size"), Some("'größe'\\ \u{1f4ee} ?"));
        for row in provider.settle(received.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
    }
}

#[tokio::test]
async fn a_deleted_queue_is_listed_by_the_next_batch() {
    let fixture = Fixture::new();
    let (provider, other, orders) = (fixture.connect().await, fixture.connect().await, queue("orders"));
    for round in 0..ROUNDS {
        for row in provider.send_batch(&orders, vec![Message::new("1"), Message::new("2")], soon()).await.unwrap() {
            row.unwrap();
        }
        let listed = other.list_queues(soon()).await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&orders), "round {round}");
        other.purge(&orders, soon()).await.unwrap();
        other.delete_queue(&orders, soon()).await.unwrap();
        assert!(other.list_queues(soon()).await.unwrap().is_empty());
    }
    let strict = fixture.connect_with(MysqlOptions { create_queues: false, ..options() }).await;
    for _ in 0..ROUNDS {
        let sent = strict.send_batch(&orders, vec![Message::new("1"), Message::new("2")], soon()).await.unwrap();
        assert!(sent.iter().all(|row| matches!(row, Err(MessagingError::QueueNotFound { .. }))), "{sent:?}");
    }
    strict.ensure_queue(&orders, soon()).await.unwrap();
    for row in strict.send_batch(&orders, vec![Message::new("1"), Message::new("2")], soon()).await.unwrap() {
        row.unwrap();
    }
}
