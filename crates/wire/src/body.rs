//! Bytes in JSON: as text when they are UTF-8, else in base64.
//!
//! The name of the field (`body` or `body_base64`) decides, never the value: a text that happens to be base64 stays a
//! text. A request may also have an object, list, number or boolean in the text field; its bytes are the JSON as written.
//! Answers have text only. Both types hold reference-counted bytes, so a body is copied into the request and out of it,
//! and nowhere between.

use std::fmt;

use bytes::Bytes;
use data_encoding::BASE64;
use postrider_core::MessagingError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::value::RawValue;

/// Bytes that are UTF-8.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    bytes: Bytes,
    is_json: bool,
}

impl Text {
    /// Whether it was written as a JSON value other than a string.
    pub fn is_json(&self) -> bool {
        self.is_json
    }
}

/// Bytes that were, or will be, written in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct Base64(Bytes);

/// The text field if the bytes are UTF-8, else the base64 field.
pub fn split(bytes: Bytes) -> (Option<Text>, Option<Base64>) {
    match std::str::from_utf8(&bytes) {
        Ok(_) => (Some(Text { bytes, is_json: false }), None),
        Err(_) => (None, Some(Base64(bytes))),
    }
}

/// The bytes of whichever field is set; `None` if neither is. `what` names the field in the error.
pub fn join(what: &'static str, text: Option<Text>, base64: Option<Base64>) -> Result<Option<Bytes>, MessagingError> {
    match (text, base64) {
        (Some(_), Some(_)) => {
            Err(MessagingError::invalid(what, format!("both {what} and {what}_base64 are set; send one of them")))
        }
        (Some(Text { bytes, .. }), None) | (None, Some(Base64(bytes))) => Ok(Some(bytes)),
        (None, None) => Ok(None),
    }
}

/// The bytes of whichever field is set; one of them must be.
pub fn required(what: &'static str, text: Option<Text>, base64: Option<Base64>) -> Result<Bytes, MessagingError> {
    join(what, text, base64)?.ok_or_else(|| {
        MessagingError::invalid(
            what,
            format!("it is missing; send {what} with text or JSON, or {what}_base64 with bytes"),
        )
    })
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Checked as UTF-8 before; checking again is cheaper than a second type of shared text.
        serializer.serialize_str(std::str::from_utf8(&self.bytes).map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = <&RawValue>::deserialize(deserializer)?.get();
        if written == "null" {
            return Err(de::Error::invalid_type(de::Unexpected::Unit, &"text or JSON"));
        }
        let is_json = !written.starts_with('"');
        let text =
            if is_json { written.to_owned() } else { serde_json::from_str(written).map_err(de::Error::custom)? };
        Ok(Self { bytes: text.into(), is_json })
    }
}

/// Reads a field that cannot be base64.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let bytes = Vec::from(Text::deserialize(deserializer)?.bytes);
    String::from_utf8(bytes).map_err(de::Error::custom)
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&BASE64.encode_display(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Decoded;

        impl de::Visitor<'_> for Decoded {
            type Value = Base64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("standard base64 with padding")
            }

            // Decoded in place: the text is never copied.
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
                let decoded = BASE64.decode(text.as_bytes());
                decoded
                    .map(|bytes| Base64(bytes.into()))
                    .map_err(|error| E::custom(format_args!("not standard base64 with padding: {error}")))
            }
        }

        deserializer.deserialize_str(Decoded)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, round_trip};

    #[test]
    fn bytes_round_trip_and_text_stays_readable() {
        for bytes in [&b""[..], b"hello", "\u{0}\"\\\u{1F600}".as_bytes(), b"\xff\x00\xfe", b"aGVsbG8="] {
            let bytes = Bytes::copy_from_slice(bytes);
            let (text, base64) = split(bytes.clone());
            assert_eq!(text.is_some(), std::str::from_utf8(&bytes).is_ok());
            assert_eq!(join("body", round_trip(&text), round_trip(&base64)).unwrap(), Some(bytes));
        }
        assert_eq!(serde_json::to_string(&split(Bytes::from_static(b"\xff\x00")).1).unwrap(), r#""/wA=""#);
    }

    #[test]
    fn json_is_kept_as_written() {
        for json in [r#"{"b": 12345678901234567890, "a": [1.0, {}],"a":"\u00e9"}"#, "[ ]", "1e400", "-0", "true"] {
            let text: Text = serde_json::from_str(&format!(" {json} ")).unwrap();
            assert!(text.is_json(), "{json}");
            assert_eq!(required("body", Some(text), None).unwrap(), json);
        }
        let text: Text = serde_json::from_str(r#""{\"a\": \"\ud83d\ude00\"}""#).unwrap();
        assert!(!text.is_json());
        assert_eq!(required("body", Some(text), None).unwrap(), "{\"a\": \"\u{1F600}\"}");
        assert_eq!(serde_json::from_str::<Option<Text>>("null").unwrap(), None);
        assert!(is_refused::<Text>("null"));
        assert!(is_refused::<Text>(r#""\ud83d""#), "half a character");
    }

    #[test]
    fn both_neither_and_bad_base64_are_refused() {
        let text = || split(Bytes::from_static(b"a")).0;
        let base64 = || split(Bytes::from_static(b"\xff")).1;
        assert!(join("body", text(), base64()).is_err());
        assert_eq!(join("body", None, None).unwrap(), None);
        assert!(required("body", None, None).unwrap_err().to_string().contains("body_base64"));
        for bad in ["\"/wA\"", "\"_wA=\"", "\"a b\"", "7"] {
            assert!(is_refused::<Base64>(bad), "{bad}");
        }
    }
}
