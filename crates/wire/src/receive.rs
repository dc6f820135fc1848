//! Messages on their way to a worker.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    ContentType, Envelope, MessageId, MessagingError, Priority, QueueName, ReceiptHandle, ReceiveOptions, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::HeaderFields;
use super::body::{self, Base64, Text};
use super::duration;
use super::message::{key, text};
use super::object;
use super::problem::Problem;
use super::settle::{Row, Settlement};

/// The longest wait that one request may ask for. Longer waits are several requests.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// `POST /v1/queues/{queue}/receive`. What is left out is the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiveRequest {
    /// At most that many messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// How long they are leased.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Duration>,
    /// How long to wait for the first one.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub wait: Option<Duration>,
    /// A message that has been delivered that often is dead-lettered instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_receive_count: Option<u32>,
    /// That one message, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Who asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

impl From<&ReceiveOptions> for ReceiveRequest {
    fn from(options: &ReceiveOptions) -> Self {
        Self {
            max: Some(options.max),
            visibility: Some(options.visibility),
            wait: Some(options.wait),
            max_receive_count: Some(options.max_receive_count),
            id: None,
            worker: None,
        }
    }
}

impl ReceiveRequest {
    /// What is asked for, where `defaults` stand in for what is left out.
    pub fn options(&self, defaults: &ReceiveOptions) -> Result<ReceiveOptions, MessagingError> {
        options(self.max, self.visibility, self.wait, self.max_receive_count, defaults)
    }
}

/// `POST /v1/receive`: ends leases, then receives from any of the queues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettleAndReceiveRequest {
    /// From these.
    #[serde(deserialize_with = "object::values")]
    pub queues: Vec<QueueName>,
    /// Leases that end first.
    #[serde(deserialize_with = "object::list", skip_serializing_if = "Vec::is_empty")]
    pub settlements: Vec<Settlement>,
    /// At most that many messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// How long they are leased.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Duration>,
    /// How long to wait for the first one.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub wait: Option<Duration>,
    /// A message that has been delivered that often is dead-lettered instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_receive_count: Option<u32>,
    /// Who asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

impl SettleAndReceiveRequest {
    /// A request for messages by `options`.
    pub fn new(queues: Vec<QueueName>, options: &ReceiveOptions) -> Self {
        Self {
            queues,
            settlements: Vec::new(),
            max: Some(options.max),
            visibility: Some(options.visibility),
            wait: Some(options.wait),
            max_receive_count: Some(options.max_receive_count),
            worker: None,
        }
    }

    /// What is asked for, where `defaults` stand in for what is left out.
    pub fn options(&self, defaults: &ReceiveOptions) -> Result<ReceiveOptions, MessagingError> {
        options(self.max, self.visibility, self.wait, self.max_receive_count, defaults)
    }
}

fn options(
    max: Option<usize>,
    visibility: Option<Duration>,
    wait: Option<Duration>,
    max_receive_count: Option<u32>,
    defaults: &ReceiveOptions,
) -> Result<ReceiveOptions, MessagingError> {
    if wait.is_some_and(|wait| wait > LONGEST_WAIT) {
        return Err(MessagingError::invalid("wait", "one request waits for at most 60s; ask again after it"));
    }
    Ok(ReceiveOptions {
        max: max.unwrap_or(defaults.max),
        visibility: visibility.unwrap_or(defaults.visibility),
        wait: wait.unwrap_or(defaults.wait.min(LONGEST_WAIT)),
        max_receive_count: max_receive_count.unwrap_or(defaults.max_receive_count),
    })
}

/// A leased message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Received {
    /// The message's identity.
    pub id: MessageId,
    /// The queue that it was received from.
    pub queue: QueueName,
    /// What it is settled by.
    pub receipt: ReceiptHandle,
    /// What it says, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// What it says, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// How the body is encoded.
    pub content_type: String,
    /// Text beside the body.
    #[serde(default)]
    pub headers: HeaderFields,
    /// The key that it is ordered by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// The key that keeps it single.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// How urgent it is.
    pub priority: u8,
    /// When it is too late to handle it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Which delivery this is: 1 the first time.
    pub receive_count: u32,
    /// How often a handler has failed on it before.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Timestamp,
    /// When the lease ends, if it is not extended.
    pub lease_expires_at: Timestamp,
}

impl Received {
    /// A delivery by `receipt`, which must be one that the other side may have.
    pub fn new(body: Bytes, envelope: Envelope, receipt: ReceiptHandle) -> Self {
        let (body, body_base64) = body::split(body);
        Self {
            id: envelope.id,
            queue: envelope.queue,
            receipt,
            body,
            body_base64,
            content_type: envelope.content_type.as_str().to_owned(),
            headers: envelope.headers.into(),
            ordering_key: text(envelope.ordering_key.as_ref()),
            dedup_key: text(envelope.dedup_key.as_ref()),
            priority: envelope.priority.get(),
            expires_at: envelope.expires_at,
            receive_count: envelope.receive_count,
            attempts_count: envelope.attempts_count,
            enqueued_at: envelope.enqueued_at,
            first_attempt_at: envelope.first_attempt_at,
            lease_expires_at: envelope.lease_expires_at,
        }
    }

