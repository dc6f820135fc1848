//! Converts messages to and from SQS's form: a text with at most ten attributes.
//!
//! Text that SQS allows stays readable; other bytes become base64, or a binary attribute.

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
use crate::calls::MAX_BYTES;
use crate::delay;
use crate::names::Side;

/// SQS's maximum number of attributes.
const MAX_ATTRIBUTES: usize = 10;

/// Attribute with the headers that have no attribute of their own, as JSON.
const HEADERS: &str = "postrider-headers";

/// Attribute with the encoding of the body.
const ENCODING: &str = "postrider-encoding";

const CONTENT_TYPE: &str = "content-type";

/// Maximum error of a sender's estimate of SQS's time. A message with a larger difference was created long before.
const CLOCK_ERROR: Duration = Duration::from_millis(2500);

/// Maximum length of a message group id and of a deduplication id.
const MAX_ID: usize = 128;

/// A message to send to SQS.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    body: String,
    attributes: HashMap<String, MessageAttributeValue>,
    /// Size that counts towards SQS's limit.
    pub(crate) bytes: usize,
    delay: Option<i32>,
    fifo: Option<Fifo>,
}

#[derive(Debug, Clone)]
struct Fifo {
    group: String,
    dedup_id: String,
}

impl Outgoing {
    /// Encodes a message for one side of a queue. Only a sender's own message carries its dedup key: a copy with it would be
    /// dropped as a repetition.
    pub(crate) fn new(stored: &Stored, side: Side, is_sent: bool) -> Result<Self, MessagingError> {
        let (delay, stored) = match side {
            Side::Standard => {
                let (delay, wait) = delay::first_hop(stored.wait);
                (Some(delay), Stored { wait, ..stored.clone() })
            }
            Side::Fifo => (None, stored.clone()),
        };
        let fifo = (side == Side::Fifo).then(|| Fifo {
            group: stored.ordering_key.as_ref().map_or_else(|| stored.id.to_string(), |key| name(key.as_str())),
            dedup_id: match stored.dedup_key.as_ref().filter(|_| is_sent) {
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
        if bytes > MAX_BYTES {
            let what = if encoding.is_some() { ", in base64 because they are not text that SQS allows" } else { "" };
            return Err(MessagingError::invalid(
                "body",
                format!(
                    "message {} has {} bytes{what}, which makes {bytes} with its headers; SQS accepts {MAX_BYTES}. Send a \
                     reference to the data instead",
                    stored.id,
                    stored.body.len()
                ),
            ));
        }
        Ok(Self { body, attributes: attributes.all, bytes, delay, fifo })
    }

    /// The message group, within which SQS keeps the order.
    pub(crate) fn group(&self) -> Option<&str> {
        self.fifo.as_ref().map(|fifo| fifo.group.as_str())
    }

    /// Returns the row of a batch call.
    pub(crate) fn entry(&self, row: String) -> Result<SendMessageBatchRequestEntry, BuildError> {
        SendMessageBatchRequestEntry::builder()
            .id(row)
            .message_body(&self.body)
            .set_message_attributes(Some(self.attributes.clone()))
            .set_delay_seconds(self.delay)
            .set_message_group_id(self.fifo.as_ref().map(|fifo| fifo.group.clone()))
            .set_message_deduplication_id(self.fifo.as_ref().map(|fifo| fifo.dedup_id.clone()))
            .build()
    }
}

/// A key as an SQS id: unchanged if SQS allows it, else a hash.
fn name(key: &str) -> String {
    let is_plain = key.len() <= MAX_ID && key.chars().all(|c| c.is_ascii_graphic());
    if is_plain { key.to_owned() } else { Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes()).to_string() }
}

/// Whether SQS allows every character.
fn is_allowed(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..))
}

const IN_BASE64: &str = "base64";
/// Encoding of an empty body, which SQS does not allow.
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
            // Not base64 in spite of the attribute: another client's text, returned unchanged.
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
    /// Adds a text attribute, or a binary one when SQS does not allow the text.
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

    /// Adds as many headers as fit as attributes of their own, and the others in one attribute.
    fn add_headers(&mut self, headers: &Headers) -> Result<(), MessagingError> {
        let room = MAX_ATTRIBUTES - self.all.len();
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
            // A map of strings always serialises.
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

/// A message received from SQS.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The message; its count of deliveries excludes this one.
    pub(crate) stored: Stored,
    /// SQS's receipt.
    pub(crate) receipt: String,
    /// Remaining delay.
    pub(crate) left: Duration,
}

