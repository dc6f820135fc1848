//! What is known about a message and fits no name: files of JSON beside it, for people to read.
//!
//! A note (`records/`) has the last error of a message that lives, and the name that its file came with when that was too
//! long to go along. A death record (`failed/*.record.json`) says how a message died. Each is written before the rename
//! that makes it true, and both are on the disk before anybody is answered. A record without a message means nothing, and
//! is removed when the folder is next read.

use postrider_core::{DeadLetterReason, Timestamp};
use serde::{Deserialize, Serialize};

use crate::disk::{Folder, Name};
use crate::error::DiskError;
use crate::time_text;

/// What the name of every record ends with.
pub(crate) const NOTE: &str = ".note.json";
/// What the name of every death record ends with.
pub(crate) const DEATH: &str = ".record.json";

/// About a message that lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// What the last failing handler said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The name that the file came with, when it is too long for the names of its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_name: Option<FileNameText>,
}

/// How a message died.
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

/// A file's name as JSON can hold it: as text, or, when it is none, as its bytes.
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

/// When a record must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDisk {
    /// Before it takes the place of an earlier one.
    Before,
    /// When somebody has waited for that, and before anybody is answered.
    Later,
}

/// Writes a record, in place of an earlier one.
pub(crate) fn write(
    tmp: &Folder,
    folder: &Folder,
    name: &str,
    record: &impl Serialize,
    on_disk: OnDisk,
) -> Result<(), DiskError> {
    // Texts, numbers and times can always be written as JSON.
    let mut bytes = serde_json::to_vec_pretty(record).unwrap_or_default();
    bytes.push(b'\n');
    let made = temporary();
    let written = match on_disk {
        OnDisk::Before => tmp.create(made.as_bytes(), &[&bytes]),
        OnDisk::Later => tmp.create_unsynced(made.as_bytes(), &[&bytes]).map(drop),
    };
    if let Err(error) = written.and_then(|()| tmp.rename(made.as_bytes(), folder, name.as_bytes())) {
        // Best effort: what is left behind is swept later.
        let _ = tmp.unlink(made.as_bytes());
        return Err(error);
    }
    Ok(())
}

/// Reads a record. `None` when it is not there or is no record: then less is known, and nothing else is wrong.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(folder: &Folder, name: &str) -> Option<T> {
    use std::io::Read;
    let file = folder.open_file(name.as_bytes()).ok().flatten()?;
    let mut bytes = Vec::new();
    file.take(1024 * 1024).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// A name that no other file has.
pub(crate) fn temporary() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// What a record is about, when a name is that of a record with this ending: nobody's file is taken for one.
pub(crate) fn stem<'n>(name: &'n Name, ending: &str) -> Option<&'n str> {
    let stem = std::str::from_utf8(name).ok()?.strip_suffix(ending)?;
    let (time, id) = stem.split_once('.')?;
    (time_text::read(time).is_some() && uuid::Uuid::try_parse(id).is_ok()).then_some(stem)
}
