//! A test of many dead letters, with a worker that rejects them again. A failure panics.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{
    DeadLetterQuery, DeadLetterSelection, Deadline, Message, MessageId, Nack, Provider, QueueName, ReceiveOptions,
    Redrive, Settlement,
};

use crate::probe::soon;

/// More than twice the messages of one chunk of a redrive or a hold.
const MANY: usize = 1200;

/// A deadline that is long enough for all of them.
fn later() -> Deadline {
    Deadline::after(Duration::from_secs(300))
}

/// Rejects messages until none arrives for a while, and returns how many there were.
pub async fn reject_all<P: Provider>(worker: &P, queue: &QueueName) -> usize {
    let options = ReceiveOptions::batch(100).visibility(Duration::from_secs(300)).wait(Duration::from_secs(3));
    let mut rejected = 0;
    loop {
        let received = worker.receive_messages(queue, &options, soon()).await.expect("a receive");
        if received.is_empty() {
            return rejected;
        }
        let rejections = received.into_iter().map(|message| Settlement::nack(message, Nack::dead_letter("rejected")));
        for row in worker.settle(rejections.collect(), later()).await.expect("an answer") {
            row.expect("a rejection");
            rejected += 1;
        }
    }
}

/// Lists all dead letters, page by page.
async fn list<P: Provider>(provider: &P, queue: &QueueName) -> Vec<MessageId> {
    let (mut all, mut query) = (Vec::new(), DeadLetterQuery { limit: 250, ..DeadLetterQuery::default() });
    loop {
        let page = provider.list_dead_letters(queue, &query, later()).await.expect("a page");
        all.extend(page.letters.iter().map(|letter| letter.id));
        query.after = page.next;
        if query.after.is_none() {
            return all;
        }
    }
}

/// Dead letters that are rejected again during a redrive are all there, once. The queue is left empty.
pub async fn letters_rejected_again_are_all_there_once<P: Provider>(provider: &P, worker: &P, queue: &QueueName) {
    let mut sent = HashSet::new();
    for _ in 0..MANY / 100 {
        let messages = (0..100).map(|n| Message::new(n.to_string())).collect();
        for row in provider.send_batch(queue, messages, later()).await.expect("an answer") {
            sent.insert(row.expect("a send"));
        }
    }
    assert_eq!(reject_all(worker, queue).await, MANY);
    for _ in 0..2 {
        let redrive = Redrive::default();
        let redriving = provider.redrive_dead_letters(queue, &redrive, later());
        let (report, rejected) = tokio::join!(redriving, reject_all(worker, queue));
        assert_eq!(report.expect("a redrive").redriven.iter().copied().collect::<HashSet<_>>(), sent);
        // The worker may have stopped before the redrive ended.
        assert_eq!(rejected + reject_all(worker, queue).await, MANY);
    }
    let (first, second) = (list(provider, queue).await, list(provider, queue).await);
    assert_eq!((first.len(), first.iter().copied().collect::<HashSet<_>>()), (MANY, sent));
    assert_eq!(first, second);
    let purged = provider.purge_dead_letters(queue, &DeadLetterSelection::All, later()).await.expect("a purge");
    assert_eq!(purged, MANY as u64);
}
