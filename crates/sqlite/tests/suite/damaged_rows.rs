//! Rows that another program has damaged: each is dead-lettered alone, and can be addressed.

use postrider_core::{
    DeadLetterQuery, DeadLetterReason, DeadLetters, Message, MessagingService, QueueAdmin, QueuedMessage,
    ReceiveOptions, Redrive,
};
use postrider_sqlite::rusqlite::Connection;

use crate::{TestStore, queue, soon};

#[tokio::test]
async fn an_unreadable_row_dies_alone_and_can_be_addressed() {
    let changes = [
        "message_id = 'no id'",
        "dedup_key = x'00ff'",
        "expires_at = 'soon'",
        "deliveries_count = 'many'",
        "attempts_count = 1.5",
        "created_at = x'00'",
        "first_attempt_at = 'once'",
        "headers = '['",
    ];
    for change in changes {
        let test_store = TestStore::new();
        let provider = test_store.connect().await;
        let orders = queue("orders");
        let messages = ["a", "bad", "b"].map(Message::new).to_vec();
        let ids = provider.send_batch(&orders, messages, soon()).await.unwrap();
        let file = Connection::open(test_store.file()).unwrap();
        let sql = format!("update message set {change} where cast(payload as text) = 'bad'");
        assert_eq!(file.execute(&sql, []).unwrap(), 1);
        assert_eq!(provider.peek(&orders, 9, soon()).await.unwrap().len(), 3, "{change}");
        let received = provider.receive_messages(&orders, &ReceiveOptions::batch(9), soon()).await.unwrap();
        let received: Vec<_> = received.iter().map(QueuedMessage::id).collect();
        assert_eq!(received, [*ids[0].as_ref().unwrap(), *ids[2].as_ref().unwrap()], "{change}");

        let page = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
        let [letter] = &page.letters[..] else { panic!("{change}: {page:?}") };
        assert_eq!(letter.reason, DeadLetterReason::UNDECODABLE, "{change}");
        assert_eq!(&letter.body[..], b"bad");
        assert!(letter.error.as_ref().is_some_and(|error| error.contains("unreadable")), "{change}: {letter:?}");
        let read = provider.get_dead_letter(&orders, letter.id, soon()).await.unwrap();
        assert_eq!(read.body, letter.body, "{change}");
        let dry_run = Redrive { dry_run: true, ..Redrive::default() };
        let report = provider.redrive_dead_letters(&orders, &dry_run, soon()).await.unwrap();
        assert_eq!(report.redriven, [letter.id], "{change}: list and redrive must give it the same id");
        assert_eq!(provider.purge(&orders.dead_letters(), soon()).await.unwrap(), 1, "{change}");
    }
}

#[tokio::test]
async fn an_unreadable_key_does_not_block_its_other_messages() {
    for change in ["ordering_key = x'00ff'", "ordering_key = ''"] {
        let test_store = TestStore::new();
        let provider = test_store.connect().await;
        let orders = queue("orders");
        for body in ["head", "next"] {
            let message = Message::new(body).ordering_key("k").unwrap();
            provider.send_message(&orders, message, soon()).await.unwrap();
        }
        let file = Connection::open(test_store.file()).unwrap();
        file.execute(&format!("update message set {change} where blocked = 0"), []).unwrap();
        let received = provider.receive_messages(&orders, &ReceiveOptions::batch(9), soon()).await.unwrap();
        let bodies: Vec<_> = received.iter().map(|message| &message.message[..]).collect();
        assert_eq!(bodies, [b"next"], "{change}");
    }
}
