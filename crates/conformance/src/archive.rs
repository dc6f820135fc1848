//! Tests of what an archive of a database keeps by its policy. A failure panics.

use std::time::Duration;

use postrider_core::{ArchivePolicy, DeadLetterSelection, Message, Nack, Provider, QueueName, ReceiveOptions};

use crate::probe::{TIME_LIMIT, soon};

/// The states, bodies and errors of archived messages in the order of their sends, and the number of failed attempts that
/// are kept.
pub type Archived = (Vec<(String, String, Option<String>)>, i64);

/// Retries and acks one message of the queue `orders`; dead-letters and purges another.
pub async fn ack_one_and_purge_one<P: Provider>(provider: &P) {
    let queue = QueueName::new("orders").expect("a queue's name");
    let take = async || {
        let options = ReceiveOptions::default().wait(TIME_LIMIT / 2);
        provider.receive_messages(&queue, &options, soon()).await.expect("a receive").remove(0)
    };
    provider.send_message(&queue, Message::new("done"), soon()).await.expect("a send");
    let retry = Nack::retry_after(Duration::ZERO).with_error("not yet");
    provider.nack_message(&queue, take().await, retry, soon()).await.expect("a retry");
    provider.ack_message(&queue, take().await, soon()).await.expect("an ack");
    provider.send_message(&queue, Message::new("dead"), soon()).await.expect("a send");
    let dead = Nack::dead_letter("rejected").with_error("never");
    provider.nack_message(&queue, take().await, dead, soon()).await.expect("a dead letter");
    let purged = provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await;
    assert_eq!(purged.expect("a purge"), 1);
}

/// What a policy keeps of [`ack_one_and_purge_one`].
pub fn kept_by(policy: ArchivePolicy) -> Archived {
    let row = |state: &str, body: &str, error: &str| (state.to_owned(), body.to_owned(), Some(error.to_owned()));
    let (done, dead) = (row("COMPLETED", "done", "not yet"), row("FAILED", "dead", "never"));
    match policy {
        ArchivePolicy::All => (vec![done, dead], 2),
        ArchivePolicy::Failed => (vec![dead], 1),
        ArchivePolicy::None => (Vec::new(), 0),
    }
}
