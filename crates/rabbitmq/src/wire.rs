//! Messages as AMQP carries them.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use postrider_broker::{Death, NOTE, Stored};
use postrider_core::{
    ContentType, DeadLetterReason, Headers, Message, MessageId, MessagingError, QueueName, Timestamp,
};
use uuid::Uuid;

use crate::PROVIDER;

/// Survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// What the broker counts: how often a message came back to its queue.
const RETURNS: &str = "x-delivery-count";

/// What the broker writes when it moves a message to another queue by itself.
const DEATHS: &str = "x-death";

/// Headers that have a meaning for the broker if they are its own, in a table of their own.
const APART: &str = "postrider-headers";

/// Where the broker sends a message besides.
const ROUTES: [&str; 2] = ["CC", "BCC"];

/// How the names of headers begin that the broker and its plugins write or read.
const BROKERS: [&str; 9] = [
    DEATHS,
    RETURNS,
    "x-acquired-count",
    "x-first-death-",
    "x-last-death-",
    "x-delay",
    "x-deprecated-",
    "x-opt-",
    "x-stream-",
];

fn is_the_brokers(name: &str) -> bool {
    BROKERS.iter().any(|own| name.starts_with(own))
}

/// Whether a sender's header would mean something to the broker, or to us.
fn means_something(name: &str) -> bool {
    is_the_brokers(name) || ROUTES.contains(&name) || [NOTE, APART].contains(&name)
}

/// The largest frame that a broker takes unless its operator says otherwise. One that is larger ends the connection.
const FRAME: usize = 131_072;

/// What goes into the frame of the headers beside those of the sender: the other properties, and our note, of which an
/// error text of 8 KiB takes six times as much when every character has to be escaped.
const BESIDE_HEADERS: usize = 52 * 1024;

/// What a header takes beside its name and its value.
const PER_HEADER: usize = 6;

/// Refuses headers that do not fit into one frame.
pub(crate) fn check_headers(message: &Message) -> Result<(), MessagingError> {
    let most = FRAME - BESIDE_HEADERS;
    let bytes = message.headers.byte_len() + PER_HEADER * message.headers.len();
    if bytes > most {
        let (id, count) = (message.id, message.headers.len());
        let why = format!(
            "message {id} has {count} headers, which take {bytes} bytes on the way to RabbitMQ, and at most {most} are \
             possible; send fewer, or put them into the body"
        );
        return Err(MessagingError::invalid("headers", why));
    }
    Ok(())
}

/// What goes into the frame of the headers beside them: its own parts, and the other properties.
const BESIDE_ALL_HEADERS: usize = 1024;

/// How many bytes the headers and the note of a message take in their frame.
fn frame_size(stored: &Stored) -> usize {
    let own = stored.headers.byte_len() + PER_HEADER * stored.headers.len();
    let apart = APART.len() + 2 * PER_HEADER;
    own + apart + NOTE.len() + PER_HEADER + stored.note().len() + BESIDE_ALL_HEADERS
}

/// Refuses a message whose headers and note do not fit into one frame: to write it would end the connection.
pub(crate) fn check_frame(stored: &Stored) -> Result<(), MessagingError> {
    let bytes = frame_size(stored);
    if bytes <= FRAME {
        return Ok(());
    }
    let (id, count) = (stored.id, stored.headers.len());
    let why = format!(
        "the {count} headers of message {id} and its record take {bytes} bytes on the way to RabbitMQ, and at most {FRAME} \
         are possible; give it fewer headers, or put them into the body"
    );
    Err(MessagingError::invalid("headers", why))
}

/// A copy of a message that takes the place of the message. Another client's headers may leave no room for the record: then
/// the longest of them go, and the record says so. Without that such a message could neither be retried nor die.
pub(crate) fn fitted(mut stored: Stored) -> Stored {
    let mut left_out = Vec::new();
    while frame_size(&stored) > FRAME {
        let longest = stored.headers.iter().max_by_key(|(name, value)| name.len() + value.len());
        let Some((name, bytes)) = longest.map(|(name, value)| (name.to_owned(), value.len())) else { break };
        left_out.push(format!("'{name}' ({bytes} bytes)"));
        stored.headers.remove(&name);
        let error = stored.error.take().unwrap_or_default();
        let error = error.split(LEFT_OUT).next().unwrap_or_default().trim_end();
        // A few names are enough.
        let names = left_out.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
        stored.error = Some(format!("{error}{LEFT_OUT}{names} of {} in all", left_out.len()).trim_start().to_owned());
    }
    stored
}

