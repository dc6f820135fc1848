//! Converts messages to and from AMQP properties.

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

/// Delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// Broker's header: how often a message was returned to its queue.
const RETURN_COUNT: &str = "x-delivery-count";

/// Broker's header: its own moves of a message to another queue.
const DEATHS: &str = "x-death";

/// Header with a table of the sender's headers whose names have a meaning for the broker.
const ESCAPED: &str = "postrider-headers";

/// Headers with additional routing keys.
const ROUTES: [&str; 2] = ["CC", "BCC"];

/// Prefixes of the headers that the broker and its plugins write or read.
const BROKER_PREFIXES: [&str; 9] = [
    DEATHS,
    RETURN_COUNT,
    "x-acquired-count",
    "x-first-death-",
    "x-last-death-",
    "x-delay",
    "x-deprecated-",
    "x-opt-",
    "x-stream-",
];

fn is_broker_header(name: &str) -> bool {
    BROKER_PREFIXES.iter().any(|own| name.starts_with(own))
}

/// Whether a sender's header has a meaning for the broker or for this provider.
fn is_reserved(name: &str) -> bool {
    is_broker_header(name) || ROUTES.contains(&name) || [NOTE, ESCAPED].contains(&name)
}

/// Default maximum frame size of a broker. A larger frame closes the connection.
const MAX_FRAME: usize = 131_072;

/// Part of the header frame that is kept free of the sender's headers: for the other properties and the provider's note, in
/// which an error text of 8 KiB grows to six times its size when every character is escaped.
const RESERVED_BYTES: usize = 52 * 1024;

/// Bytes of a header beside its name and its value.
const HEADER_OVERHEAD: usize = 6;

/// Refuses a new message whose headers do not fit into one frame.
pub(crate) fn check_headers(message: &Message) -> Result<(), MessagingError> {
    let most = MAX_FRAME - RESERVED_BYTES;
    let bytes = message.headers.byte_len() + HEADER_OVERHEAD * message.headers.len();
    if bytes > most {
        let (id, count) = (message.id, message.headers.len());
        let why = format!(
            "message {id} has {count} headers of {bytes} bytes, and RabbitMQ accepts at most {most}; send fewer headers, or \
             put them into the body"
        );
        return Err(MessagingError::invalid("headers", why));
    }
    Ok(())
}

/// Bytes of the header frame beside headers and note: its own fields and the other properties.
const FRAME_OVERHEAD: usize = 1024;

/// Returns the size of a message's header frame.
fn frame_size(stored: &Stored) -> usize {
    let own = stored.headers.byte_len() + HEADER_OVERHEAD * stored.headers.len();
    let escaped = ESCAPED.len() + 2 * HEADER_OVERHEAD;
    own + escaped + NOTE.len() + HEADER_OVERHEAD + stored.note().len() + FRAME_OVERHEAD
}

/// Refuses a message whose headers and note do not fit into one frame: the broker would close the connection.
pub(crate) fn check_frame(stored: &Stored) -> Result<(), MessagingError> {
    let bytes = frame_size(stored);
    if bytes <= MAX_FRAME {
        return Ok(());
    }
    let (id, count) = (stored.id, stored.headers.len());
    let why = format!(
        "message {id} has {count} headers and a record of {bytes} bytes together, and RabbitMQ accepts at most {MAX_FRAME}; use \
         fewer headers, or put them into the body"
    );
    Err(MessagingError::invalid("headers", why))
}

/// Fits a copy of a message into one frame. The headers of another client may leave no room for the record: then the
/// longest are left out, and the record says so. Otherwise such a message could be neither retried nor dead-lettered.
pub(crate) fn fit_into_frame(mut stored: Stored) -> Stored {
    let mut left_out = Vec::new();
    while frame_size(&stored) > MAX_FRAME {
        let longest = stored.headers.iter().max_by_key(|(name, value)| name.len() + value.len());
        let Some((name, bytes)) = longest.map(|(name, value)| (name.to_owned(), value.len())) else { break };
        left_out.push(format!("'{name}' ({bytes} bytes)"));
        stored.headers.remove(&name);
        let error = stored.error.take().unwrap_or_default();
        let error = error.split(LEFT_OUT).next().unwrap_or_default().trim_end();
        // Ten names are enough.
        let names = left_out.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
        stored.error = Some(format!("{error}{LEFT_OUT}{names} of {} in all", left_out.len()).trim_start().to_owned());
    }
    stored
}

/// Text in the record before the names of headers that were left out.
const LEFT_OUT: &str = " Headers that had no room beside the record were left out: ";

