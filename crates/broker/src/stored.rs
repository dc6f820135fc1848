//! A message as a broker keeps it, and what becomes of it: each step makes the message that is stored next.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    ContentType, DeadLetter, DeadLetterEdit, DeadLetterReason, Envelope, Headers, Key, Limits, LiveState, Message,
    MessageId, MessagingError, PeekedMessage, Priority, QueueName, Timestamp,
};

use crate::note::{DeathNote, Note, VERSION, key, micros, time};

/// A message with everything that is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its identity.
    pub id: MessageId,
    /// Its bytes.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Text beside the body.
    pub headers: Headers,
    /// The key that it is ordered by.
    pub ordering_key: Option<Key>,
    /// The key that keeps it single.
    pub dedup_key: Option<Key>,
    /// When it is too late to handle it.
    pub expires_at: Option<Timestamp>,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// How often it was delivered, up to now.
    pub deliveries: u32,
    /// How often a handler failed on it.
    pub attempts: u32,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// The last error text that is known.
    pub error: Option<String>,
    /// What it still has to wait once it has arrived where it lies. Counted from there and not to a point in time, so
    /// that nobody's clock matters.
    pub wait: Duration,
    /// How it died, if it is dead.
    pub death: Option<Death>,
}

/// How a message died.
#[derive(Debug, Clone, PartialEq)]
pub struct Death {
    /// Why, in a word.
    pub reason: DeadLetterReason,
    /// When.
    pub dead_at: Timestamp,
    /// How often it has been edited since.
    pub revision: u32,
}

impl Stored {
    /// A message that is sent now.
    pub fn new(message: &Message, now: Timestamp) -> Self {
        Self {
            id: message.id,
            body: message.body.clone(),
            content_type: message.content_type.clone(),
            headers: message.headers.clone(),
            ordering_key: message.ordering_key.clone(),
            dedup_key: message.dedup_key.clone(),
            expires_at: message.expires.map(|expiry| expiry.resolve(now)),
            enqueued_at: now,
            deliveries: 0,
            attempts: 0,
            first_attempt_at: None,
            last_attempt_at: None,
            error: None,
            wait: message.delay,
            death: None,
        }
    }

    /// What must be written beside its body, headers and content type.
    pub fn note(&self) -> String {
        let note = Note {
            version: VERSION,
            id: Some(self.id),
            ordering_key: self.ordering_key.as_ref().map(ToString::to_string),
            dedup_key: self.dedup_key.as_ref().map(ToString::to_string),
            enqueued_at: Some(self.enqueued_at.as_micros()),
            expires_at: micros(self.expires_at),
            deliveries: self.deliveries,
            attempts: self.attempts,
            first_attempt_at: micros(self.first_attempt_at),
            last_attempt_at: micros(self.last_attempt_at),
            error: self.error.clone(),
            wait: u64::try_from(self.wait.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX),
            dead: self.death.as_ref().map(|death| DeathNote {
                reason: death.reason.clone(),
                at: death.dead_at.as_micros(),
                revision: death.revision,
            }),
        };
        note.write()
    }

    /// A message as it was read. Without a note it is a foreign one: `foreign_id` is its name then, and `arrived` when
    /// it was accepted.
    pub fn read(
        body: Bytes,
        content_type: ContentType,
        headers: Headers,
        note: Option<&str>,
        foreign_id: impl FnOnce() -> MessageId,
        arrived: Timestamp,
    ) -> Self {
        let note = Note::read(note);
        Self {
            id: note.id.unwrap_or_else(foreign_id),
            body,
            content_type,
            headers,
            ordering_key: key("ordering key", note.ordering_key),
            dedup_key: key("dedup key", note.dedup_key),
            expires_at: time(note.expires_at),
            enqueued_at: time(note.enqueued_at).unwrap_or(arrived),
            deliveries: note.deliveries,
            attempts: note.attempts,
            first_attempt_at: time(note.first_attempt_at),
            last_attempt_at: time(note.last_attempt_at),
            error: note.error,
            wait: Duration::from_micros(note.wait),
            death: note.dead.map(|dead| Death {
                reason: dead.reason,
                dead_at: Timestamp::from_micros(dead.at),
                revision: dead.revision,
            }),
        }
    }

