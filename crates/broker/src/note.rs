//! The record of a message, as text in one header.

use postrider_core::{DeadLetterReason, Key, MessageId, Timestamp};
use serde::{Deserialize, Serialize};

/// The header that holds the note.
pub const NOTE: &str = "postrider-message";

/// The version of the note's format.
pub(crate) const VERSION: u32 = 1;

/// What the law records of a message beside its body. Default values are left out. Times are microseconds since the
/// epoch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Note {
    pub(crate) version: u32,
    pub(crate) id: Option<MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedup_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enqueued_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<i64>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) deliveries: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_attempt_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_attempt_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Microseconds that the message still has to wait, counted from its arrival in the queue.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) wait: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dead: Option<DeathNote>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeathNote {
    pub(crate) reason: DeadLetterReason,
    pub(crate) at: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) revision: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_none(micros: &u64) -> bool {
    *micros == 0
}

impl Note {
    pub(crate) fn write(&self) -> String {
        // A note always has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a note; a missing or foreign one reads as the default.
    pub(crate) fn read(text: Option<&str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

pub(crate) fn micros(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_micros)
}

pub(crate) fn time(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(Timestamp::from_micros)
}

pub(crate) fn key(what: &'static str, key: Option<String>) -> Option<Key> {
    key.and_then(|key| Key::new(what, &key).ok())
}
