//! Receiving messages.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    ContentType, Envelope, MessageId, MessagingError, Priority, QueueName, ReceiptHandle, ReceiveOptions, Timestamp,
    duration_text,
};
use serde::{Deserialize, Serialize};

use super::HeaderFields;
use super::body::{self, Base64, Text};
use super::message::{key, text};
use super::object;
use super::problem::Problem;
use super::settle::{Row, Settlement};

/// Upper bound of the wait of one request. A longer wait takes several requests.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// `POST /v1/queues/{queue}/receive`. Absent fields have the server's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Receive"))]
#[serde(default, deny_unknown_fields)]
pub struct ReceiveRequest {
    /// Maximum number of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max: Option<usize>,
    /// Duration of the leases.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Duration>,
    /// How long to wait for the first message.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub wait: Option<Duration>,
    /// Messages with this many deliveries are dead-lettered instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u32::MAX)))]
    pub max_receive_count: Option<u32>,
    /// Only the message with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Name of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
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
    /// The options of the request; `defaults` fill in absent fields.
    pub fn options(&self, defaults: &ReceiveOptions) -> Result<ReceiveOptions, MessagingError> {
        options(self.max, self.visibility, self.wait, self.max_receive_count, defaults)
    }
}

/// `POST /v1/receive`: settles, then receives from any of the queues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "ReceiveSeveral", extend("required" = ["queues"]))
)]
#[serde(default, deny_unknown_fields)]
pub struct SettleAndReceiveRequest {
    /// The queues.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub queues: Vec<QueueName>,
    /// The settlements, carried out first.
    #[serde(deserialize_with = "object::list", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub settlements: Vec<Settlement>,
    /// Maximum number of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max: Option<usize>,
    /// Duration of the leases.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Duration>,
    /// How long to wait for the first message.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub wait: Option<Duration>,
    /// Messages with this many deliveries are dead-lettered instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u32::MAX)))]
    pub max_receive_count: Option<u32>,
    /// Name of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub worker: Option<String>,
}

impl SettleAndReceiveRequest {
    /// A request with these options and without settlements.
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

    /// The options of the request; `defaults` fill in absent fields.
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
        return Err(MessagingError::invalid("wait", "one request waits for at most 60s; send another one afterwards"));
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReceivedMessage"))]
pub struct Received {
    /// Id of the message.
    pub id: MessageId,
    /// The queue that it was received from.
    pub queue: QueueName,
    /// Its receipt, used to settle it.
    pub receipt: ReceiptHandle,
    /// The body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// The body, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// Content type of the body.
    pub content_type: String,
    /// Its headers.
    #[serde(default)]
    pub headers: HeaderFields,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Its dedup key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// Its priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Number of this delivery; 1 is the first.
    pub receive_count: u32,
    /// Number of earlier failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Timestamp,
    /// When the lease expires unless it is extended.
    pub lease_expires_at: Timestamp,
}

impl Received {
    /// A delivery. `receipt` is passed to the client as it is.
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

    /// Body, envelope and receipt.
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

/// Answer to a receive.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ReceivedMessages {
    /// The messages.
    pub messages: Vec<Received>,
}

/// Answer of `POST /v1/receive`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettledAndReceived {
    /// Results of the settlements.
    #[serde(default)]
    pub settled: Vec<Row>,
    /// The received messages.
    #[serde(default)]
    pub messages: Vec<Received>,
    /// Why the receive failed. The settlements are valid nevertheless.
    pub receive_problem: Option<Box<Problem>>,
}

#[cfg(test)]
mod tests {
    use postrider_core::{Headers, Key, LeaseToken, NativeRef};

    use super::*;
    use crate::testing::{is_refused, json, round_trip};

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
    fn deliveries_and_receipts_round_trip() {
        for is_full in [true, false] {
            let (body, envelope, receipt) = delivery(is_full);
            let received = Received::new(body.clone(), envelope.clone(), receipt.clone());
            assert_eq!(json(&received)["receipt"], receipt.to_string());
            let back = round_trip(&ReceivedMessages { messages: vec![received] }).messages.remove(0);
            assert_eq!(back.into_parts().unwrap(), (body, envelope, receipt));
        }
    }

    #[test]
    fn options_round_trip_and_defaults_fill_in() {
        let options = ReceiveOptions::batch(7).visibility(Duration::from_millis(1)).wait(LONGEST_WAIT);
        let defaults = ReceiveOptions::default().wait(Duration::MAX).max_receive_count(9);
        assert_eq!(round_trip(&ReceiveRequest::from(&options)).options(&defaults).unwrap(), options);
        let queues = vec![QueueName::new("a").unwrap()];
        let both = SettleAndReceiveRequest::new(queues, &options);
        assert_eq!(round_trip(&both), both);
        assert_eq!(both.options(&defaults).unwrap(), options);
        let empty: ReceiveRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(empty.options(&defaults).unwrap(), defaults.clone().wait(LONGEST_WAIT));
        let patient: ReceiveRequest = serde_json::from_str(r#"{"wait":"61s"}"#).unwrap();
        assert!(patient.options(&defaults).is_err());
        assert!(is_refused::<ReceiveRequest>(r#"{"visibilty":"5s"}"#));
        assert!(is_refused::<SettleAndReceiveRequest>(r#"{"queues":["a"],"queue":"b"}"#));
    }

    #[test]
    fn unknown_fields_of_an_answer_are_ignored() {
        let answer = r#"{"settled":[],"messages":[],"receive_problem":null,"news":1}"#;
        assert!(serde_json::from_str::<SettledAndReceived>(answer).unwrap().receive_problem.is_none());
    }
}
