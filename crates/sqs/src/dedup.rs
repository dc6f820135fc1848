//! Dedup keys that this process has sent with, for as long as SQS keeps them taken.
//!
//! SQS drops a message whose key is taken, and does not say which message has the key. So the one that sent it first
//! remembers: whoever sends with the key again is told the first one's id, and SQS is not asked.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Key, MessageId};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::codec::Outgoing;

static SENT: LazyLock<Mutex<HashMap<Place, Entry>>> = LazyLock::new(Mutex::default);

/// How long SQS keeps a key taken.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// So much longer than SQS it is remembered here. The other way round, SQS would drop a message whose sender is told
/// that it was taken.
const MARGIN: Duration = Duration::from_secs(2);

/// A queue's URL and a key.
type Place = (String, Key);

#[derive(Debug)]
enum Entry {
    /// It is being sent; those who wait are told by the end of the sender.
    Sending { done: watch::Receiver<()> },
    /// SQS has it.
    Sent { first: MessageId, until: Instant },
    /// Nobody knows whether SQS has it.
    Perhaps { first: MessageId, until: Instant, message: Arc<Outgoing> },
}

/// What a sender with a dedup key has to do.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Nothing: the message with this id has the key.
    Taken(MessageId),
    /// Send, under this id.
    Send(Sending),
    /// Wait for another sender, then ask again.
    Wait(watch::Receiver<()>),
}

/// The right to send with a key.
#[derive(Debug)]
pub(crate) struct Sending {
    place: Place,
    /// The id to send with. That of an earlier send whose outcome nobody knows, if there was one.
    pub(crate) id: MessageId,
    /// What is known when nothing comes of it.
    end: Option<Entry>,
    _done: watch::Sender<()>,
}

fn lock() -> MutexGuard<'static, HashMap<Place, Entry>> {
    SENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for the right to send a message with a key.
pub(crate) fn turn(url: &str, key: &Key, id: MessageId) -> Turn {
    let place = (url.to_owned(), key.clone());
    let now = Instant::now();
    let mut sent = lock();
    if sent.len() >= 1024 && sent.len().is_power_of_two() {
        sent.retain(|_, entry| match entry {
            Entry::Sending { .. } => true,
            Entry::Sent { until, .. } | Entry::Perhaps { until, .. } => *until > now,
        });
    }
    let (id, end) = match sent.get(&place) {
        Some(Entry::Sending { done }) => return Turn::Wait(done.clone()),
        Some(Entry::Sent { first, until }) if *until > now => return Turn::Taken(*first),
        Some(Entry::Perhaps { first, until, message }) if *until > now => {
            let (first, until, message) = (*first, *until, message.clone());
            (first, Some(Entry::Perhaps { first, until, message }))
        }
        _ => (id, None),
    };
    let (done, ended) = watch::channel(());
    sent.insert(place.clone(), Entry::Sending { done: ended });
    Turn::Send(Sending { place, id, end, _done: done })
}

impl Sending {
    /// The message of an earlier send whose outcome nobody knows, to be sent instead: if SQS has it, it is the message with
    /// the key, and if not, it is now.
    pub(crate) fn earlier(&self) -> Option<Outgoing> {
        match &self.end {
            Some(Entry::Perhaps { message, .. }) => Some((**message).clone()),
            _ => None,
        }
    }

    /// SQS has it.
    pub(crate) fn done(mut self) {
        self.end = Some(Entry::Sent { first: self.id, until: Instant::now() + WINDOW + MARGIN });
    }

    /// Nobody knows whether SQS has it.
    pub(crate) fn unknown(mut self, message: Outgoing) {
        let (until, message) = (Instant::now() + WINDOW + MARGIN, Arc::new(message));
        self.end = Some(Entry::Perhaps { first: self.id, until, message });
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut sent = lock();
        match self.end.take() {
            Some(end) => sent.insert(self.place.clone(), end),
            None => sent.remove(&self.place),
        };
    }
}

/// A queue that is no more has no keys.
pub(crate) fn queue_gone(url: &str) {
    lock().retain(|(place, _), entry| place != url || matches!(entry, Entry::Sending { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(turn: Turn) -> Sending {
        match turn {
            Turn::Send(sending) => sending,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_taken_for_as_long_as_sqs_keeps_it() {
        let (url, key) = (MessageId::generate().to_string(), Key::new("dedup key", "k").unwrap());
        let ids = [MessageId::generate(), MessageId::generate(), MessageId::generate()];
        let first = send(turn(&url, &key, ids[0]));
        let Turn::Wait(mut others) = turn(&url, &key, ids[1]) else { panic!("two may send at once") };
        first.done();
        assert!(others.changed().await.is_err());
        assert!(matches!(turn(&url, &key, ids[1]), Turn::Taken(id) if id == ids[0]));
        tokio::time::advance(WINDOW).await;
        assert!(matches!(turn(&url, &key, ids[1]), Turn::Taken(_)), "not before SQS");
        tokio::time::advance(MARGIN).await;
        let again = send(turn(&url, &key, ids[1]));
        assert_eq!(again.id, ids[1]);
        let stored =
            postrider_broker::Stored::new(&postrider_core::Message::new("first"), postrider_core::Timestamp::EPOCH);
        again.unknown(Outgoing::new(&stored, crate::names::Side::Fifo, true).unwrap());
        let repeated = send(turn(&url, &key, ids[2]));
        assert_eq!(repeated.id, ids[1], "if SQS has the first, that is the message");
        assert!(repeated.earlier().is_some(), "and it is what is sent");
        drop(repeated);
        let failed = send(turn(&url, &key, ids[2]));
        assert_eq!(failed.id, ids[1], "a later failure says nothing of the first");
        failed.done();
        queue_gone(&url);
        let anew = send(turn(&url, &key, ids[2]));
        assert_eq!(anew.id, ids[2]);
        drop(anew);
        assert!(matches!(turn(&url, &key, ids[0]), Turn::Send(_)), "a send that failed takes no key");
    }
}
