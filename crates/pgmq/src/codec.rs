//! Messages as PGMQ stores them: a JSON body, and an object of headers.
//!
//! A JSON body is stored as it is, so that every client of PGMQ reads it. If the server would return other bytes, the
//! original text is stored in the headers too. Every other body is wrapped: `{"text": …}` or `{"base64": …}`. What the
//! law needs is stored in the headers under one name, [`OURS`], with a prefix that senders may not use.

use bytes::Bytes;
use data_encoding::BASE64;
use postrider_core::{ContentType, Expiry, Headers, Key, Message, MessageId, QueueName, Timestamp};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::PROVIDER;
use crate::json::{Fit, judge, without_spaces};

/// The header that holds what the law needs of a message.
pub(crate) const OURS: &str = "postrider-message";

/// The header that PGMQ orders messages by.
pub(crate) const GROUP: &str = "x-pgmq-group";

/// The version of the note under [`OURS`].
const VERSION: u32 = 1;

/// How a body is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// JSON text that the server returns unchanged.
    Same,
    /// The same, without spaces.
    Compact,
    /// JSON whose text is in the headers.
    Raw,
    /// Text wrapped in an object.
    Text,
    /// Bytes wrapped in an object.
    Base64,
}

const FORMS: [(&str, Form); 5] = [
    ("json", Form::Same),
    ("json-compact", Form::Compact),
    ("json-raw", Form::Raw),
    ("text", Form::Text),
    ("base64", Form::Base64),
];

impl Form {
    fn name(self) -> &'static str {
        FORMS.iter().find(|(_, form)| *form == self).map_or("json", |(name, _)| name)
    }

    fn of(message_type: &ContentType, body: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(body) else { return Self::Base64 };
        let is_json = match message_type.as_str() {
            "application/json" => true,
            name if name.ends_with("+json") => true,
            // Without a type a number or a word would be JSON by chance.
            _ if *message_type == ContentType::OCTET_STREAM => matches!(body.first(), Some(b'{' | b'[')),
            _ => false,
        };
        let fit = if is_json { judge(text) } else { Fit::Unfit };
        match fit {
            Fit::Same => Self::Same,
            Fit::Compact => Self::Compact,
            Fit::Changed => Self::Raw,
            // The server's texts hold no NUL.
            Fit::Unfit if text.contains('\0') => Self::Base64,
            Fit::Unfit => Self::Text,
        }
    }

    /// Returns the content type of a body without one.
    fn default_type(self) -> ContentType {
        match self {
            Self::Same | Self::Compact | Self::Raw => ContentType::JSON,
            Self::Text | Self::Base64 => ContentType::OCTET_STREAM,
        }
    }
}

/// A stored body, and what restores its bytes.
#[derive(Debug)]
struct Packed<'b> {
    form: Form,
    /// The JSON text.
    message: String,
    raw: Option<&'b str>,
}

fn pack<'b>(content_type: &ContentType, body: &'b [u8]) -> Packed<'b> {
    let form = Form::of(content_type, body);
    // Every form but `Base64` requires UTF-8.
    let text = std::str::from_utf8(body).unwrap_or_default();
    let message = match form {
        Form::Same | Form::Compact | Form::Raw => text.to_owned(),
        Form::Text => format!("{{\"text\":{}}}", Value::from(text)),
        Form::Base64 => format!("{{\"base64\":\"{}\"}}", BASE64.encode(body)),
    };
    Packed { form, message, raw: (form == Form::Raw).then_some(text) }
}

fn unpack(form: Form, message: &str, raw: Option<&str>) -> Result<Bytes, String> {
    let wrapped = |name: &str| match serde_json::from_str::<Map<String, Value>>(message) {
        Ok(mut object) => match object.remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(format!("the headers say that the body is wrapped as '{name}', but it is not")),
        },
        Err(_) => Err(format!("the headers say that the body is wrapped as '{name}', but it is not an object")),
    };
    match form {
        Form::Same => Ok(Bytes::copy_from_slice(message.as_bytes())),
        Form::Compact => Ok(without_spaces(message).into()),
        Form::Raw => match raw {
            Some(raw) => Ok(Bytes::copy_from_slice(raw.as_bytes())),
            None => Err("the headers say that they hold the text of the body, but they do not".into()),
        },
        Form::Text => wrapped("text").map(Bytes::from),
        Form::Base64 => {
            let text = wrapped("base64")?;
            BASE64.decode(text.as_bytes()).map(Bytes::from).map_err(|error| format!("the body is not base64: {error}"))
        }
    }
}

