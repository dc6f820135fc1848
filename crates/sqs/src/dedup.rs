//! Dedup keys that this process has sent with, for as long as SQS keeps them taken.
//!
//! SQS drops a message whose key is taken, and does not say which message has the key. So the one that sent it first
//! remembers: whoever sends with the key again is told the first one's id, and SQS is not asked.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Key, MessageId, MessagingError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::codec::Outgoing;

static SENT: LazyLock<Mutex<Keys>> = LazyLock::new(Mutex::default);

/// How long SQS keeps a key taken.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// So much longer than SQS it is remembered here. The other way round, SQS would drop a message whose sender is told
/// that it was taken.
const MARGIN: Duration = Duration::from_secs(2);

/// So many bytes of messages are kept of which nobody knows whether SQS has them.
const MOST_KEPT: usize = 64 * 1024 * 1024;

/// What a message takes about beside its bytes: many small ones count too.
const BESIDE_ITS_BYTES: usize = 1024;

/// A queue's URL and a key.
type Place = (String, Key);

/// The keys that are not free.
#[derive(Debug, Default)]
struct Keys {
    all: HashMap<Place, Entry>,
    /// The bytes of the messages that are kept.
    kept: usize,
    /// So many keys are looked at for those that are free again before the next look.
    next_look: usize,
}

impl Keys {
    fn set(&mut self, place: Place, entry: Option<Entry>) {
        self.kept += entry.as_ref().map_or(0, Entry::kept);
        let old = match entry {
            Some(entry) => self.all.insert(place, entry),
            None => self.all.remove(&place),
        };
        self.kept -= old.as_ref().map_or(0, Entry::kept);
    }

    fn retain(&mut self, stays: impl Fn(&Place, &Entry) -> bool) {
        self.all.retain(|place, entry| stays(place, entry));
        self.kept = self.all.values().map(Entry::kept).sum();
    }

    /// Whether no more messages can be kept. Those that are being sent are somebody's anyway, and not counted.
    fn is_full(&mut self, now: Instant) -> bool {
        if self.all.len() >= self.next_look || self.kept >= MOST_KEPT {
            self.retain(|_, entry| match entry {
                Entry::Sending { .. } => true,
                Entry::Sent { until, .. } | Entry::Perhaps { until, .. } => *until > now,
            });
            self.next_look = (self.all.len() * 2).max(1024);
        }
        self.kept >= MOST_KEPT
    }
}

#[derive(Debug)]
enum Entry {
    /// It is being sent; those who wait are told by the end of the sender.
    Sending { done: watch::Receiver<()>, kept: usize },
    /// SQS has it.
    Sent { first: MessageId, until: Instant },
    /// Nobody knows whether SQS has it.
    Perhaps { first: MessageId, until: Instant, message: Arc<Outgoing> },
}

impl Entry {
    /// The bytes that are kept for it.
    fn kept(&self) -> usize {
        match self {
            Self::Sending { kept, .. } => *kept,
            Self::Sent { .. } => 0,
            Self::Perhaps { message, .. } => message.bytes + BESIDE_ITS_BYTES,
        }
    }
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
    /// Nothing, because too much is kept already. In an outage there would be no end to it.
    Full,
}

/// What the sender is told then.
pub(crate) fn full() -> MessagingError {
    MessagingError::busy(format!(
        "SQS has not answered for {} MiB of messages with dedup keys, and no more are remembered; send those again, or this \
         one after five minutes",
        MOST_KEPT / (1024 * 1024)
    ))
}

/// The right to send with a key.
#[derive(Debug)]
pub(crate) struct Sending {
    place: Place,
    /// The id to send with. That of an earlier send whose outcome nobody knows, if there was one.
    pub(crate) id: MessageId,
    /// What is known when nothing comes of it.
    end: Option<Entry>,
    keys: &'static Mutex<Keys>,
    _done: watch::Sender<()>,
}

fn lock(keys: &'static Mutex<Keys>) -> MutexGuard<'static, Keys> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for the right to send a message with a key.
pub(crate) fn turn(url: &str, key: &Key, id: MessageId) -> Turn {
    turn_of(&SENT, url, key, id)
}

fn turn_of(keys: &'static Mutex<Keys>, url: &str, key: &Key, id: MessageId) -> Turn {
    let place = (url.to_owned(), key.clone());
    let now = Instant::now();
    let mut sent = lock(keys);
    let is_full = sent.is_full(now);
    let (id, end) = match sent.all.get(&place) {
        Some(Entry::Sending { done, .. }) => return Turn::Wait(done.clone()),
        Some(Entry::Sent { first, until }) if *until > now => return Turn::Taken(*first),
        Some(Entry::Perhaps { first, until, message }) if *until > now => {
            let (first, until, message) = (*first, *until, message.clone());
            (first, Some(Entry::Perhaps { first, until, message }))
        }
        _ if is_full => return Turn::Full,
        _ => (id, None),
    };
    let (done, ended) = watch::channel(());
    let kept = end.as_ref().map_or(0, Entry::kept);
    sent.set(place.clone(), Some(Entry::Sending { done: ended, kept }));
    Turn::Send(Sending { place, id, end, keys, _done: done })
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
        lock(self.keys).set(self.place.clone(), self.end.take());
    }
}

/// A queue that is no more has no keys.
pub(crate) fn queue_gone(url: &str) {
    lock(&SENT).retain(|(place, _), entry| place != url || matches!(entry, Entry::Sending { .. }));
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

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_of_messages_without_an_answer_than_there_is_room_for() {
        let keys: &'static Mutex<Keys> = Box::leak(Box::default());
        let key = |name: &str| Key::new("dedup key", name).unwrap();
        let turn = |name: &str| turn_of(keys, "url", &key(name), MessageId::generate());
        let half = || {
            let stored =
                postrider_broker::Stored::new(&postrider_core::Message::new("x"), postrider_core::Timestamp::EPOCH);
            let mut outgoing = Outgoing::new(&stored, crate::names::Side::Fifo, true).unwrap();
            outgoing.bytes = MOST_KEPT / 2;
            outgoing
        };
        send(turn("a")).unknown(half());
        send(turn("b")).unknown(half());
        assert!(matches!(turn("c"), Turn::Full));
        let again = send(turn("a"));
        assert!(matches!(turn("c"), Turn::Full), "while it is sent again it is still kept");
        again.done();
        send(turn("c")).unknown(half());
        assert!(matches!(turn("d"), Turn::Full), "an answer to one makes room for one");
        tokio::time::advance(WINDOW + MARGIN).await;
        send(turn("d")).done();
        assert_eq!(lock(keys).kept, 0, "what SQS has forgotten is forgotten here");
    }
}