/// What the record says of headers that had no room.
const LEFT_OUT: &str = " Headers that had no room beside the record were left out: ";

/// Writes a message's properties. None of the broker's own headers is written again: it would take a message that has
/// been somewhere before for one that goes in circles, and drop it.
pub(crate) fn properties(stored: &Stored) -> BasicProperties {
    let (mut headers, mut apart) = (FieldTable::default(), FieldTable::default());
    for (name, value) in stored.headers.iter() {
        let table = if means_something(name) { &mut apart } else { &mut headers };
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    if !apart.inner().is_empty() {
        headers.insert(APART.into(), AMQPValue::FieldTable(apart));
    }
    headers.insert(NOTE.into(), AMQPValue::LongString(stored.note().into()));
    let seconds = u64::try_from(stored.enqueued_at.as_micros() / 1_000_000).unwrap_or(0);
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(stored.id.to_string().into())
        .with_content_type(stored.content_type.as_str().into())
        .with_timestamp(seconds)
        .with_headers(headers)
}

/// A message that the broker has handed over.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) stored: Stored,
    pub(crate) tag: u64,
}

/// Reads a message. What the broker has counted is added to what the message itself says.
pub(crate) fn read(queue: &QueueName, delivery: Delivery) -> Arrived {
    let Delivery { delivery_tag, properties, data, redelivered, .. } = delivery;
    let fields = properties.headers().as_ref();
    let field = |name: &str| fields.and_then(|fields| fields.inner().get(name));
    let text = |name: &str| field(name).and_then(as_text);
    let mut headers = field(APART).map(read_apart).unwrap_or_default();
    for (name, value) in fields.into_iter().flat_map(|fields| fields.inner()) {
        let name = name.as_str();
        if name == NOTE || name == APART || is_the_brokers(name) {
            continue;
        }
        // What another client calls by a name that is none here is left out.
        if let Some(value) = as_text(value) {
            let _ = headers.insert(name, value);
        }
    }
    let named_type = properties.content_type().as_ref().and_then(|name| ContentType::parse(name.as_str()).ok());
    let arrived = match properties.timestamp() {
        Some(seconds) => seconds_since_epoch(*seconds),
        // A dead letter has its place in the list by its times: they must be the same whenever it is looked at.
        None if queue.holds_dead_letters() => Timestamp::EPOCH,
        None => Timestamp::now(),
    };
    let body = Bytes::from(data);
    let foreign_id = || match properties.message_id() {
        Some(id) => match id.as_str().parse() {
            Ok(id) => id,
            Err(_) => MessageId::derived(PROVIDER, queue.as_str(), id.as_str()),
        },
        None => MessageId::derived(PROVIDER, queue.as_str(), &digest(&body, &properties)),
    };
    let content_type = named_type.unwrap_or(ContentType::OCTET_STREAM);
    let mut stored = Stored::read(body.clone(), content_type, headers, text(NOTE).as_deref(), foreign_id, arrived);
    if queue.holds_dead_letters() {
        // Its life has been counted; that it was looked at since is not part of it.
        let enqueued_at = stored.enqueued_at;
        stored.death.get_or_insert_with(|| moved_by_the_broker(fields, enqueued_at));
        return Arrived { stored, tag: delivery_tag };
    }
    let returns = returns(fields, redelivered);
    stored.deliveries = stored.deliveries.saturating_add(returns);
    if stored.ordering_key.is_some() {
        // A message with a key never leaves its place, so nothing but its returns tells of its failures.
        stored.attempts = stored.attempts.saturating_add(returns);
    }
    Arrived { stored, tag: delivery_tag }
}