    /// Whether it is too late to handle it. A dead letter has nothing left to be late for.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.death.is_none() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// Handed out once more.
    pub fn delivered(&mut self, now: Timestamp) {
        self.deliveries = self.deliveries.saturating_add(1);
        self.first_attempt_at.get_or_insert(now);
        self.last_attempt_at = Some(now);
    }

    /// A handler failed on it, and it comes back after that long.
    #[must_use]
    pub fn retried(mut self, after: Duration, error: Option<&str>) -> Self {
        self.attempts = self.attempts.saturating_add(1);
        if let Some(error) = error {
            self.error = Some(error.to_owned());
        }
        self.wait = after;
        self
    }

    /// It dies. A dead letter that dies again keeps its first death.
    #[must_use]
    pub fn buried(mut self, reason: &DeadLetterReason, error: Option<&str>, now: Timestamp) -> Self {
        if let Some(error) = error {
            self.error = Some(error.to_owned());
        }
        self.wait = Duration::ZERO;
        self.death.get_or_insert_with(|| Death { reason: reason.clone(), dead_at: now, revision: 0 });
        self
    }

    /// It lives again, as if it had just been sent.
    #[must_use]
    pub fn revived(self, now: Timestamp) -> Self {
        Self {
            // An expiry that has passed would kill it again unread, and nobody redrives for that.
            expires_at: self.expires_at.filter(|expires_at| *expires_at > now),
            // Later than its last life, whatever the clocks say: that tells one from the other.
            enqueued_at: now.max(self.enqueued_at.saturating_add(Duration::from_micros(1))),
            deliveries: 0,
            attempts: 0,
            first_attempt_at: None,
            last_attempt_at: None,
            error: None,
            wait: Duration::ZERO,
            death: None,
            ..self
        }
    }

    /// A dead letter with another body, type or headers, if that fits into the limits.
    pub fn edited(mut self, edit: &DeadLetterEdit, limits: &Limits) -> Result<Self, MessagingError> {
        let message = Message::new(self.body).id(self.id).content_type(self.content_type);
        let message = edit.apply_to(Message { headers: self.headers, ..message }, limits)?;
        (self.body, self.content_type, self.headers) = (message.body, message.content_type, message.headers);
        if let Some(death) = &mut self.death {
            death.revision = death.revision.saturating_add(1);
        }
        Ok(self)
    }

    /// What its receiver is told about it. It was [`delivered`](Self::delivered) before.
    pub fn envelope(&self, queue: &QueueName, lease_expires_at: Timestamp) -> Envelope {
        Envelope {
            id: self.id,
            queue: queue.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            ordering_key: self.ordering_key.clone(),
            dedup_key: self.dedup_key.clone(),
            priority: Priority::default(),
            expires_at: self.expires_at,
            receive_count: self.deliveries,
            attempts_count: self.attempts,
            enqueued_at: self.enqueued_at,
            first_attempt_at: self.first_attempt_at.unwrap_or(self.enqueued_at),
            lease_expires_at,
        }
    }

    /// As it is shown to somebody who only looks.
    pub fn into_peeked(self, now: Timestamp) -> PeekedMessage {
        PeekedMessage {
            id: self.id,
            body: self.body,
            content_type: self.content_type,
            headers: self.headers,
            ordering_key: self.ordering_key,
            priority: Priority::default(),
            state: if self.attempts > 0 { LiveState::Retryable } else { LiveState::Pending },
            deliveries_count: self.deliveries,
            attempts_count: self.attempts,
            enqueued_at: self.enqueued_at,
            next_attempt_at: now.saturating_add(self.wait),
            last_error: self.error,
        }
    }