/// A message as the statements take it.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) message: String,
    pub(crate) headers: String,
}

/// Encodes a message.
pub(crate) fn encode(message: &Message) -> Encoded {
    let packed = pack(&message.content_type, &message.body);
    let headers = Outgoing { message, packed: &packed };
    // A map of strings always serializes.
    let headers = serde_json::to_string(&headers).unwrap_or_else(|_| "{}".to_owned());
    Encoded { message: packed.message, headers }
}

struct Outgoing<'m> {
    message: &'m Message,
    packed: &'m Packed<'m>,
}

impl Serialize for Outgoing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.message.headers.iter().filter(|(name, _)| *name != GROUP) {
            map.serialize_entry(name, value)?;
        }
        if let Some(key) = &self.message.ordering_key {
            map.serialize_entry(GROUP, key.as_str())?;
        }
        map.serialize_entry(OURS, &Note(self))?;
        map.end()
    }
}

struct Note<'m>(&'m Outgoing<'m>);

impl Serialize for Note<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Outgoing { message, packed } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &VERSION)?;
        map.serialize_entry("id", message.id.as_uuid())?;
        map.serialize_entry("body", packed.form.name())?;
        if let Some(raw) = packed.raw {
            map.serialize_entry("raw", raw)?;
        }
        if message.content_type != packed.form.default_type() {
            map.serialize_entry("content_type", message.content_type.as_str())?;
        }
        if let Some(key) = &message.dedup_key {
            map.serialize_entry("dedup_key", key.as_str())?;
        }
        if let Some(Expiry::At(time)) = message.expires {
            map.serialize_entry("expires_at", &time.as_micros().max(0))?;
        }
        // PGMQ's header is the ordering key; a sender's header of that name is stored here.
        if let Some(group) = message.headers.get(GROUP) {
            map.serialize_entry("headers", &Map::from_iter([(GROUP.to_owned(), group.into())]))?;
        }
        map.end()
    }
}

/// The record of a dead letter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Death {
    pub(crate) reason: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) deliveries: u32,
    pub(crate) attempts: u32,
    pub(crate) enqueued_at: Option<Timestamp>,
    pub(crate) first_read_at: Option<Timestamp>,
    pub(crate) last_read_at: Option<Timestamp>,
    pub(crate) dead_at: Option<Timestamp>,
    pub(crate) revision: u32,
}

/// A decoded message.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    pub(crate) id: MessageId,
    pub(crate) body: Bytes,
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) dedup_key: Option<Key>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) attempts: u32,
    pub(crate) released: u32,
    pub(crate) first_read_at: Option<Timestamp>,
    pub(crate) error: Option<String>,
    pub(crate) death: Option<Death>,
    /// Why the body is the stored JSON and not the original bytes.
    pub(crate) problem: Option<String>,
}

/// Returns the id of a foreign message.
pub(crate) fn derived_id(queue: &QueueName, msg_id: i64) -> MessageId {
    MessageId::derived(PROVIDER, queue.as_str(), &msg_id.to_string())
}

/// Returns the id of a message by its headers.
pub(crate) fn id(queue: &QueueName, msg_id: i64, headers: Option<&str>) -> MessageId {
    let headers: Value = headers.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let own = headers.get(OURS).and_then(|ours| ours.get("id")).and_then(Value::as_str);
    own.and_then(|id| id.parse().ok()).unwrap_or_else(|| derived_id(queue, msg_id))
}

