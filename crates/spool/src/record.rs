//! Records: readable JSON files with the state of a message that does not fit into its name.
//!
//! A note (`records/`) has the last error of a live message, and the original name of its file when that was too long. A
//! death record (`failed/*.record.json`) has the reason and the counts of a dead letter. Each is written before the rename
//! that it belongs to, and both are durable before the caller is answered. A record without a message is ignored, and
//! removed when the folder is next read.

use postrider_core::{DeadLetterReason, Timestamp};
use serde::{Deserialize, Serialize};

use crate::disk::{Folder, Name};
use crate::error::DiskError;
use crate::time_text;

/// Suffix of the name of every note.
pub(crate) const NOTE: &str = ".note.json";
/// Suffix of the name of every death record.
pub(crate) const DEATH: &str = ".record.json";

/// The note of a live message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The last error of a handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The original name of the file, when it is too long for the new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_name: Option<FileNameText>,
}

/// The record of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Death {
    pub(crate) reason: DeadLetterReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) dead_at: Timestamp,
    pub(crate) enqueued_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_attempt_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_attempt_at: Option<Timestamp>,
    pub(crate) deliveries_count: u32,
    pub(crate) attempts_count: u32,
    #[serde(default)]
    pub(crate) revision: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_name: Option<FileNameText>,
}

/// A file's name in JSON: as text, or as bytes if it is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FileNameText {
    Text(String),
    Bytes(Vec<u8>),
}

impl FileNameText {
    pub(crate) fn new(name: &[u8]) -> Self {
        match std::str::from_utf8(name) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(name.to_vec()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// When a record must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDisk {
    /// Before it replaces an earlier one.
    Before,
    /// With the later sync, before the caller is answered.
    Later,
}

/// Writes a record, and replaces an earlier one.
pub(crate) fn write(
    tmp: &Folder,
    folder: &Folder,
    name: &str,
    record: &impl Serialize,
    on_disk: OnDisk,
) -> Result<(), DiskError> {
    // Strings, numbers and times always serialise.
    let mut bytes = serde_json::to_vec_pretty(record).unwrap_or_default();
    bytes.push(b'\n');
    let made = temporary();
    let written = match on_disk {
        OnDisk::Before => tmp.create(made.as_bytes(), &[&bytes]),
        OnDisk::Later => tmp.create_unsynced(made.as_bytes(), &[&bytes]).map(drop),
    };
    if let Err(error) = written.and_then(|()| tmp.rename(made.as_bytes(), folder, name.as_bytes())) {
        // Best effort: a later sweep removes it.
        let _ = tmp.unlink(made.as_bytes());
        return Err(error);
    }
    Ok(())
}

/// Reads a record. `None` when it does not exist or is invalid, which is harmless.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(folder: &Folder, name: &str) -> Option<T> {
    use std::io::Read;
    let file = folder.open_file(name.as_bytes()).ok().flatten()?;
    let mut bytes = Vec::new();
    file.take(1024 * 1024).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Returns a unique name.
pub(crate) fn temporary() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Returns the stem of a record's name with this suffix; `None` for any other name, so that no foreign file is taken for a
/// record.
pub(crate) fn stem<'n>(name: &'n Name, ending: &str) -> Option<&'n str> {
    let stem = std::str::from_utf8(name).ok()?.strip_suffix(ending)?;
    let (time, id) = stem.split_once('.')?;
    (time_text::read(time).is_some() && uuid::Uuid::try_parse(id).is_ok()).then_some(stem)
}