    /// Why it died. One that came among the dead without a note was put there by somebody else.
    pub fn reason(&self) -> DeadLetterReason {
        self.death.as_ref().map_or(DeadLetterReason::REJECTED, |death| death.reason.clone())
    }

    /// How often it was edited since it died.
    pub(crate) fn revision(&self) -> u32 {
        self.death.as_ref().map_or(0, |death| death.revision)
    }

    /// When it died.
    pub fn dead_at(&self) -> Timestamp {
        self.death.as_ref().map_or(self.enqueued_at, |death| death.dead_at)
    }

    /// As a dead letter of that queue.
    pub fn into_dead_letter(self, queue: &QueueName) -> DeadLetter {
        DeadLetter {
            revision: self.revision(),
            reason: self.reason(),
            dead_at: self.dead_at(),
            id: self.id,
            origin: queue.origin(),
            body: self.body,
            content_type: self.content_type,
            headers: self.headers,
            ordering_key: self.ordering_key,
            dedup_key: self.dedup_key,
            priority: Priority::default(),
            expires_at: self.expires_at,
            error: self.error,
            deliveries_count: self.deliveries,
            attempts_count: self.attempts,
            enqueued_at: self.enqueued_at,
            first_attempt_at: self.first_attempt_at,
            last_attempt_at: self.last_attempt_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(stored: &Stored) -> Stored {
        let foreign = || panic!("it has a note");
        let (headers, note) = (stored.headers.clone(), stored.note());
        let content_type = stored.content_type.clone();
        Stored::read(stored.body.clone(), content_type, headers, Some(&note), foreign, Timestamp::MAX)
    }

    #[test]
    fn a_life_can_be_written_down_at_every_step() {
        let now = Timestamp::from_micros(5_000_000);
        let message = Message::new("x")
            .header("tenant", "acme")
            .unwrap()
            .ordering_key("k")
            .unwrap()
            .expires_in(Duration::from_secs(9))
            .delay(Duration::from_nanos(1_500));
        let sent = Stored::new(&message, now);
        let read = again(&sent);
        // Rounded up: never early.
        assert_eq!(read, Stored { wait: Duration::from_micros(2), ..sent });
        let mut leased = read;
        leased.delivered(now);
        let retried = leased.clone().retried(Duration::from_secs(1), Some("no"));
        assert_eq!((retried.deliveries, retried.attempts, retried.error.as_deref()), (1, 1, Some("no")));
        assert_eq!(again(&retried), retried);
        let dead = retried.buried(&DeadLetterReason::REJECTED, Some("never"), now);
        assert_eq!(again(&dead), dead);
        assert!(!dead.is_expired(Timestamp::MAX));
        let edit = DeadLetterEdit { body: Some("y".into()), ..DeadLetterEdit::default() };
        let edited = dead.edited(&edit, &Limits::default()).unwrap();
        assert_eq!(again(&edited).into_dead_letter(&QueueName::new("q").unwrap()).revision, 1);
        let revived = edited.revived(Timestamp::from_micros(14_000_000));
        assert_eq!((revived.deliveries, revived.attempts, revived.expires_at), (0, 0, None));
        assert_eq!((revived.id, revived.ordering_key.is_some(), revived.death.is_none()), (message.id, true, true));
    }

    #[test]
    fn a_foreign_message_has_an_id_of_its_place() {
        for note in [None, Some("no JSON"), Some("[1]"), Some("{}")] {
            let id = MessageId::generate();
            let content_type = ContentType::OCTET_STREAM;
            let stored =
                Stored::read(Bytes::from("x"), content_type, Headers::new(), note, || id, Timestamp::from_micros(7));
            assert_eq!((stored.id, stored.deliveries, stored.enqueued_at), (id, 0, Timestamp::from_micros(7)));
        }
    }
}
