//! The dedup keys of this process's sends, for as long as SQS keeps them taken.
//!
//! SQS drops a message whose key is taken, and does not report which message has the key. So this process remembers it: a
//! repeated send returns the first message's id without a call to SQS.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Key, MessageId, MessagingError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::codec::Outgoing;

static SENT: LazyLock<Mutex<Keys>> = LazyLock::new(Mutex::default);

/// Time for which SQS keeps a key taken.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// Additional time for which a key is remembered here. If this process forgot a key before SQS does, it would report a
/// message as sent that SQS drops.
const MARGIN: Duration = Duration::from_secs(2);

/// Maximum size of kept messages, which are those with an unknown outcome.
const MAX_KEPT: usize = 64 * 1024 * 1024;

/// Overhead of a kept message, so that many small ones count too.
const OVERHEAD: usize = 1024;

/// A queue's URL and a key.
type QueueKey = (String, Key);

/// The taken keys.
#[derive(Debug, Default)]
struct Keys {
    all: HashMap<QueueKey, Entry>,
    /// Size of the kept messages.
    kept: usize,
    /// Number of keys at which expired ones are removed next.
    next_cleanup: usize,
}

impl Keys {
    fn set(&mut self, queue_key: QueueKey, entry: Option<Entry>) {
        self.kept += entry.as_ref().map_or(0, Entry::kept);
        let old = match entry {
            Some(entry) => self.all.insert(queue_key, entry),
            None => self.all.remove(&queue_key),
        };
        self.kept -= old.as_ref().map_or(0, Entry::kept);
    }

    fn retain(&mut self, is_kept: impl Fn(&QueueKey, &Entry) -> bool) {
        self.all.retain(|queue_key, entry| is_kept(queue_key, entry));
        self.kept = self.all.values().map(Entry::kept).sum();
    }

    /// Whether no more messages can be kept. First sends in progress are not counted: their callers hold them.
    fn is_full(&mut self, now: Instant) -> bool {
        if self.all.len() >= self.next_cleanup || self.kept >= MAX_KEPT {
            self.retain(|_, entry| match entry {
                Entry::Sending { .. } => true,
                Entry::Sent { until, .. } | Entry::Unknown { until, .. } => *until > now,
            });
            self.next_cleanup = (self.all.len() * 2).max(1024);
        }
        self.kept >= MAX_KEPT
    }
}

#[derive(Debug)]
enum Entry {
    /// Being sent; `done` closes at the end of the send.
    Sending { done: watch::Receiver<()>, kept: usize },
    /// Stored at SQS.
    Sent { first: MessageId, until: Instant },
    /// Outcome unknown.
    Unknown { first: MessageId, until: Instant, message: Arc<Outgoing> },
}

impl Entry {
    /// Size of its kept message.
    fn kept(&self) -> usize {
        match self {
            Self::Sending { kept, .. } => *kept,
            Self::Sent { .. } => 0,
            Self::Unknown { message, .. } => message.bytes + OVERHEAD,
        }
    }
}

/// What a sender with a dedup key must do.
#[derive(Debug)]
pub(crate) enum SendAction {
    /// Nothing: the key belongs to the message with this id.
    Taken(MessageId),
    /// Send the message.
    Send(KeyReservation),
    /// Wait for another send, then try again.
    Wait(watch::Receiver<()>),
    /// Fail: too many messages are kept. In an outage their number would grow without limit.
    Full,
}

/// The error for [`SendAction::Full`].
pub(crate) fn full_error() -> MessagingError {
    MessagingError::busy(format!(
        "{} MiB of messages with dedup keys have an unknown outcome, and no more can be kept; send those again, or this one \
         after five minutes",
        MAX_KEPT / (1024 * 1024)
    ))
}

/// Reservation of a key for one send.
#[derive(Debug)]
pub(crate) struct KeyReservation {
    queue_key: QueueKey,
    /// The id to send with: that of an earlier send with an unknown outcome, if there was one.
    pub(crate) id: MessageId,
    /// The key's entry after the send; `None` frees the key.
    end: Option<Entry>,
    keys: &'static Mutex<Keys>,
    _done: watch::Sender<()>,
}