/// Writes a message's properties, without the broker's own headers: with them the broker takes a message that was
/// dead-lettered before for a cycle, and drops it.
pub(crate) fn properties(stored: &Stored) -> BasicProperties {
    let (mut headers, mut escaped) = (FieldTable::default(), FieldTable::default());
    for (name, value) in stored.headers.iter() {
        let table = if is_reserved(name) { &mut escaped } else { &mut headers };
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    if !escaped.inner().is_empty() {
        headers.insert(ESCAPED.into(), AMQPValue::FieldTable(escaped));
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

/// A message that the broker delivered.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) stored: Stored,
    pub(crate) tag: u64,
}

/// Reads a message. The broker's count of returns is added to the counts in the message's note.
pub(crate) fn read(queue: &QueueName, delivery: Delivery) -> Received {
    let Delivery { delivery_tag, properties, data, redelivered, .. } = delivery;
    let fields = properties.headers().as_ref();
    let field = |name: &str| fields.and_then(|fields| fields.inner().get(name));
    let text = |name: &str| field(name).and_then(as_text);
    let mut headers = field(ESCAPED).map(read_escaped).unwrap_or_default();
    for (name, value) in fields.into_iter().flat_map(|fields| fields.inner()) {
        let name = name.as_str();
        if name == NOTE || name == ESCAPED || is_broker_header(name) {
            continue;
        }
        // Another client's header whose name is invalid here is left out.
        if let Some(value) = as_text(value) {
            let _ = headers.insert(name, value);
        }
    }
    let named_type = properties.content_type().as_ref().and_then(|name| ContentType::parse(name.as_str()).ok());
    let arrived = match properties.timestamp() {
        Some(seconds) => seconds_since_epoch(*seconds),
        // Dead letters are listed by their times, so a time must be the same at every reading.
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
        // Returns of a dead letter come from listings, and do not count as deliveries.
        let enqueued_at = stored.enqueued_at;
        stored.death.get_or_insert_with(|| broker_death(fields, enqueued_at));
        return Received { stored, tag: delivery_tag };
    }
    let returns = returns(fields, redelivered);
    stored.deliveries = stored.deliveries.saturating_add(returns);
    if stored.ordering_key.is_some() {
        // A message with a key is retried by returning it, so only the returns count its failures.
        stored.attempts = stored.attempts.saturating_add(returns);
    }
    Received { stored, tag: delivery_tag }
}

fn read_escaped(escaped: &AMQPValue) -> Headers {
    let AMQPValue::FieldTable(escaped) = escaped else {
        // The first version wrote JSON.
        return as_text(escaped).and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
    };
    let mut headers = Headers::new();
    for (name, value) in escaped.inner() {
        if let Some(value) = as_text(value) {
            // The sender's header was valid, so it is valid here.
            let _ = headers.insert(name.as_str(), value);
        }
    }
    headers
}

fn seconds_since_epoch(seconds: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000))
}

/// How often a message was returned. A classic queue reports only whether it was.
fn returns(fields: Option<&FieldTable>, redelivered: bool) -> u32 {
    let counted = fields.and_then(|fields| fields.inner().get(RETURN_COUNT)).and_then(as_number);
    counted.map_or(u32::from(redelivered), |count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// The record of a message that the broker itself dead-lettered.
fn broker_death(fields: Option<&FieldTable>, otherwise: Timestamp) -> Death {
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

/// A content hash as the name of a message without an id, so that it keeps its name when it is delivered again.
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
    fn headers_without_room_beside_the_record_are_named_in_it() {
        // Headers as another client may send them: they fill a frame, without room for the record.
        let mut message = Message::new("x").header("tenant", "acme").unwrap();
        for n in 0..130 {
            message = message.header(format!("h{n}"), "x".repeat(990)).unwrap();
        }
        let stored = Stored::new(&message, Timestamp::EPOCH);
        assert!(frame_size(&stored) <= MAX_FRAME, "{}", frame_size(&stored));
        let reason = DeadLetterReason::REJECTED;
        let letter = stored.buried(&reason, Some(&"\u{1}".repeat(4000)), Timestamp::EPOCH);
        assert!(matches!(check_frame(&letter), Err(MessagingError::InvalidInput { .. })));
        let fit_into_frame = fit_into_frame(letter);
        check_frame(&fit_into_frame).unwrap();
        assert_eq!(fit_into_frame.headers.get("tenant"), Some("acme"));
        let error = fit_into_frame.error.unwrap();
        assert!(error.starts_with('\u{1}') && error.contains("(990 bytes)"), "{error}");
        assert!(fit_into_frame.headers.len() > 90, "no more than must go");
    }
}
