//! Reads a message's file: its content, or why it is invalid.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use bytes::Bytes;
use nix::dir::Type;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use postrider_core::{ContentType, DeadLetterReason, Headers, Limits};
use serde_json::Value;

use crate::disk::{Folder, errno_of, file_type};
use crate::error::DiskError;
use crate::message_file::{self, Head};
use crate::name::Kind;
use crate::ordering_field::{self, OrderingField};

/// Header with the original name of a foreign file.
pub(crate) const FILE_NAME: &str = "file-name";

/// Room for the first line beside headers and body. A control character in a header takes six bytes in it.
const ROOM_FOR_HEAD: usize = 64 * 1024;

/// The content of a file.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
}

/// Why a file is not a message.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) reason: DeadLetterReason,
    pub(crate) error: String,
    /// The bytes that could be read.
    pub(crate) bytes: Bytes,
}

impl Unusable {
    fn new(reason: &str, error: impl Into<String>) -> Self {
        Self { reason: reason.into(), error: error.into(), bytes: Bytes::new() }
    }

    /// Returns its bytes as a body, for inspection.
    pub(crate) fn into_content(self) -> Content {
        let content_type = ContentType::OCTET_STREAM;
        let head = Head { content_type, headers: Headers::new(), ordering_key: None, dedup_key: None };
        Content { head, body: self.bytes }
    }
}

/// Settings for reading files.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) limits: Limits,
    pub(crate) ordering_key: Vec<OrderingField>,
}

impl Reading {
    /// Reads a file. `None` when it does not exist; `original` is the original name of a foreign file.
    pub(crate) fn read(
        &self,
        folder: &Folder,
        name: &[u8],
        kind: &Kind,
        original: &[u8],
    ) -> Result<Option<Result<Content, Unusable>>, DiskError> {
        let most = match kind {
            Kind::Message => self.limits.max_body_bytes + 6 * self.limits.max_header_bytes + ROOM_FOR_HEAD,
            Kind::Foreign(_) | Kind::LongNamed => self.limits.max_body_bytes,
        };
        let bytes = match open(folder, name, most)? {
            None => return Ok(None),
            Some(Err(unusable)) => return Ok(Some(Err(unusable))),
            Some(Ok(bytes)) => bytes,
        };
        Ok(Some(match kind {
            Kind::Message => match message_file::read(bytes) {
                Ok((head, body)) => Ok(Content { head, body }),
                Err((error, bytes)) => {
                    Err(Unusable { reason: DeadLetterReason::UNDECODABLE, error, bytes: bytes.into() })
                }
            },
            Kind::Foreign(_) | Kind::LongNamed => self.foreign(bytes, original),
        }))
    }

    fn foreign(&self, bytes: Vec<u8>, original: &[u8]) -> Result<Content, Unusable> {
        let is_json = original.ends_with(b".json");
        let mut ordering_key = None;
        if is_json {
            match self.check_json(&bytes) {
                Ok(key) => ordering_key = key,
                Err(error) => {
                    return Err(Unusable { reason: DeadLetterReason::UNDECODABLE, error, bytes: bytes.into() });
                }
            }
        }
        let content_type = if is_json { ContentType::JSON } else { ContentType::OCTET_STREAM };
        let mut headers = Headers::new();
        // A name that is not a valid header value is left out.
        let _ = headers.insert(FILE_NAME, printable(original));
        Ok(Content { head: Head { content_type, headers, ordering_key, dedup_key: None }, body: bytes.into() })
    }

    /// Checks that a file is JSON, and returns its ordering key.
    fn check_json(&self, bytes: &[u8]) -> Result<Option<postrider_core::Key>, String> {
        let why = |error: serde_json::Error| match bytes.is_empty() {
            true => "the file is empty".to_owned(),
            false => format!("the file is not valid JSON, or is not complete: {error}"),
        };
        if self.ordering_key.is_empty() {
            serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(why)?;
            // The parser does not check skipped strings for UTF-8.
            std::str::from_utf8(bytes).map_err(|error| format!("the file is not UTF-8: {error}"))?;
            return Ok(None);
        }
        let document: Value = serde_json::from_slice(bytes).map_err(why)?;
        Ok(ordering_field::key(&self.ordering_key, &document))
    }
}

/// Reads a regular file that is not too large.
fn open(folder: &Folder, name: &[u8], most: usize) -> Result<Option<Result<Vec<u8>, Unusable>>, DiskError> {
    let unusable = |reason, error: String| Ok(Some(Err(Unusable::new(reason, error))));
    let mut file = match folder.open_file(name) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
        Err(error) => {
            return match error.errno {
                Errno::ELOOP => unusable("not_a_file", "it is a symbolic link, and links are not followed".into()),
                Errno::ENXIO | Errno::ENODEV => unusable("not_a_file", "it is a socket or a device".into()),
                Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => Err(error),
                _ => unusable("unreadable", error.to_string()),
            };
        }
    };
    let found = fstat(file.as_fd()).map_err(|errno| folder.failed("look at", crate::disk::os(name), errno))?;
    match file_type(&found) {
        Type::File => {}
        Type::Directory => return unusable("not_a_file", "it is a folder".into()),
        _ => return unusable("not_a_file", "it is a pipe, a socket or a device".into()),
    }
    let size = usize::try_from(found.st_size).unwrap_or(usize::MAX);
    if size > most {
        let error = format!(
            "it has {size} bytes, and common.messaging.max_message_bytes allows {most}; raise that limit, or send a \
             reference"
        );
        let mut start = Vec::new();
        // The beginning is enough to identify it; the file keeps all bytes.
        let _ = Read::by_ref(&mut file).take(most as u64).read_to_end(&mut start);
        return Ok(Some(Err(Unusable { bytes: start.into(), ..Unusable::new("too_large", error) })));
    }
    read_all(&mut file, size).map_or_else(
        |error| unusable("unreadable", folder.failed("read", crate::disk::os(name), errno_of(&error)).to_string()),
        |bytes| Ok(Some(Ok(bytes))),
    )
}

fn read_all(file: &mut File, size: usize) -> std::io::Result<Vec<u8>> {
    // One byte more, so that the end of the file is detected without growing the buffer.
    let mut bytes = Vec::with_capacity(size + 1);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file's name as text without control characters.
fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
