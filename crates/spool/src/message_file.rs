//! The format of a message file: a line of JSON, then the body unchanged.
//!
//! `head -n 1 FILE` shows the metadata, `tail -n +2 FILE` the body. The line has the length of the body, so that a truncated
//! file is detected.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use postrider_core::{ContentType, Headers, Key};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// The metadata before the body, which never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) dedup_key: Option<Key>,
}

#[derive(Serialize, Deserialize)]
struct FirstLine<'a> {
    postrider: u32,
    length: u64,
    #[serde(borrow)]
    content_type: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    ordering_key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    dedup_key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

/// Writes the first line for a body of this length.
pub(crate) fn write_head(head: &Head, length: usize) -> Vec<u8> {
    let text = |key: &'_ Option<Key>| key.as_ref().map(|key| Cow::Owned(key.as_str().to_owned()));
    let line = FirstLine {
        postrider: VERSION,
        length: length as u64,
        content_type: Cow::Borrowed(head.content_type.as_str()),
        ordering_key: text(&head.ordering_key),
        dedup_key: text(&head.dedup_key),
        headers: head.headers.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    // Strings and numbers always serialise.
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Splits a file into metadata and body; the error says why it is invalid.
pub(crate) fn read(file: Vec<u8>) -> Result<(Head, Bytes), (String, Vec<u8>)> {
    match read_head(&file) {
        Ok((head, start)) => Ok((head, Bytes::from(file).slice(start..))),
        Err(why) => Err((why, file)),
    }
}

fn read_head(file: &[u8]) -> Result<(Head, usize), String> {
    let Some(end) = file.iter().position(|byte| *byte == b'\n') else {
        return Err("its first line is not complete".into());
    };
    let line: FirstLine<'_> = serde_json::from_slice(&file[..end])
        .map_err(|error| format!("its first line is not the metadata of a message: {error}"))?;
    if line.postrider != VERSION {
        return Err(format!("it has version {}, and this program reads version {VERSION}", line.postrider));
    }
    let (start, length) = (end + 1, (file.len() - end - 1) as u64);
    if length != line.length {
        return Err(format!("its body has {length} bytes, and its first line says {}", line.length));
    }
    let key = |what, key: Option<Cow<'_, str>>| key.map(|key| Key::new(what, &key)).transpose();
    let whole = || {
        let mut headers = Headers::new();
        for (name, value) in &line.headers {
            headers.insert(name.as_ref(), value.as_ref())?;
        }
        Ok(Head {
            content_type: ContentType::parse(&line.content_type)?,
            headers,
            ordering_key: key("ordering key", line.ordering_key)?,
            dedup_key: key("dedup key", line.dedup_key)?,
        })
    };
    whole().map(|head| (head, start)).map_err(|error: postrider_core::MessagingError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let mut headers = Headers::new();
        headers.insert("tenant", "ac\"me\n\u{1f40e}").unwrap();
        Head {
            content_type: ContentType::JSON,
            headers,
            ordering_key: Some(Key::new("ordering key", "customer 7").unwrap()),
            dedup_key: None,
        }
    }

    #[test]
    fn a_message_file_is_one_line_and_the_body_and_round_trips() {
        let body = b"{\"a\": 1}\nsecond line\n\0\xff".as_slice();
        let mut file = write_head(&head(), body.len());
        assert_eq!(file.iter().filter(|byte| **byte == b'\n').count(), 1);
        file.extend_from_slice(body);
        let (read, bytes) = read(file).unwrap();
        assert_eq!((read, bytes.as_ref()), (head(), body));
    }

    #[test]
    fn truncated_and_other_files_are_refused() {
        let mut file = write_head(&head(), 3);
        file.extend_from_slice(b"abc");
        for end in 0..file.len() {
            assert!(read(file[..end].to_vec()).is_err(), "cut at {end}");
        }
        for other in [&b"{}\nabc"[..], b"null\n", b"\n", b"{\"postrider\":2,\"length\":0,\"content_type\":\"a/b\"}\n"] {
            assert!(read(other.to_vec()).is_err(), "{other:?}");
        }
    }
}
