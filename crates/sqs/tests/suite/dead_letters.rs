//! Many dead letters, with a worker that rejects them again.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{
    DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Message, MessageId, MessagingService, Nack, QueueName,
    ReceiveOptions, Redrive, Settlement,
};
use postrider_sqs::SqsProvider;

use crate::{Emulator, TestStore, soon};

/// More than the messages of one chunk of a redrive or a hold.
const MANY: usize = 1200;

/// A deadline that is long enough for all of them.
fn later() -> Deadline {
    Deadline::after(Duration::from_secs(300))
}

/// Rejects messages until none arrives for a while, and returns how many there were.
async fn reject_all(worker: &SqsProvider, queue: &QueueName) -> usize {
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
async fn list(provider: &SqsProvider, queue: &QueueName) -> Vec<MessageId> {
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
#[ignore = "a long storm on an emulator: scripts/test --full"]
async fn letters_that_are_rejected_again_during_a_redrive_are_all_there_once() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, worker, queue) = (store.connect().await, store.connect().await, crate::queue("again"));
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
    store.delete_queues().await;
}
