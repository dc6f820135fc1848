//! A dead letter with its full record.

use std::fmt;

use postrider::{DeadLetter, DeadLetterReason, Headers, MessageId, QueueName, Timestamp};
use serde::Serialize;

use crate::text::{self, Body, one_line};

/// One line of `--json` of `show` and `edit`.
#[derive(Serialize)]
pub(super) struct Record<'a> {
    id: MessageId,
    queue: &'a QueueName,
    reason: &'a str,
    error: Option<&'a str>,
    receive_count: u32,
    attempts_count: u32,
    enqueued_at: Timestamp,
    first_attempt_at: Option<Timestamp>,
    last_attempt_at: Option<Timestamp>,
    dead_at: Timestamp,
    expires_at: Option<Timestamp>,
    #[serde(flatten)]
    body: Body<'a>,
    content_type: &'a str,
    headers: &'a Headers,
    ordering_key: Option<&'a str>,
    dedup_key: Option<&'a str>,
    priority: u8,
    revision: u32,
}

impl<'a> Record<'a> {
    pub(super) fn of(letter: &'a DeadLetter) -> Self {
        Self {
            id: letter.id,
            queue: &letter.origin,
            reason: letter.reason.as_str(),
            error: letter.error.as_deref(),
            receive_count: letter.deliveries_count,
            attempts_count: letter.attempts_count,
            enqueued_at: letter.enqueued_at,
            first_attempt_at: letter.first_attempt_at,
            last_attempt_at: letter.last_attempt_at,
            dead_at: letter.dead_at,
            expires_at: letter.expires_at,
            body: Body::of(&letter.body),
            content_type: letter.content_type.as_str(),
            headers: &letter.headers,
            ordering_key: letter.ordering_key.as_ref().map(|key| key.as_str()),
            dedup_key: letter.dedup_key.as_ref().map(|key| key.as_str()),
            priority: letter.priority.get(),
            revision: letter.revision,
        }
    }
}

/// Number of failed attempts. `attempts_count` has those that were retried, but not the last one, if it ended in the
/// dead letter.
fn failed_attempts(letter: &DeadLetter) -> u32 {
    let without_handler =
        [DeadLetterReason::MAX_RECEIVE_COUNT, DeadLetterReason::EXPIRED, DeadLetterReason::UNDECODABLE];
    let was_handled = letter.deliveries_count > letter.attempts_count;
    let died_in_handler = was_handled && !without_handler.contains(&letter.reason);
    letter.attempts_count.saturating_add(died_in_handler.into())
}

/// The record as text: one line per field, then headers and body.
pub(super) struct RecordText<'a>(pub(super) &'a DeadLetter);

impl fmt::Display for RecordText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = self.0;
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let text = |text: Option<&str>| text.map(str::to_owned);
        let fields = [
            ("id", Some(letter.id.to_string())),
            ("queue", Some(letter.origin.to_string())),
            ("reason", text(Some(letter.reason.as_str()))),
            ("error", text(letter.error.as_deref())),
            ("deliveries", Some(letter.deliveries_count.to_string())),
            ("failed attempts", Some(failed_attempts(letter).to_string())),
            ("enqueued", time(Some(letter.enqueued_at))),
            ("first attempt", time(letter.first_attempt_at)),
            ("last attempt", time(letter.last_attempt_at)),
            ("dead since", time(Some(letter.dead_at))),
            ("expires", time(letter.expires_at)),
            ("ordering key", text(letter.ordering_key.as_ref().map(|key| key.as_str()))),
            ("dedup key", text(letter.dedup_key.as_ref().map(|key| key.as_str()))),
            ("priority", Some(letter.priority.get().to_string())),
            ("content type", text(Some(letter.content_type.as_str()))),
            ("edited", (letter.revision > 0).then(|| text::counted(letter.revision.into(), "time", "times"))),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                f.write_str(&text::field(name, &value))?;
            }
        }
        for (name, value) in letter.headers.iter() {
            writeln!(f, "{:<16} {name}={}", "header", one_line(value))?;
        }
        write!(f, "\n{}", text::body(&letter.body))
    }
}
