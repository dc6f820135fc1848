//! Messages as SQS keeps them: a text, and at most ten attributes.
//!
//! Whatever is text that SQS allows stays readable there; the rest is base64, or bytes in an attribute.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName, SendMessageBatchRequestEntry};
use bytes::Bytes;
use data_encoding::BASE64;
use postrider_broker::{Death, NOTE, Stored};
use postrider_core::{ContentType, DeadLetterReason, Headers, Key, MessageId, MessagingError, QueueName, Timestamp};
use uuid::Uuid;

use crate::PROVIDER;
use crate::calls::MOST_BYTES;
use crate::names::Side;
use crate::waiting;

/// SQS allows so many.
const MOST_ATTRIBUTES: usize = 10;

/// The headers that are not attributes of their own, as JSON.
const HEADERS: &str = "postrider-headers";

/// How the body was made text.
const ENCODING: &str = "postrider-encoding";

const CONTENT_TYPE: &str = "content-type";

/// By no more a sender is wrong about SQS's time, unless its message was made long before.
const CLOCK_ERROR: Duration = Duration::from_millis(2500);

/// The longest name of a group, and of what keeps a message single.
const LONGEST_ID: usize = 128;

/// A message on its way to SQS.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    body: String,
    attributes: HashMap<String, MessageAttributeValue>,
    /// What counts towards the limit.
    pub(crate) bytes: usize,
    delay: Option<i32>,
    fifo: Option<Fifo>,
}

#[derive(Debug, Clone)]
struct Fifo {
    group: String,
    single: String,
}

impl Outgoing {
    /// A message for one side of a queue. Only a sender's own message is kept single by its dedup key: copies that are
    /// made on the way would be taken for repetitions.
    pub(crate) fn new(stored: &Stored, side: Side, is_sent: bool) -> Result<Self, MessagingError> {
        let (delay, stored) = match side {
            Side::Standard => {
                let (delay, wait) = waiting::first_hop(stored.wait);
                (Some(delay), Stored { wait, ..stored.clone() })
            }
            Side::Fifo => (None, stored.clone()),
        };
        let fifo = (side == Side::Fifo).then(|| Fifo {
            group: stored.ordering_key.as_ref().map_or_else(|| stored.id.to_string(), |key| name(key.as_str())),
            single: match stored.dedup_key.as_ref().filter(|_| is_sent) {
                Some(key) => name(key.as_str()),
                None => Uuid::new_v4().to_string(),
            },
        });
        let (body, encoding) = write_body(&stored.body);
        let mut attributes = Attributes::default();
        attributes.add(NOTE, &stored.note())?;
        if let Some(encoding) = encoding {
            attributes.add(ENCODING, encoding)?;
        }
        if stored.content_type != ContentType::OCTET_STREAM {
            attributes.add(CONTENT_TYPE, stored.content_type.as_str())?;
        }
        attributes.add_headers(&stored.headers)?;
        let bytes = body.len() + attributes.bytes;
        if bytes > MOST_BYTES {
            let what =
                if encoding.is_some() { ", in base64 because its bytes are no text that SQS allows" } else { "" };
            return Err(MessagingError::invalid(
                "body",
                format!(
                    "message {} has {} bytes{what}, which makes {bytes} with its headers; SQS takes {MOST_BYTES}. Send a \
                     reference to the data instead",
                    stored.id,
                    stored.body.len()
                ),
            ));
        }
        Ok(Self { body, attributes: attributes.all, bytes, delay, fifo })
    }

    /// Among whose messages it keeps its place.
    pub(crate) fn group(&self) -> Option<&str> {
        self.fifo.as_ref().map(|fifo| fifo.group.as_str())
    }

    /// The row of a call.
    pub(crate) fn entry(&self, row: String) -> Result<SendMessageBatchRequestEntry, BuildError> {
        SendMessageBatchRequestEntry::builder()
            .id(row)
            .message_body(&self.body)
            .set_message_attributes(Some(self.attributes.clone()))
            .set_delay_seconds(self.delay)
            .set_message_group_id(self.fifo.as_ref().map(|fifo| fifo.group.clone()))
            .set_message_deduplication_id(self.fifo.as_ref().map(|fifo| fifo.single.clone()))
            .build()
    }
}