    /// What a message that is held is made of.
    pub fn into_parts(self) -> Result<(Bytes, Envelope, ReceiptHandle), MessagingError> {
        let body = body::required("body", self.body, self.body_base64)?;
        let envelope = Envelope {
            id: self.id,
            queue: self.queue,
            content_type: ContentType::parse(&self.content_type)?,
            headers: self.headers.into_headers()?,
            ordering_key: key("ordering key", self.ordering_key)?,
            dedup_key: key("dedup key", self.dedup_key)?,
            priority: Priority::new(self.priority)?,
            expires_at: self.expires_at,
            receive_count: self.receive_count,
            attempts_count: self.attempts_count,
            enqueued_at: self.enqueued_at,
            first_attempt_at: self.first_attempt_at,
            lease_expires_at: self.lease_expires_at,
        };
        Ok((body, envelope, self.receipt))
    }
}

/// What a receive brought.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ReceivedMessages {
    /// The messages.
    pub messages: Vec<Received>,
}

/// What `POST /v1/receive` did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SettledAndReceived {
    /// What became of each settlement.
    #[serde(default)]
    pub settled: Vec<Row>,
    /// The new messages.
    #[serde(default)]
    pub messages: Vec<Received>,
    /// Why there are none. The settlements stand all the same.
    pub receive_problem: Option<Box<Problem>>,
}

#[cfg(test)]
mod tests {
    use postrider_core::{Headers, Key, LeaseToken, NativeRef};

    use super::*;
    use crate::round_trip::{is_refused, json, over};

    fn delivery(is_full: bool) -> (Bytes, Envelope, ReceiptHandle) {
        let (id, queue) = (MessageId::generate(), QueueName::for_reading("orders_dlq").unwrap());
        let native = NativeRef::Handle(b"anything".as_slice().into());
        let receipt = ReceiptHandle::new("http", queue.clone(), id, LeaseToken::generate(), native);
        let mut headers = Headers::new();
        let key = |text| is_full.then(|| Key::new("key", text).unwrap());
        if is_full {
            headers.insert("tenant", "acme").unwrap();
        }
        let envelope = Envelope {
            id,
            queue,
            content_type: ContentType::JSON,
            headers,
            ordering_key: key("k"),
            dedup_key: key("d"),
            priority: Priority::LOWEST,
            expires_at: is_full.then(|| Timestamp::from_micros(9)),
            receive_count: 2,
            attempts_count: 1,
            enqueued_at: Timestamp::from_micros(1),
            first_attempt_at: Timestamp::from_micros(2),
            lease_expires_at: Timestamp::from_micros(3),
        };
        (Bytes::from_static(if is_full { b"\xff" } else { b"{}" }), envelope, receipt)
    }

    #[test]
    fn deliveries_come_over_whole_and_receipts_unchanged() {
        for is_full in [true, false] {
            let (body, envelope, receipt) = delivery(is_full);
            let received = Received::new(body.clone(), envelope.clone(), receipt.clone());
            assert_eq!(json(&received)["receipt"], receipt.to_string());
            let back = over(&ReceivedMessages { messages: vec![received] }).messages.remove(0);
            assert_eq!(back.into_parts().unwrap(), (body, envelope, receipt));
        }
    }

    #[test]
    fn options_come_over_and_are_filled_up() {
        let options = ReceiveOptions::batch(7).visibility(Duration::from_millis(1)).wait(LONGEST_WAIT);
        let defaults = ReceiveOptions::default().wait(Duration::MAX).max_receive_count(9);
        assert_eq!(over(&ReceiveRequest::from(&options)).options(&defaults).unwrap(), options);
        let queues = vec![QueueName::new("a").unwrap()];
        let both = SettleAndReceiveRequest::new(queues, &options);
        assert_eq!(over(&both), both);
        assert_eq!(both.options(&defaults).unwrap(), options);
        let empty: ReceiveRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(empty.options(&defaults).unwrap(), defaults.clone().wait(LONGEST_WAIT));
        let patient: ReceiveRequest = serde_json::from_str(r#"{"wait":"61s"}"#).unwrap();
        assert!(patient.options(&defaults).is_err());
        assert!(is_refused::<ReceiveRequest>(r#"{"visibilty":"5s"}"#));
        assert!(is_refused::<SettleAndReceiveRequest>(r#"{"queues":["a"],"queue":"b"}"#));
    }

    #[test]
    fn an_answer_with_more_in_it_is_read() {
        let answer = r#"{"settled":[],"messages":[],"receive_problem":null,"news":1}"#;
        assert!(serde_json::from_str::<SettledAndReceived>(answer).unwrap().receive_problem.is_none());
    }
}
