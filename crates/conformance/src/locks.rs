//! Tests that no call waits for another client's open transaction on leased messages.
//!
//! A provider's test sets up a [`Scene`], ends the messages that it names in its own transaction, and lets the scene
//! test the provider while the transaction is open and after its commit. The error is a breach.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{
    Disposition, Message, MessagingError, Nack, Provider, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions,
    Settlement,
};

use crate::probe::{LONG, soon};

/// Time limit of a step: shorter than the default lock wait of a statement, longer than a busy machine takes.
pub const AT_ONCE: Duration = Duration::from_secs(4);

/// The number of leased messages that the transaction ends.
const TAKEN: usize = 3;

/// The number of further leased messages: those that [`Scene::judge`] ends.
const FREE: usize = 5;

/// Leased messages, some of which another client's transaction is about to end.
#[derive(Debug)]
pub struct Scene<'p, P> {
    provider: &'p P,
    queue: QueueName,
    taken: Vec<ReceiptHandle>,
    /// One of the taken messages, to be dropped.
    dropped: QueuedMessage,
    free: Vec<QueuedMessage>,
}

fn failed(error: MessagingError) -> String {
    error.to_string()
}

async fn at_once<T>(what: &str, work: impl Future<Output = Result<T, MessagingError>>) -> Result<T, String> {
    let Ok(done) = tokio::time::timeout(AT_ONCE, work).await else {
        return Err(format!("{what} waits for the open transaction"));
    };
    done.map_err(|error| format!("{what}: {error}"))
}

/// The first `taken` answers must be `MessageLeased`, the others done.
fn ensure_passed_by<T: fmt::Debug>(
    what: &str,
    answers: &[Result<T, MessagingError>],
    taken: usize,
) -> Result<(), String> {
    for (row, answer) in answers.iter().enumerate() {
        match answer {
            Err(MessagingError::MessageLeased { .. }) if row < taken => {}
            Ok(_) if row >= taken => {}
            answer => {
                return Err(format!("{what}: row {row} of which the first {taken} are taken answered {answer:?}"));
            }
        }
    }
    Ok(())
}

impl<'p, P: Provider> Scene<'p, P> {
    /// Leases messages of a queue, with and without keys.
    pub async fn set(provider: &'p P, queue: &QueueName) -> Result<Self, String> {
        let message = |number: usize| match number % 2 {
            0 => Ok(Message::new(number.to_string())),
            _ => Message::new(number.to_string()).ordering_key(number.to_string()),
        };
        let messages: Vec<Message> = (0..TAKEN + FREE).map(message).collect::<Result<_, _>>().map_err(failed)?;
        for sent in provider.send_batch(queue, messages, soon()).await.map_err(failed)? {
            sent.map_err(failed)?;
        }
        let options = ReceiveOptions::batch(TAKEN + FREE).visibility(LONG);
        let mut free = provider.receive_messages(queue, &options, soon()).await.map_err(failed)?;
        if free.len() != TAKEN + FREE {
            return Err(format!("{} of {} messages were received", free.len(), TAKEN + FREE));
        }
        free.sort_by_key(|message| message.message.to_vec());
        let mut taken = free.drain(..TAKEN).collect::<Vec<_>>();
        let dropped = taken.remove(0);
        let mut receipts: Vec<ReceiptHandle> = taken.into_iter().map(QueuedMessage::into_receipt).collect();
        receipts.push(dropped.receipt().clone());
        Ok(Self { provider, queue: queue.clone(), taken: receipts, dropped, free })
    }

    /// The messages that the transaction must end.
    pub fn taken(&self) -> &[ReceiptHandle] {
        &self.taken
    }

    /// Uses every lease in every way, while a transaction that has ended the taken ones is open. Returns the taken ones.
    pub async fn judge(self) -> Result<Vec<ReceiptHandle>, String> {
        let Self { provider, queue, taken, dropped, mut free } = self;
        let both = taken.iter().chain(free.iter().map(QueuedMessage::receipt)).cloned().collect::<Vec<_>>();
        let extend = both.iter().map(|receipt| provider.extend_visibility(&queue, receipt, LONG, soon()));
        let extended = at_once("an extend", async { Ok(join_all(extend).await) }).await?;
        ensure_passed_by("an extend", &extended, TAKEN)?;

        let back = free.remove(0);
        let id = back.id();
        drop((dropped, back));
        let options = ReceiveOptions::batch(1).visibility(LONG).wait(AT_ONCE);
        let back = provider.receive_messages(&queue, &options, soon()).await.map_err(failed)?;
        if back.iter().map(QueuedMessage::id).collect::<Vec<_>>() != [id] {
            return Err("a message dropped beside a taken one did not come back".into());
        }
        free.extend(back);

        let ends = [
            ("an ack", Disposition::Ack),
            ("a retry", Disposition::Nack(Nack::retry_after(LONG))),
            ("a dead letter", Disposition::Nack(Nack::dead_letter("unwanted"))),
            ("a release", Disposition::Nack(Nack::Release)),
        ];
        let with_taken = |last: QueuedMessage| taken.iter().cloned().chain([last.into_receipt()]);
        let mut released = None;
        for (what, disposition) in ends {
            let message = free.remove(0);
            released = Some(message.id());
            let settlements =
                with_taken(message).map(|receipt| Settlement::new(receipt, disposition.clone())).collect();
            let settled = at_once(what, provider.settle(settlements, soon())).await?;
            ensure_passed_by(what, &settled, TAKEN)?;
        }

        let acks = with_taken(free.remove(0)).map(Settlement::ack).collect();
        let (queues, options) = ([queue.clone()], ReceiveOptions::batch(9));
        let what = "a settle with a claim";
        let done = at_once(what, provider.settle_and_receive(acks, &queues, &options, soon())).await?;
        ensure_passed_by(what, &done.settled, TAKEN)?;
        let received = done.received.map_err(failed)?;
        if received.iter().map(|message| Some(message.id())).collect::<Vec<_>>() != [released] {
            return Err(format!("{what} did not receive the released message"));
        }
        Ok(taken)
    }
}

/// Checks that the leases are over after the transaction was committed.
pub async fn ensure_over<P: Provider>(provider: &P, taken: Vec<ReceiptHandle>) -> Result<(), String> {
    for answer in provider.settle(taken.into_iter().map(Settlement::ack).collect(), soon()).await.map_err(failed)? {
        if !matches!(answer, Err(MessagingError::VisibilityExpired { .. })) {
            return Err(format!("an ack after the end of the message answered {answer:?}"));
        }
    }
    Ok(())
}