/// Decodes a message. A foreign message has an id derived from its number, and its JSON, as the server writes it, as
/// the body.
pub(crate) fn decode(queue: &QueueName, msg_id: i64, message: Option<&str>, headers: Option<&str>) -> Decoded {
    let message = message.unwrap_or("null");
    let mut fields = match headers.map(serde_json::from_str) {
        Some(Ok(Value::Object(fields))) => fields,
        Some(Ok(Value::Null)) | None => Map::new(),
        Some(Ok(other)) => Map::from_iter([("x-pgmq-headers".to_owned(), other)]),
        Some(Err(_)) => Map::new(),
    };
    let ours = match fields.remove(OURS) {
        Some(Value::Object(ours)) => ours,
        _ => Map::new(),
    };
    let text = |name: &str| ours.get(name).and_then(Value::as_str);
    let form = text("body")
        .map_or(Some(Form::Same), |name| FORMS.iter().find(|(known, _)| *known == name).map(|(_, form)| *form));
    let unpacked = match form {
        Some(form) => unpack(form, message, text("raw")),
        None => Err(format!("the headers say that the body is '{}'", text("body").unwrap_or_default().escape_debug())),
    };
    let (body, mut problem) = match unpacked {
        Ok(body) => (body, None),
        Err(problem) => (Bytes::copy_from_slice(message.as_bytes()), Some(problem)),
    };
    let default_type = || form.map_or(ContentType::JSON, Form::default_type);
    let content_type = text("content_type").map(ContentType::parse).transpose().unwrap_or_else(|error| {
        problem.get_or_insert(error.to_string());
        None
    });
    let key = |what, value: Option<&str>| value.and_then(|value| Key::new(what, value).ok());
    let group = fields.remove(GROUP).map(plain);
    let mut headers = Headers::new();
    let kept = ours.get("headers").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, value) in fields.into_iter().chain(kept) {
        // Foreign headers with invalid names are left out.
        let _ = headers.insert(name, plain(value));
    }
    Decoded {
        id: text("id").and_then(|id| id.parse().ok()).unwrap_or_else(|| derived_id(queue, msg_id)),
        body,
        content_type: content_type.unwrap_or_else(default_type),
        headers,
        ordering_key: key("ordering key", group.as_deref()),
        dedup_key: key("dedup key", text("dedup_key")),
        expires_at: time(&ours, "expires_at"),
        attempts: count(&ours, "attempts"),
        released: count(&ours, "released"),
        first_read_at: time(&ours, "first_read_at"),
        error: text("error").map(str::to_owned),
        death: ours.get("dead").and_then(Value::as_object).map(death),
        problem,
    }
}

fn death(record: &Map<String, Value>) -> Death {
    let text = |name: &str| record.get(name).and_then(Value::as_str).map(str::to_owned);
    Death {
        reason: text("reason"),
        error: text("error"),
        deliveries: count(record, "deliveries"),
        attempts: count(record, "attempts"),
        enqueued_at: time(record, "enqueued_at"),
        first_read_at: time(record, "first_read_at"),
        last_read_at: time(record, "last_read_at"),
        dead_at: time(record, "dead_at"),
        revision: count(record, "revision"),
    }
}

/// Returns a header's value as text.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn count(fields: &Map<String, Value>, name: &str) -> u32 {
    fields.get(name).and_then(Value::as_u64).map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX))
}

fn time(fields: &Map<String, Value>, name: &str) -> Option<Timestamp> {
    fields.get(name).and_then(Value::as_i64).map(Timestamp::from_micros)
}