/// A key as SQS can hold it: as it is, or by a name that is derived from it.
fn name(key: &str) -> String {
    let is_plain = key.len() <= LONGEST_ID && key.chars().all(|c| c.is_ascii_graphic());
    if is_plain { key.to_owned() } else { Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes()).to_string() }
}

/// Whether SQS allows every character.
fn is_allowed(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..))
}

const IN_BASE64: &str = "base64";
/// SQS keeps no empty body.
const EMPTY: &str = "empty";

fn write_body(body: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok("") => ("-".to_owned(), Some(EMPTY)),
        Ok(text) if is_allowed(text) => (text.to_owned(), None),
        _ => (BASE64.encode(body), Some(IN_BASE64)),
    }
}

fn read_body(text: String, encoding: Option<&str>) -> Bytes {
    match encoding {
        Some(EMPTY) => Bytes::new(),
        Some(IN_BASE64) => match BASE64.decode(text.as_bytes()) {
            Ok(body) => body.into(),
            // Whoever wrote that wrote something else: it is shown as it is.
            Err(_) => text.into(),
        },
        _ => text.into(),
    }
}

#[derive(Default)]
struct Attributes {
    all: HashMap<String, MessageAttributeValue>,
    bytes: usize,
}

impl Attributes {
    /// A text, or its bytes when SQS would not take the text.
    fn add(&mut self, name: &str, value: &str) -> Result<(), MessagingError> {
        let builder = if !value.is_empty() && is_allowed(value) {
            MessageAttributeValue::builder().data_type("String").string_value(value)
        } else {
            MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new(value))
        };
        let built = builder.build().map_err(|error| MessagingError::invalid("header", error.to_string()))?;
        self.bytes += name.len() + built.data_type().len() + value.len();
        self.all.insert(name.to_owned(), built);
        Ok(())
    }

    /// As many as there is room for by themselves, and the rest together.
    fn add_headers(&mut self, headers: &Headers) -> Result<(), MessagingError> {
        let room = MOST_ATTRIBUTES - self.all.len();
        let (mut own, mut together): (Vec<_>, BTreeMap<_, _>) = (Vec::new(), BTreeMap::new());
        for (name, value) in headers.iter() {
            let fits = is_attribute_name(name) && !value.is_empty() && is_allowed(value);
            if fits {
                own.push((name, value));
            } else {
                together.insert(name, value);
            }
        }
        let room = if own.len() > room || !together.is_empty() { room - 1 } else { room };
        together.extend(own.drain(own.len().min(room)..));
        for (name, value) in own {
            self.add(name, value)?;
        }
        if !together.is_empty() {
            // Texts always have a JSON form.
            self.add(HEADERS, &serde_json::to_string(&together).unwrap_or_default())?;
        }
        Ok(())
    }
}

fn is_attribute_name(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let is_reserved = small.starts_with("aws.") || small.starts_with("amazon.") || small == CONTENT_TYPE;
    !is_reserved && !name.starts_with('.') && !name.ends_with('.') && !name.contains("..")
}

/// A message as it came from SQS.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The message; its deliveries are those before this one.
    pub(crate) stored: Stored,
    /// SQS's receipt.
    pub(crate) receipt: String,
    /// What it still has to wait.
    pub(crate) left: Duration,
}