impl Incoming {
    /// Reads a message of one side of a queue; `now` returns SQS's time.
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
            // A foreign attribute whose name is not a valid header is left out.
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
            correct_sender_clock(&mut stored, sent_at);
        }
        let before = u32::try_from(count - 1).unwrap_or(u32::MAX);
        let (before, left) = match side {
            Side::Standard => (before, delay::left_on_standard(stored.wait, sent_at, now)),
            Side::Fifo => {
                let due = sent_at.saturating_add(stored.wait);
                (before.saturating_sub(delay::hides(first_received_at, due)), due.since(now))
            }
        };
        if queue.holds_dead_letters() {
            let is_moved = note.is_some() || system.contains_key(&MessageSystemAttributeName::DeadLetterQueueSourceArn);
            if stored.death.is_none() && is_moved {
                // SQS moved it by its redrive policy, without a record: no other client writes messages with a note there.
                let reason = DeadLetterReason::MAX_RECEIVE_COUNT;
                stored.death = Some(Death { reason, dead_at: sent_at, revision: 0 });
            }
        } else {
            if before > 0 && left.is_zero() {
                stored.first_attempt_at.get_or_insert(first_received_at);
            }
            stored.deliveries = stored.deliveries.saturating_add(before);
            if side == Side::Fifo {
                // A message in a FIFO queue cannot be changed, so every earlier delivery counts as a failure.
                stored.attempts = stored.attempts.max(stored.deliveries);
            }
        }
        Some(Self { stored, receipt, left })
    }
}

/// Corrects the sender's estimate of SQS's time: a message's lifetime begins when SQS accepted it.
fn correct_sender_clock(stored: &mut Stored, sent_at: Timestamp) {
    let error = sent_at.since(stored.enqueued_at);
    if error <= CLOCK_ERROR {
        stored.enqueued_at = stored.enqueued_at.saturating_add(error);
        stored.expires_at = stored.expires_at.map(|expires_at| expires_at.saturating_add(error));
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
    fn every_body_and_header_survives_a_round_trip() {
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
            assert!(outgoing.attributes.len() <= MAX_ATTRIBUTES, "{}", outgoing.attributes.len());
            let read = back(&outgoing, Side::Standard).stored;
            assert_eq!(read, Stored { deliveries: 2, first_attempt_at: read.first_attempt_at, ..sent });
        }
    }

    #[test]
    fn headers_that_fit_are_attributes_of_their_own() {
        let mut message = Sent::new("x");
        for n in 0..9 {
            message = message.header(format!("h{n}"), "1").unwrap();
        }
        let outgoing = Outgoing::new(&stored(&message), Side::Standard, true).unwrap();
        assert!(outgoing.attributes.contains_key("h8") && !outgoing.attributes.contains_key(HEADERS));
        let more = Outgoing::new(&stored(&message.header("i", "1").unwrap()), Side::Standard, true).unwrap();
        assert!(more.attributes.contains_key("h7") && !more.attributes.contains_key("h8"));
        assert_eq!(more.attributes.len(), MAX_ATTRIBUTES);
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused_with_its_size() {
        let text = Sent::new(vec![b'x'; 1024 * 1024]);
        let error = Outgoing::new(&stored(&text), Side::Standard, true).unwrap_err().to_string();
        assert!(error.contains("1048576") && !error.contains("base64"), "{error}");
        let bytes = Sent::new(vec![0xff; 800 * 1024]);
        let error = Outgoing::new(&stored(&bytes), Side::Standard, true).unwrap_err().to_string();
        assert!(error.contains("819200") && error.contains("base64"), "{error}");
    }

    #[test]
    fn ordering_keys_name_groups_and_only_sends_carry_dedup_keys() {
        let message = Sent::new("x").ordering_key("clé 7").unwrap().dedup_key("once").unwrap();
        let fifo = |is_sent| Outgoing::new(&stored(&message), Side::Fifo, is_sent).unwrap().fifo.unwrap();
        assert_eq!(fifo(true).dedup_id, "once");
        assert_ne!(fifo(false).dedup_id, "once");
        assert_eq!(fifo(true).group, fifo(false).group);
        assert!(fifo(true).group.is_ascii());
        assert_eq!(name("plain-key"), "plain-key");
        assert_ne!(name(&"k".repeat(129)), name(&"k".repeat(130)));
    }

    #[test]
    fn a_lifetime_begins_when_sqs_accepts_the_message() {
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
    fn a_message_that_sqs_moved_has_the_reason_max_receive_count() {
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
