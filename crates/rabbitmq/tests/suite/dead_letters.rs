//! Many dead letters, with a worker that rejects them again.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::QueueAdmin;
use postrider_core::{
    DeadLetterEdit, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Headers, Limits, Message, MessageId,
    MessagingError, MessagingService, Nack, QueueName, ReceiveOptions, Redrive, Settlement,
};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider};

use crate::{connect_with, options, prefix, soon};

/// More than twice the messages of one chunk of a redrive or a hold.
const MANY: usize = 1200;

/// A deadline that is long enough for all of them.
fn later() -> Deadline {
    Deadline::after(Duration::from_secs(300))
}

/// Rejects messages until none arrives for a while, and returns how many there were.
async fn reject_all(worker: &RabbitmqProvider, queue: &QueueName) -> usize {
    let options = ReceiveOptions::batch(100).visibility(Duration::from_secs(300)).wait(Duration::from_secs(3));
    let mut rejected = 0;
    loop {
        let received = worker.receive_messages(queue, &options, soon()).await.unwrap();
        if received.is_empty() {
            return rejected;
        }
        let rejections = received.into_iter().map(|message| Settlement::nack(message, Nack::dead_letter("rejected")));
        for row in worker.settle(rejections.collect(), later()).await.unwrap() {
            row.unwrap();
            rejected += 1;
        }
    }
}

/// Lists all dead letters, page by page.
async fn list(provider: &RabbitmqProvider, queue: &QueueName) -> Vec<MessageId> {
    let (mut all, mut query) = (Vec::new(), DeadLetterQuery { limit: 250, ..DeadLetterQuery::default() });
    loop {
        let page = provider.list_dead_letters(queue, &query, later()).await.unwrap();
        all.extend(page.letters.iter().map(|letter| letter.id));
        query.after = page.next;
        if query.after.is_none() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_are_rejected_again_during_a_redrive_are_all_there_once() {
    let (provider, worker) = (connect_with(options()).await, connect_with(options()).await);
    let queue = QueueName::new(format!("{}_again", prefix())).unwrap();
    let mut sent = HashSet::new();
    for _ in 0..MANY / 100 {
        let messages = (0..100).map(|n| Message::new(n.to_string())).collect();
        for row in provider.send_batch(&queue, messages, later()).await.unwrap() {
            sent.insert(row.unwrap());
        }
    }
    assert_eq!(reject_all(&worker, &queue).await, MANY);
    for _ in 0..2 {
        let redrive = Redrive::default();
        let redriving = provider.redrive_dead_letters(&queue, &redrive, later());
        let (report, rejected) = tokio::join!(redriving, reject_all(&worker, &queue));
        assert_eq!(report.unwrap().redriven.iter().copied().collect::<HashSet<_>>(), sent);
        // The worker may have stopped before the redrive ended.
        assert_eq!(rejected + reject_all(&worker, &queue).await, MANY);
    }
    let (first, second) = (list(&provider, &queue).await, list(&provider, &queue).await);
    assert_eq!((first.len(), first.iter().copied().collect::<HashSet<_>>()), (MANY, sent));
    assert_eq!(first, second);
    let purged = provider.purge_dead_letters(&queue, &DeadLetterSelection::All, later()).await.unwrap();
    assert_eq!(purged, MANY as u64);
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test]
async fn an_edit_with_headers_too_large_for_a_frame_is_refused_and_keeps_the_connection() {
    let limits = Limits { max_header_bytes: 1 << 20, ..Limits::default() };
    let provider = connect_with(RabbitmqOptions { limits, ..options() }).await;
    let queue = QueueName::new(format!("{}_edit", prefix())).unwrap();
    let id = provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    let held = Message::new("held");
    let other = QueueName::new(format!("{}_held", prefix())).unwrap();
    provider.send_message(&other, held, soon()).await.unwrap();
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    let held = provider.receive_messages(&other, &options, soon()).await.unwrap().remove(0);
    assert_eq!(reject_all(&provider, &queue).await, 1);
    let mut headers = Headers::new();
    for n in 0..1400 {
        headers.insert(format!("h{n}"), "x".repeat(100)).unwrap();
    }
    let edit = DeadLetterEdit { headers: Some(headers), ..DeadLetterEdit::default() };
    let error = provider.edit_dead_letter(&queue, id, edit, soon()).await.unwrap_err();
    assert!(matches!(&error, MessagingError::InvalidInput { .. }) && error.to_string().contains("1400"), "{error:?}");
    // The lease would be lost with its connection.
    provider.ack_message(&other, held, soon()).await.unwrap();
    let letter = provider.get_dead_letter(&queue, id, soon()).await.unwrap();
    assert_eq!((letter.revision, letter.headers.len()), (0, 0));
    for queue in [queue, other] {
        provider.delete_queue(&queue, soon()).await.unwrap();
    }
}