fn lock(keys: &'static Mutex<Keys>) -> MutexGuard<'static, Keys> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves a key for a send.
pub(crate) fn reserve(url: &str, key: &Key, id: MessageId) -> SendAction {
    reserve_in(&SENT, url, key, id)
}

fn reserve_in(keys: &'static Mutex<Keys>, url: &str, key: &Key, id: MessageId) -> SendAction {
    let queue_key = (url.to_owned(), key.clone());
    let now = Instant::now();
    let mut sent = lock(keys);
    let is_full = sent.is_full(now);
    let (id, end) = match sent.all.get(&queue_key) {
        Some(Entry::Sending { done, .. }) => return SendAction::Wait(done.clone()),
        Some(Entry::Sent { first, until }) if *until > now => return SendAction::Taken(*first),
        Some(Entry::Unknown { first, until, message }) if *until > now => {
            let (first, until, message) = (*first, *until, message.clone());
            (first, Some(Entry::Unknown { first, until, message }))
        }
        _ if is_full => return SendAction::Full,
        _ => (id, None),
    };
    let (done, ended) = watch::channel(());
    let kept = end.as_ref().map_or(0, Entry::kept);
    sent.set(queue_key.clone(), Some(Entry::Sending { done: ended, kept }));
    SendAction::Send(KeyReservation { queue_key, id, end, keys, _done: done })
}

impl KeyReservation {
    /// Returns the message of an earlier send with an unknown outcome, to send instead: whether SQS has it already or stores
    /// it now, it is the message with the key.
    pub(crate) fn earlier(&self) -> Option<Outgoing> {
        match &self.end {
            Some(Entry::Unknown { message, .. }) => Some((**message).clone()),
            _ => None,
        }
    }

    /// Records that SQS stored the message.
    pub(crate) fn done(mut self) {
        self.end = Some(Entry::Sent { first: self.id, until: Instant::now() + WINDOW + MARGIN });
    }

    /// Records that the outcome is unknown, and keeps the message.
    pub(crate) fn unknown(mut self, message: Outgoing) {
        let (until, message) = (Instant::now() + WINDOW + MARGIN, Arc::new(message));
        self.end = Some(Entry::Unknown { first: self.id, until, message });
    }
}

impl Drop for KeyReservation {
    fn drop(&mut self) {
        lock(self.keys).set(self.queue_key.clone(), self.end.take());
    }
}

/// Frees the keys of a deleted queue.
pub(crate) fn queue_deleted(url: &str) {
    lock(&SENT).retain(|(queue_key, _), entry| queue_key != url || matches!(entry, Entry::Sending { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(action: SendAction) -> KeyReservation {
        match action {
            SendAction::Send(sending) => sending,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_taken_for_as_long_as_sqs_keeps_it() {
        let (url, key) = (MessageId::generate().to_string(), Key::new("dedup key", "k").unwrap());
        let ids = [MessageId::generate(), MessageId::generate(), MessageId::generate()];
        let first = send(reserve(&url, &key, ids[0]));
        let SendAction::Wait(mut others) = reserve(&url, &key, ids[1]) else { panic!("two may send at once") };
        first.done();
        assert!(others.changed().await.is_err());
        assert!(matches!(reserve(&url, &key, ids[1]), SendAction::Taken(id) if id == ids[0]));
        tokio::time::advance(WINDOW).await;
        assert!(matches!(reserve(&url, &key, ids[1]), SendAction::Taken(_)), "not before SQS");
        tokio::time::advance(MARGIN).await;
        let again = send(reserve(&url, &key, ids[1]));
        assert_eq!(again.id, ids[1]);
        let stored =
            postrider_broker::Stored::new(&postrider_core::Message::new("first"), postrider_core::Timestamp::EPOCH);
        again.unknown(Outgoing::new(&stored, crate::names::Side::Fifo, true).unwrap());
        let repeated = send(reserve(&url, &key, ids[2]));
        assert_eq!(repeated.id, ids[1], "if SQS has the first message, that one has the key");
        assert!(repeated.earlier().is_some(), "and it is sent again");
        drop(repeated);
        let failed = send(reserve(&url, &key, ids[2]));
        assert_eq!(failed.id, ids[1], "a later failure does not free the key of the first");
        failed.done();
        queue_deleted(&url);
        let later = send(reserve(&url, &key, ids[2]));
        assert_eq!(later.id, ids[2]);
        drop(later);
        assert!(matches!(reserve(&url, &key, ids[0]), SendAction::Send(_)), "a send that failed takes no key");
    }

    #[tokio::test(start_paused = true)]
    async fn the_size_of_kept_messages_is_limited() {
        let keys: &'static Mutex<Keys> = Box::leak(Box::default());
        let key = |name: &str| Key::new("dedup key", name).unwrap();
        let reserve = |name: &str| reserve_in(keys, "url", &key(name), MessageId::generate());
        let half = || {
            let stored =
                postrider_broker::Stored::new(&postrider_core::Message::new("x"), postrider_core::Timestamp::EPOCH);
            let mut outgoing = Outgoing::new(&stored, crate::names::Side::Fifo, true).unwrap();
            outgoing.bytes = MAX_KEPT / 2;
            outgoing
        };
        send(reserve("a")).unknown(half());
        send(reserve("b")).unknown(half());
        assert!(matches!(reserve("c"), SendAction::Full));
        let again = send(reserve("a"));
        assert!(matches!(reserve("c"), SendAction::Full), "it is kept while it is sent again");
        again.done();
        send(reserve("c")).unknown(half());
        assert!(matches!(reserve("d"), SendAction::Full), "one answer makes room for one message");
        tokio::time::advance(WINDOW + MARGIN).await;
        send(reserve("d")).done();
        assert_eq!(lock(keys).kept, 0, "keys that SQS has freed are removed here");
    }
}
