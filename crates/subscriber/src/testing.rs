//! Messages for the tests of this crate.

use postrider_core::{Bytes, ContentType, Envelope, Headers, MessageId, Priority, QueueMessage, QueueName, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::delivery::Delivery;

/// A message without a content type of its own.
pub(crate) fn delivery(body: impl Into<Bytes>) -> Delivery {
    let at = Timestamp::from_micros(1_700_000_000_000_000);
    let envelope = Envelope {
        id: MessageId::generate(),
        queue: QueueName::new("orders").unwrap(),
        content_type: ContentType::OCTET_STREAM,
        headers: Headers::new(),
        ordering_key: None,
        dedup_key: None,
        priority: Priority::default(),
        expires_at: None,
        receive_count: 1,
        attempts_count: 0,
        enqueued_at: at,
        first_attempt_at: at,
        lease_expires_at: at,
    };
    Delivery::new(body.into(), envelope, CancellationToken::new())
}

/// A message as its sender encodes it.
pub(crate) fn encoded<T: QueueMessage>(value: &T) -> Delivery {
    let mut delivery = delivery(value.to_bytes().unwrap());
    delivery.envelope.content_type = T::CONTENT_TYPE;
    delivery
}

pub(crate) fn with_header(mut delivery: Delivery, name: &str, value: &str) -> Delivery {
    delivery.envelope.headers.insert(name, value).unwrap();
    delivery
}