/// Encodes a dead letter with another body, type or headers. Its record stays.
///
/// Headers that the edit does not change stay, even foreign ones that Postrider cannot show.
pub(crate) fn rewrite(stored: &str, edited: &Message, is_new_headers: bool) -> Encoded {
    let new = encode(edited);
    let parse = |text: &str| match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (mut headers, old) = (parse(&new.headers), parse(stored));
    let kept = |fields: &Map<String, Value>| fields.get(OURS).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut ours, before) = (kept(&headers), kept(&old));
    for name in ["dead", "failures", "returned", "released", "attempts", "error", "expires_at", "lease_ends"] {
        if let Some(value) = before.get(name) {
            ours.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(Value::Object(dead)) = ours.get_mut("dead") {
        let revision = count(dead, "revision").saturating_add(1);
        dead.insert("revision".to_owned(), revision.into());
    }
    if !is_new_headers {
        headers = old;
    }
    headers.insert(OURS.to_owned(), ours.into());
    Encoded { message: new.message, headers: Value::from(headers).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    fn body_of(message: &Message) -> (String, Bytes) {
        let encoded = encode(message);
        let decoded = decode(&queue(), 1, Some(&encoded.message), Some(&encoded.headers));
        assert_eq!(decoded.problem, None);
        assert_eq!(decoded.content_type, message.content_type);
        (encoded.message, decoded.body)
    }

    #[test]
    fn bodies_are_json_where_possible_and_wrapped_otherwise() {
        let json = |body: &'static str| Message::new(body).content_type(ContentType::JSON);
        for (message, stored) in [
            (json("{\"a\": 1}"), "{\"a\": 1}"),
            (json("5"), "5"),
            (json("{\"bb\":1,\"a\":2}"), "{\"bb\":1,\"a\":2}"),
            (Message::new("{\"bb\":1,\"a\":2}"), "{\"bb\":1,\"a\":2}"),
            (json("\"\\u0000\""), r#"{"text":"\"\\u0000\""}"#),
            (json("{broken"), r#"{"text":"{broken"}"#),
            (Message::new("5"), r#"{"text":"5"}"#),
            (Message::new(""), r#"{"text":""}"#),
            (Message::new("a\0b"), r#"{"base64":"YQBi"}"#),
            (Message::new(&b"\xff"[..]), r#"{"base64":"/w=="}"#),
            (Message::new("{}").content_type(ContentType::MSGPACK), r#"{"text":"{}"}"#),
        ] {
            let body = message.body.clone();
            assert_eq!(body_of(&message), (stored.to_owned(), body));
        }
        // As the server returns it.
        let compact = encode(&json("{\"a\":1}"));
        assert_eq!(decode(&queue(), 1, Some("{\"a\": 1}"), Some(&compact.headers)).body, "{\"a\":1}");
    }

    #[test]
    fn everything_about_a_message_comes_back() {
        let message = Message::new("x")
            .header("tenant", "acme")
            .unwrap()
            .header(GROUP, "mine")
            .unwrap()
            .ordering_key("k")
            .unwrap()
            .dedup_key("d")
            .unwrap()
            .expires_at(Timestamp::from_micros(7));
        let encoded = encode(&message);
        assert!(encoded.headers.contains(r#""x-pgmq-group":"k""#), "{}", encoded.headers);
        let decoded = decode(&queue(), 1, Some(&encoded.message), Some(&encoded.headers));
        assert_eq!((decoded.id, &decoded.headers), (message.id, &message.headers));
        assert_eq!((decoded.ordering_key, decoded.dedup_key), (message.ordering_key, message.dedup_key));
        assert_eq!(decoded.expires_at, Some(Timestamp::from_micros(7)));
    }

    #[test]
    fn a_foreign_message_is_decoded_as_it_is() {
        let decoded = decode(&queue(), 7, Some("{\"a\": 1}"), Some(r#"{"n": 1, "s": "t", "odd name": "x"}"#));
        assert_eq!(decoded.id, MessageId::derived("pgmq", "orders", "7"));
        assert_eq!((decoded.body, decoded.content_type), (Bytes::from("{\"a\": 1}"), ContentType::JSON));
        assert_eq!(decoded.headers.iter().collect::<Vec<_>>(), [("n", "1"), ("s", "t")]);
        for headers in [None, Some("null"), Some("[1]"), Some("5"), Some(r#"{"postrider-message": 5}"#)] {
            let decoded = decode(&queue(), 7, None, headers);
            assert_eq!((decoded.problem, decoded.body), (None, Bytes::from("null")), "{headers:?}");
        }
    }

    #[test]
    fn a_body_that_contradicts_its_headers_is_a_problem() {
        for body in ["text", "base64", "json-raw", "zip"] {
            let headers = format!(r#"{{"postrider-message": {{"body": "{body}"}}}}"#);
            let decoded = decode(&queue(), 7, Some(r#"{"base64": "?"}"#), Some(&headers));
            assert!(decoded.problem.is_some(), "{body}");
            assert_eq!(decoded.body, r#"{"base64": "?"}"#);
        }
    }
}