fn read_apart(apart: &AMQPValue) -> Headers {
    let AMQPValue::FieldTable(apart) = apart else {
        // As the first version wrote them.
        return as_text(apart).and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
    };
    let mut headers = Headers::new();
    for (name, value) in apart.inner() {
        if let Some(value) = as_text(value) {
            // It was a header before, so it is one here.
            let _ = headers.insert(name.as_str(), value);
        }
    }
    headers
}

fn seconds_since_epoch(seconds: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000))
}

/// How often a message came back. A classic queue tells no more than whether it did.
fn returns(fields: Option<&FieldTable>, redelivered: bool) -> u32 {
    let counted = fields.and_then(|fields| fields.inner().get(RETURNS)).and_then(as_number);
    counted.map_or(u32::from(redelivered), |count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// What the broker says of a message that it moved among the dead itself.
fn moved_by_the_broker(fields: Option<&FieldTable>, otherwise: Timestamp) -> Death {
    let last = fields.and_then(|fields| fields.inner().get(DEATHS)).and_then(|deaths| match deaths {
        AMQPValue::FieldArray(deaths) => deaths.as_slice().first(),
        _ => None,
    });
    let entry = |name: &str| match last {
        Some(AMQPValue::FieldTable(death)) => death.inner().get(name),
        _ => None,
    };
    let reason = match entry("reason").and_then(as_text).as_deref() {
        Some("delivery_limit") => DeadLetterReason::MAX_RECEIVE_COUNT,
        Some("expired") => DeadLetterReason::EXPIRED,
        Some("rejected") | None => DeadLetterReason::REJECTED,
        Some(other) => other.into(),
    };
    let dead_at = match entry("time") {
        Some(AMQPValue::Timestamp(seconds)) => seconds_since_epoch(*seconds),
        _ => otherwise,
    };
    Death { reason, dead_at, revision: 0 }
}

/// The name of a message that has none: made of what it says, so that it stays the same when it comes again.
fn digest(body: &Bytes, properties: &BasicProperties) -> String {
    let mut content = format!("{:?}{:?}", properties.correlation_id(), properties.timestamp()).into_bytes();
    content.extend_from_slice(body);
    Uuid::new_v5(&Uuid::NAMESPACE_OID, &content).to_string()
}

fn as_number(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::ShortShortInt(number) => Some((*number).into()),
        AMQPValue::ShortShortUInt(number) => Some((*number).into()),
        AMQPValue::ShortInt(number) => Some((*number).into()),
        AMQPValue::ShortUInt(number) => Some((*number).into()),
        AMQPValue::LongInt(number) => Some((*number).into()),
        AMQPValue::LongUInt(number) => Some((*number).into()),
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::Timestamp(number) => i64::try_from(*number).ok(),
        _ => None,
    }
}

fn as_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::Boolean(truth) => Some(truth.to_string()),
        AMQPValue::Float(number) => Some(number.to_string()),
        AMQPValue::Double(number) => Some(number.to_string()),
        other => as_number(other).map(|number| number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_leave_no_room_for_the_record_are_named_in_it() {
        // As another client may send them: they fill a frame, and our record does not fit beside them.
        let mut message = Message::new("x").header("tenant", "acme").unwrap();
        for n in 0..130 {
            message = message.header(format!("h{n}"), "x".repeat(990)).unwrap();
        }
        let stored = Stored::new(&message, Timestamp::EPOCH);
        assert!(frame_size(&stored) <= FRAME, "{}", frame_size(&stored));
        let reason = DeadLetterReason::REJECTED;
        let letter = stored.buried(&reason, Some(&"\u{1}".repeat(4000)), Timestamp::EPOCH);
        assert!(matches!(check_frame(&letter), Err(MessagingError::InvalidInput { .. })));
        let fitted = fitted(letter);
        check_frame(&fitted).unwrap();
        assert_eq!(fitted.headers.get("tenant"), Some("acme"));
        let error = fitted.error.unwrap();
        assert!(error.starts_with('\u{1}') && error.contains("(990 bytes)"), "{error}");
        assert!(fitted.headers.len() > 90, "no more than must go");
    }
}
