//! Leases: their longest time, and receipts that are stale for SQS alone.

use std::time::Duration;

use postrider_core::{
    DeadLetterQuery, DeadLetters, Message, MessagingError, MessagingService, Nack, NativeRef, ReceiptHandle,
    ReceiveOptions,
};

use crate::{Emulator, TestStore, queue, soon, take};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns SQS's own receipt, which is the end of Postrider's.
fn native(receipt: &ReceiptHandle) -> String {
    let NativeRef::Handle(bytes) = receipt.native() else { panic!("{receipt:?}") };
    String::from_utf8(bytes[18..].to_vec()).unwrap()
}

/// On ministack only, because moto accepts every receipt that it has ever issued.
#[tokio::test]
async fn a_receipt_that_is_stale_for_sqs_alone_leaves_no_copy_behind() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders) = (store.connect().await, queue("orders"));
    let client = postrider_sqs::client(&store.url(), Duration::from_secs(5)).await.unwrap();
    let id = provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
    let url = client.get_queue_url().queue_name(format!("{}orders", store.prefix)).send().await.unwrap();
    let url = url.queue_url.unwrap();
    for nack in [Nack::dead_letter("too late"), Nack::retry_after(Duration::ZERO)] {
        let options = ReceiveOptions::default().wait(Duration::from_secs(15)).max_receive_count(100);
        let received = provider.receive_messages(&orders, &options, soon()).await.unwrap();
        let receipt = received.into_iter().next().expect("a message").into_receipt();
        assert_eq!(receipt.message_id(), id);
        // Another client releases and receives the message.
        let release = client.change_message_visibility().queue_url(&url).receipt_handle(native(&receipt));
        release.visibility_timeout(0).send().await.unwrap();
        let taken = client.receive_message().queue_url(&url).visibility_timeout(60).send().await.unwrap();
        let taken = taken.messages.unwrap().remove(0).receipt_handle.unwrap();
        let late = provider.nack_message(&orders, receipt, nack, soon()).await;
        assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "{late:?}");
        let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
        assert_eq!(dead.letters, [], "a copy among the dead letters");
        let copies = provider.receive_messages(&orders, &options.wait(Duration::ZERO), soon()).await.unwrap();
        assert!(copies.is_empty(), "a copy in the queue: {copies:?}");
        let release = client.change_message_visibility().queue_url(&url).receipt_handle(taken);
        release.visibility_timeout(0).send().await.unwrap();
    }
    store.delete_queues().await;
}

#[tokio::test]
async fn a_lease_of_more_than_twelve_hours_is_refused_with_the_limit() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, orders) = (store.connect().await, queue("orders"));
        provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        let too_long = ReceiveOptions::default().visibility(HOUR * 12 + Duration::from_secs(1));
        let refused = provider.receive_messages(&orders, &too_long, soon()).await.unwrap_err();
        assert!(matches!(refused, MessagingError::InvalidInput { .. }), "{refused:?}");
        assert!(refused.to_string().contains("43200 s"), "{refused}");
        let message = take(&provider, &orders).await.into_receipt();
        let refused = provider.extend_visibility(&orders, &message, HOUR * 12, soon()).await.unwrap_err();
        assert!(refused.to_string().contains("12 hours from its receive"), "{refused}");
        provider.extend_visibility(&orders, &message, HOUR * 11, soon()).await.unwrap();
        provider.ack_message(&orders, message, soon()).await.unwrap();
        store.delete_queues().await;
    }
}

/// The visibility is renewed before the copy, and SQS hides a message for at most 12 hours from its receive.
#[tokio::test]
async fn a_message_with_the_longest_lease_can_be_retried_and_dead_lettered() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let (provider, orders) = (store.connect().await, queue("orders"));
        let id = provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
        let longest = ReceiveOptions::default().visibility(HOUR * 12).wait(Duration::from_secs(15));
        for nack in [Nack::retry_after(Duration::ZERO), Nack::dead_letter("no")] {
            let received = provider.receive_messages(&orders, &longest, soon()).await.unwrap();
            let message = received.into_iter().next().expect("a message");
            assert_eq!(message.id(), id);
            provider.nack_message(&orders, message, nack, soon()).await.unwrap();
        }
        let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
        assert_eq!(dead.letters.len(), 1);
        store.delete_queues().await;
    }
}
