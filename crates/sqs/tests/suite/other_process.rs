//! Receipts that are used in another process.

use std::time::Duration;

use postrider_conformance::processes::WorkerProcess;
use postrider_core::{
    DeadLetterQuery, DeadLetters, Message, MessagingError, MessagingService, Nack, ReceiptHandle, ReceiveOptions,
};
use postrider_sqs::{SqsOptions, SqsStore};

use crate::{Emulator, TestStore, queue, soon};

const URL: &str = "POSTRIDER_SQS_ELSEWHERE_URL";
const RECEIPTS: &str = "POSTRIDER_SQS_ELSEWHERE_RECEIPTS";

/// Runs in the other process, with five receipts; does nothing as a test of its own.
#[tokio::test]
async fn settles_with_receipts_of_another_process() {
    let (Ok(url), Ok(receipts)) = (std::env::var(URL), std::env::var(RECEIPTS)) else { return };
    let provider = SqsStore::open(&url, SqsOptions::default()).await.unwrap().connect().unwrap();
    let receipts: Vec<ReceiptHandle> = receipts.split(' ').map(|text| text.parse().unwrap()).collect();
    let orders = queue("orders");
    let [acked, released, extended, retried, buried] = receipts.as_slice() else {
        panic!("{} receipts", receipts.len())
    };
    provider.ack_message(&orders, acked.clone(), soon()).await.unwrap();
    let again = provider.ack_message(&orders, acked.clone(), soon()).await;
    assert!(matches!(again, Err(MessagingError::VisibilityExpired { .. })), "{again:?}");
    provider.nack_message(&orders, released.clone(), Nack::Release, soon()).await.unwrap();
    provider.extend_visibility(&orders, extended, Duration::from_secs(300), soon()).await.unwrap();
    provider.extend_visibility(&orders, extended, Duration::from_secs(300), soon()).await.unwrap();
    provider.nack_message(&orders, retried.clone(), Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    let refused = provider.nack_message(&orders, buried.clone(), Nack::dead_letter("no"), soon()).await.unwrap_err();
    assert!(matches!(refused, MessagingError::NotSupported { .. }), "{refused:?}");
    assert!(refused.to_string().contains("dead-letter it there"), "{refused}");
}

#[tokio::test]
async fn another_process_can_ack_release_extend_and_retry_but_not_dead_letter() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders) = (store.connect().await, queue("orders"));
    let messages = (0..5).map(|n| Message::new(n.to_string())).collect();
    for row in provider.send_batch(&orders, messages, soon()).await.unwrap() {
        row.unwrap();
    }
    let mut receipts = Vec::new();
    while receipts.len() < 5 {
        let options =
            ReceiveOptions::batch(5 - receipts.len()).visibility(Duration::from_secs(60)).wait(Duration::from_secs(5));
        for message in provider.receive_messages(&orders, &options, soon()).await.unwrap() {
            receipts.push(message.into_receipt());
        }
    }
    let text: Vec<_> = receipts.iter().map(ToString::to_string).collect();
    let variables = [(URL, store.url()), (RECEIPTS, text.join(" "))];
    let other = WorkerProcess::start("other_process::settles_with_receipts_of_another_process", &variables).unwrap();
    assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap(), "see its output above");
    let mut back = Vec::new();
    while back.len() < 2 {
        let options = ReceiveOptions::batch(5).visibility(Duration::from_secs(60)).wait(Duration::from_secs(5));
        for message in provider.receive_messages(&orders, &options, soon()).await.unwrap() {
            back.push(message.into_receipt().message_id());
        }
    }
    back.sort_unstable();
    let mut expected = [receipts[1].message_id(), receipts[3].message_id()];
    expected.sort_unstable();
    assert_eq!(back, expected);
    let dead = provider.list_dead_letters(&orders, &DeadLetterQuery::default(), soon()).await.unwrap();
    assert_eq!(dead.letters, []);
    store.delete_queues().await;
}

const EXTENDED: &str = "POSTRIDER_SQS_ELSEWHERE_EXTENDED";

/// Runs in the other processes: one extends leases and sends the new receipts, one acknowledges.
#[tokio::test]
async fn extends_or_ends_a_lease_of_another_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let provider = SqsStore::open(&url, SqsOptions::default()).await.unwrap().connect().unwrap();
    let orders = queue("orders");
    if let Ok(receipt) = std::env::var(EXTENDED) {
        provider.ack_message(&orders, receipt.parse::<ReceiptHandle>().unwrap(), soon()).await.unwrap();
        return;
    }
    let Ok(receipts) = std::env::var(RECEIPTS) else { return };
    for receipt in receipts.split(' ') {
        let receipt = receipt.parse().unwrap();
        let next = provider.extend_visibility(&orders, &receipt, Duration::from_secs(300), soon()).await.unwrap();
        assert_ne!(next, receipt);
        provider.send_message(&queue("receipts"), Message::new(next.to_string()), soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_another_process_extended_is_valid_with_the_new_receipt() {
    const LEASE: Duration = Duration::from_secs(20);
    let store = TestStore::new(Emulator::Ministack);
    let (provider, orders, answers) = (store.connect().await, queue("orders"), queue("receipts"));
    for body in ["ended here", "ended elsewhere"] {
        provider.send_message(&orders, Message::new(body), soon()).await.unwrap();
    }
    let options = ReceiveOptions::default().visibility(LEASE).wait(Duration::from_secs(5));
    let mut receipts = Vec::new();
    while receipts.len() < 2 {
        let received = provider.receive_messages(&orders, &options, soon()).await.unwrap();
        receipts.extend(received.into_iter().map(ReceiptHandle::from));
    }
    let over = tokio::time::Instant::now() + LEASE;
    let goes_on = |variables: Vec<(&'static str, String)>| async move {
        let other =
            WorkerProcess::start("other_process::extends_or_ends_a_lease_of_another_process", &variables).unwrap();
        assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap(), "see its output above");
    };
    let text: Vec<_> = receipts.iter().map(ToString::to_string).collect();
    goes_on(vec![(URL, store.url()), (RECEIPTS, text.join(" "))]).await;
    let mut next: Vec<ReceiptHandle> = Vec::new();
    while next.len() < 2 {
        let options = ReceiveOptions::default().wait(Duration::from_secs(5));
        for message in provider.receive_messages(&answers, &options, soon()).await.unwrap() {
            next.push(std::str::from_utf8(&message.message).unwrap().parse().unwrap());
            provider.ack_message(&answers, message, soon()).await.unwrap();
        }
    }
    next.sort_by_key(|next| next.token() != receipts[0].token());
    let [here, elsewhere] = next.try_into().unwrap();
    // The end of the leases in the first receipts.
    tokio::time::sleep_until(over).await;
    provider.ack_message(&orders, here, soon()).await.unwrap();
    let old = provider.ack_message(&orders, receipts[0].clone(), soon()).await;
    assert!(matches!(old, Err(MessagingError::VisibilityExpired { .. })), "{old:?}");
    goes_on(vec![(URL, store.url()), (EXTENDED, elsewhere.to_string())]).await;
    let left = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    store.delete_queues().await;
}
