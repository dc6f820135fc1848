//! A message as a broker keeps it. Each step of its lifecycle returns the message to be stored next.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    ContentType, DeadLetter, DeadLetterEdit, DeadLetterReason, Envelope, Headers, Key, Limits, LiveState, Message,
    MessageId, MessagingError, PeekedMessage, Priority, QueueName, Timestamp,
};

use crate::note::{DeathNote, Note, VERSION, key, micros, time};

/// A message with its whole record.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The message's id.
    pub id: MessageId,
    /// The body.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// The headers.
    pub headers: Headers,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// The dedup key.
    pub dedup_key: Option<Key>,
    /// When the message expires.
    pub expires_at: Option<Timestamp>,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// Number of deliveries so far.
    pub deliveries: u32,
    /// Number of failed attempts.
    pub attempts: u32,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// The last known error text.
    pub error: Option<String>,
    /// The remaining delay, counted from the arrival in the queue. A duration and not a time, so that no clocks are
    /// compared.
    pub wait: Duration,
    /// How it was dead-lettered, if it was.
    pub death: Option<Death>,
}

/// The record of a dead letter.
#[derive(Debug, Clone, PartialEq)]
pub struct Death {
    /// Why.
    pub reason: DeadLetterReason,
    /// When.
    pub dead_at: Timestamp,
    /// Number of edits since.
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

    /// The note to be stored beside body, headers and content type.
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

    /// Reads a message. Without a note it is a foreign message, with `foreign_id` for its id and `arrived` for the time
    /// of its send.
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

    /// Whether the message has expired. A dead letter does not expire.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.death.is_none() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// Counts one more delivery.
    pub fn delivered(&mut self, now: Timestamp) {
        self.deliveries = self.deliveries.saturating_add(1);
        self.first_attempt_at.get_or_insert(now);
        self.last_attempt_at = Some(now);
    }

    /// The message after a failed attempt; it is due again after `after`.
    #[must_use]
    pub fn retried(mut self, after: Duration, error: Option<&str>) -> Self {
        self.attempts = self.attempts.saturating_add(1);
        if let Some(error) = error {
            self.error = Some(error.to_owned());
        }
        self.wait = after;
        self
    }

    /// The message as a dead letter. A dead letter that is dead-lettered again keeps its first record.
    #[must_use]
    pub fn buried(mut self, reason: &DeadLetterReason, error: Option<&str>, now: Timestamp) -> Self {
        if let Some(error) = error {
            self.error = Some(error.to_owned());
        }
        self.wait = Duration::ZERO;
        self.death.get_or_insert_with(|| Death { reason: reason.clone(), dead_at: now, revision: 0 });
        self
    }

    /// The message after a redrive, as if it had just been sent.
    #[must_use]
    pub fn revived(self, now: Timestamp) -> Self {
        Self {
            // A message whose expiry has passed would be dead-lettered again at once.
            expires_at: self.expires_at.filter(|expires_at| *expires_at > now),
            // Later than the previous send, whatever the clocks say: this tells the two apart.
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

    /// The dead letter after an edit, if it fits the limits.
    pub fn edited(mut self, edit: &DeadLetterEdit, limits: &Limits) -> Result<Self, MessagingError> {
        let message = Message::new(self.body).id(self.id).content_type(self.content_type);
        let message = edit.apply_to(Message { headers: self.headers, ..message }, limits)?;
        (self.body, self.content_type, self.headers) = (message.body, message.content_type, message.headers);
        if let Some(death) = &mut self.death {
            death.revision = death.revision.saturating_add(1);
        }
        Ok(self)
    }

    /// The envelope for the receiver. The message was [`delivered`](Self::delivered) before.
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

    /// The message as a peek shows it.
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

    /// Why it died. A dead letter without a note was put there by another client.
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

    /// The dead letter as the contract shows it.
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

    fn round_trip(stored: &Stored) -> Stored {
        let foreign = || panic!("the message has a note");
        let (headers, note) = (stored.headers.clone(), stored.note());
        let content_type = stored.content_type.clone();
        Stored::read(stored.body.clone(), content_type, headers, Some(&note), foreign, Timestamp::MAX)
    }

    #[test]
    fn a_message_round_trips_through_its_note_at_every_step() {
        let now = Timestamp::from_micros(5_000_000);
        let message = Message::new("x")
            .header("tenant", "acme")
            .unwrap()
            .ordering_key("k")
            .unwrap()
            .expires_in(Duration::from_secs(9))
            .delay(Duration::from_nanos(1_500));
        let sent = Stored::new(&message, now);
        let read = round_trip(&sent);
        // Rounded up: never early.
        assert_eq!(read, Stored { wait: Duration::from_micros(2), ..sent });
        let mut leased = read;
        leased.delivered(now);
        let retried = leased.clone().retried(Duration::from_secs(1), Some("no"));
        assert_eq!((retried.deliveries, retried.attempts, retried.error.as_deref()), (1, 1, Some("no")));
        assert_eq!(round_trip(&retried), retried);
        let dead = retried.buried(&DeadLetterReason::REJECTED, Some("never"), now);
        assert_eq!(round_trip(&dead), dead);
        assert!(!dead.is_expired(Timestamp::MAX));
        let edit = DeadLetterEdit { body: Some("y".into()), ..DeadLetterEdit::default() };
        let edited = dead.edited(&edit, &Limits::default()).unwrap();
        assert_eq!(round_trip(&edited).into_dead_letter(&QueueName::new("q").unwrap()).revision, 1);
        let redriven = edited.revived(Timestamp::from_micros(14_000_000));
        assert_eq!((redriven.deliveries, redriven.attempts, redriven.expires_at), (0, 0, None));
        assert_eq!((redriven.id, redriven.ordering_key.is_some(), redriven.death.is_none()), (message.id, true, true));
    }

    #[test]
    fn a_foreign_message_has_the_given_id() {
        for note in [None, Some("no JSON"), Some("[1]"), Some("{}")] {
            let id = MessageId::generate();
            let content_type = ContentType::OCTET_STREAM;
            let stored =
                Stored::read(Bytes::from("x"), content_type, Headers::new(), note, || id, Timestamp::from_micros(7));
            assert_eq!((stored.id, stored.deliveries, stored.enqueued_at), (id, 0, Timestamp::from_micros(7)));
        }
    }
}