impl Incoming {
    /// Reads a message of one side of a queue; `now` is what time it is at SQS.
    pub(crate) fn read(
        message: Message,
        queue: &QueueName,
        side: Side,
        now: impl Fn(Timestamp) -> Timestamp,
    ) -> Option<Self> {
        let receipt = message.receipt_handle?;
        let system = message.attributes.unwrap_or_default();
        let number = |name: MessageSystemAttributeName| system.get(&name).and_then(|text| text.parse::<i64>().ok());
        let time = |name| number(name).map(|millis| Timestamp::from_micros(millis.saturating_mul(1000)));
        let latest = time(MessageSystemAttributeName::ApproximateFirstReceiveTimestamp)
            .max(time(MessageSystemAttributeName::SentTimestamp))
            .unwrap_or_default();
        let now = now(latest);
        let sent_at = time(MessageSystemAttributeName::SentTimestamp).unwrap_or(now);
        let first_received_at = time(MessageSystemAttributeName::ApproximateFirstReceiveTimestamp).unwrap_or(now);
        let count = number(MessageSystemAttributeName::ApproximateReceiveCount).unwrap_or(1).max(1);

        let mut attributes = message.message_attributes.unwrap_or_default();
        let mut own = |name: &str| attributes.remove(name).map(|value| text(&value));
        let (note, encoding, packed, content_type) = (own(NOTE), own(ENCODING), own(HEADERS), own(CONTENT_TYPE));
        let content_type =
            content_type.and_then(|text| ContentType::parse(&text).ok()).unwrap_or(ContentType::OCTET_STREAM);
        let mut headers: Headers = packed.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
        for (name, value) in &attributes {
            // What cannot be a header here, by its name, is the sender's own affair.
            let _ = headers.insert(name.clone(), text(value));
        }
        let body = read_body(message.body.unwrap_or_default(), encoding.as_deref());
        let native = message.message_id.unwrap_or_default();
        let foreign_id = || MessageId::derived(PROVIDER, queue.as_str(), &native);
        let mut stored = Stored::read(body, content_type, headers, note.as_deref(), foreign_id, sent_at);
        if note.is_none() && side == Side::Fifo {
            let group = system.get(&MessageSystemAttributeName::MessageGroupId);
            stored.ordering_key = group.and_then(|group| Key::new("ordering key", group).ok());
        }

        if stored.deliveries == 0 && stored.attempts == 0 {
            set_right(&mut stored, sent_at);
        }
        let before = u32::try_from(count - 1).unwrap_or(u32::MAX);
        let (before, left) = match side {
            Side::Standard => (before, waiting::left_on_standard(stored.wait, sent_at, now)),
            Side::Fifo => {
                let due = sent_at.saturating_add(stored.wait);
                (before.saturating_sub(waiting::hides(first_received_at, due)), due.since(now))
            }
        };
        if queue.holds_dead_letters() {
            let is_moved = note.is_some() || system.contains_key(&MessageSystemAttributeName::DeadLetterQueueSourceArn);
            if stored.death.is_none() && is_moved {
                // SQS moved it by its own limit, and wrote nothing down. Nobody else can put one of ours there.
                let reason = DeadLetterReason::MAX_RECEIVE_COUNT;
                stored.death = Some(Death { reason, dead_at: sent_at, revision: 0 });
            }
        } else {
            if before > 0 && left.is_zero() {
                stored.first_attempt_at.get_or_insert(first_received_at);
            }
            stored.deliveries = stored.deliveries.saturating_add(before);
            if side == Side::Fifo {
                // Nothing can be written to a message that keeps its place, so whatever was delivered before has failed.
                stored.attempts = stored.attempts.max(stored.deliveries);
            }
        }
        Some(Self { stored, receipt, left })
    }
}

/// A sender knows SQS's time to a second or so. When SQS took the message is known exactly, and its lifetime begins then.
fn set_right(stored: &mut Stored, sent_at: Timestamp) {
    let behind = sent_at.since(stored.enqueued_at);
    if behind <= CLOCK_ERROR {
        stored.enqueued_at = stored.enqueued_at.saturating_add(behind);
        stored.expires_at = stored.expires_at.map(|expires_at| expires_at.saturating_add(behind));
    }
}

