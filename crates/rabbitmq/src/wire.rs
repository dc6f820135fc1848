//! Messages as AMQP carries them.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use postrider_broker::{Death, NOTE, Stored};
use postrider_core::{ContentType, DeadLetterReason, Headers, MessageId, QueueName, Timestamp};
use uuid::Uuid;

use crate::PROVIDER;

/// Survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// What the broker counts: how often a message came back to its queue.
const RETURNS: &str = "x-delivery-count";

/// What the broker writes when it moves a message to another queue by itself.
const DEATHS: &str = "x-death";

/// Writes a message's properties. None of the broker's own headers is written again: it would take a message that has
/// been somewhere before for one that goes in circles, and drop it.
pub(crate) fn properties(stored: &Stored) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in stored.headers.iter() {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
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
    let text = |name: &str| fields.and_then(|fields| fields.inner().get(name)).and_then(as_text);
    let mut headers = Headers::new();
    for (name, value) in fields.into_iter().flat_map(|fields| fields.inner()) {
        let name = name.as_str();
        if name == NOTE || name.starts_with("x-") {
            continue;
        }
        // What another client calls by a name that is none here is left out.
        if let Some(value) = as_text(value) {
            let _ = headers.insert(name, value);
        }
    }
    let named_type = properties.content_type().as_ref().and_then(|name| ContentType::parse(name.as_str()).ok());
    let arrived = match properties.timestamp() {
        Some(seconds) => Timestamp::from_micros(i64::try_from(*seconds).unwrap_or(0).saturating_mul(1_000_000)),
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
        stored.death.get_or_insert_with(|| moved_by_the_broker(fields));
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

/// How often a message came back. A classic queue tells no more than whether it did.
fn returns(fields: Option<&FieldTable>, redelivered: bool) -> u32 {
    let counted = fields.and_then(|fields| fields.inner().get(RETURNS)).and_then(as_number);
    counted.map_or(u32::from(redelivered), |count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// What the broker says of a message that it moved among the dead itself.
fn moved_by_the_broker(fields: Option<&FieldTable>) -> Death {
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
        Some(AMQPValue::Timestamp(seconds)) => i64::try_from(*seconds).unwrap_or(0).saturating_mul(1_000_000),
        _ => Timestamp::now().as_micros(),
    };
    Death { reason, dead_at: Timestamp::from_micros(dead_at), revision: 0 }
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