fn text(value: &MessageAttributeValue) -> String {
    match (value.string_value(), value.binary_value()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(bytes)) => match std::str::from_utf8(bytes.as_ref()) {
            Ok(text) => text.to_owned(),
            Err(_) => BASE64.encode(bytes.as_ref()),
        },
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::Message as Sent;

    use super::*;

    fn back(outgoing: &Outgoing, side: Side) -> Incoming {
        let entry = outgoing.entry("0".into()).unwrap();
        let message = Message::builder()
            .body(entry.message_body())
            .set_message_attributes(entry.message_attributes().cloned())
            .receipt_handle("r")
            .message_id("m")
            .attributes(MessageSystemAttributeName::SentTimestamp, "5000")
            .attributes(MessageSystemAttributeName::ApproximateReceiveCount, "3")
            .build();
        Incoming::read(message, &QueueName::new("q").unwrap(), side, |_| Timestamp::from_micros(6_000_000)).unwrap()
    }

    fn stored(message: &Sent) -> Stored {
        Stored::new(message, Timestamp::from_micros(1))
    }

    #[test]
    fn whatever_is_sent_comes_back_whole() {
        let every_byte: Vec<u8> = (0..=255).collect();
        for body in [b"".as_slice(), b"text", "ü \u{1F40E}\n".as_bytes(), b"\0", "\u{fffe}".as_bytes(), &every_byte] {
            let mut message = Sent::new(body.to_vec()).content_type(ContentType::from_static("text/x"));
            for n in 0..30 {
                message = message.header(format!("h{n:02}"), format!("{n}")).unwrap();
            }
            for (name, value) in [("empty", ""), ("Content-Type", "x"), ("AWS.x", "y"), ("odd", "\u{1}\u{fffe}")] {
                message = message.header(name, value).unwrap();
            }
            let sent = stored(&message);
            let outgoing = Outgoing::new(&sent, Side::Standard, true).unwrap();
            assert!(outgoing.attributes.len() <= MOST_ATTRIBUTES, "{}", outgoing.attributes.len());
            let read = back(&outgoing, Side::Standard).stored;
            assert_eq!(read, Stored { deliveries: 2, first_attempt_at: read.first_attempt_at, ..sent });
        }
    }

    #[test]
    fn few_headers_are_attributes_of_their_own() {
        let mut message = Sent::new("x");
        for n in 0..9 {
            message = message.header(format!("h{n}"), "1").unwrap();
        }
        let outgoing = Outgoing::new(&stored(&message), Side::Standard, true).unwrap();
        assert!(outgoing.attributes.contains_key("h8") && !outgoing.attributes.contains_key(HEADERS));
        let more = Outgoing::new(&stored(&message.header("i", "1").unwrap()), Side::Standard, true).unwrap();
        assert!(more.attributes.contains_key("h7") && !more.attributes.contains_key("h8"));
        assert_eq!(more.attributes.len(), MOST_ATTRIBUTES);
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused_with_the_number() {
        let text = Sent::new(vec![b'x'; 1024 * 1024]);
        let error = Outgoing::new(&stored(&text), Side::Standard, true).unwrap_err().to_string();
        assert!(error.contains("1048576") && !error.contains("base64"), "{error}");
        let bytes = Sent::new(vec![0xff; 800 * 1024]);
        let error = Outgoing::new(&stored(&bytes), Side::Standard, true).unwrap_err().to_string();
        assert!(error.contains("819200") && error.contains("base64"), "{error}");
    }

    #[test]
    fn keys_name_groups_and_only_sends_are_kept_single() {
        let message = Sent::new("x").ordering_key("clé 7").unwrap().dedup_key("once").unwrap();
        let fifo = |is_sent| Outgoing::new(&stored(&message), Side::Fifo, is_sent).unwrap().fifo.unwrap();
        assert_eq!(fifo(true).single, "once");
        assert_ne!(fifo(false).single, "once");
        assert_eq!(fifo(true).group, fifo(false).group);
        assert!(fifo(true).group.is_ascii());
        assert_eq!(name("plain-key"), "plain-key");
        assert_ne!(name(&"k".repeat(129)), name(&"k".repeat(130)));
    }

    #[test]
    fn a_lifetime_begins_when_sqs_takes_the_message() {
        let message = Sent::new("x").expires_in(Duration::from_secs(1));
        let at = |micros| Timestamp::from_micros(micros);
        let sent_by =
            |now| back(&Outgoing::new(&Stored::new(&message, now), Side::Standard, true).unwrap(), Side::Standard);
        let read = sent_by(at(4_100_000)).stored;
        assert_eq!((read.enqueued_at, read.expires_at), (at(5_000_000), Some(at(6_000_000))));
        let read = sent_by(at(1)).stored;
        assert_eq!((read.enqueued_at, read.expires_at), (at(1), Some(at(1_000_001))), "long before");
    }

    #[test]
    fn a_message_that_sqs_moved_died_of_its_count() {
        let message = Message::builder()
            .body("x")
            .receipt_handle("r")
            .attributes(MessageSystemAttributeName::SentTimestamp, "5000")
            .attributes(MessageSystemAttributeName::DeadLetterQueueSourceArn, "arn:aws:sqs:eu:1:q")
            .build();
        let dead = QueueName::new("q").unwrap().dead_letters();
        let read = Incoming::read(message, &dead, Side::Standard, |_| Timestamp::EPOCH).unwrap();
        assert_eq!(read.stored.reason(), DeadLetterReason::MAX_RECEIVE_COUNT);
    }
}
