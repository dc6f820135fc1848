//! Messages that are sent, peeked or acted on while they wait.

use std::time::Duration;

use postrider_core::{
    ContentType, Expiry, Headers, Key, LiveState, Message, MessageId, MessagingError, PeekedMessage, Priority,
    QueueName, State, Timestamp, WaitingFilter, WaitingState, duration_text,
};
use serde::{Deserialize, Serialize};

use super::HeaderFields;
use super::body::{self, Base64, Text};
use super::object;
use super::problem::Problem;

/// A message to be sent: `POST /v1/queues/{queue}/messages`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = [{ "required": ["body"] }, { "required": ["body_base64"] }]))
)]
#[serde(default, deny_unknown_fields)]
pub struct NewMessage {
    /// Its id; the server generates one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// The body, as text or as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// The body, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// Content type of the body; if absent, `application/json` for a body written as JSON, else
    /// `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub content_type: Option<String>,
    /// Its headers.
    #[serde(skip_serializing_if = "HeaderFields::is_empty")]
    pub headers: HeaderFields,
    /// Messages with the same key are handled one at a time, in send order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub ordering_key: Option<String>,
    /// While a message with this key lives, a second send returns its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub dedup_key: Option<String>,
    /// 0 to 9.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: Option<u8>,
    /// Delay between send and due.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Time between send and expiry.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl From<Message> for NewMessage {
    fn from(message: Message) -> Self {
        let (body, body_base64) = body::split(message.body);
        let (expires_in, expires_at) = match message.expires {
            Some(Expiry::In(lifetime)) => (Some(lifetime), None),
            Some(Expiry::At(time)) => (None, Some(time)),
            None => (None, None),
        };
        Self {
            id: Some(message.id),
            body,
            body_base64,
            content_type: (message.content_type != ContentType::OCTET_STREAM)
                .then(|| message.content_type.as_str().to_owned()),
            headers: message.headers.into(),
            ordering_key: text(message.ordering_key.as_ref()),
            dedup_key: text(message.dedup_key.as_ref()),
            priority: (message.priority != Priority::default()).then(|| message.priority.get()),
            delay: Some(message.delay).filter(|delay| !delay.is_zero()),
            expires_in,
            expires_at,
        }
    }
}

impl TryFrom<NewMessage> for Message {
    type Error = MessagingError;

    fn try_from(new: NewMessage) -> Result<Self, Self::Error> {
        let is_json = new.body.as_ref().is_some_and(Text::is_json);
        let mut message = Self::new(body::required("body", new.body, new.body_base64)?);
        if let Some(id) = new.id {
            message.id = id;
        }
        if let Some(content_type) = &new.content_type {
            message.content_type = ContentType::parse(content_type)?;
        } else if is_json {
            message.content_type = ContentType::JSON;
        }
        message.headers = new.headers.into_headers()?;
        message.ordering_key = key("ordering key", new.ordering_key)?;
        message.dedup_key = key("dedup key", new.dedup_key)?;
        message.priority = priority(new.priority)?;
        message.delay = new.delay.unwrap_or_default();
        message.expires = match (new.expires_in, new.expires_at) {
            (Some(_), Some(_)) => {
                return Err(MessagingError::invalid(
                    "expiry",
                    "both expires_in and expires_at are set; send one of them",
                ));
            }
            (Some(lifetime), None) => Some(Expiry::In(lifetime)),
            (None, time) => time.map(Expiry::At),
        };
        Ok(message)
    }
}

/// Messages to be sent: `POST /v1/queues/{queue}/messages/batch`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendBatchRequest {
    /// The messages, in send order.
    #[serde(deserialize_with = "object::list")]
    pub messages: Vec<NewMessage>,
}

/// A message was sent and is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sent {
    /// Its id, or that of the message that has its dedup key.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
}

/// Results of a batch, in the order of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SentBatch {
    /// One row each.
    pub results: Vec<SentRow>,
}

/// Result for one message of a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SentRow {
    /// Its id, or that of the message that has its dedup key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Why it was not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl From<Result<MessageId, MessagingError>> for SentRow {
    fn from(result: Result<MessageId, MessagingError>) -> Self {
        match result {
            Ok(id) => Self { id: Some(id), problem: None },
            Err(error) => Self { id: None, problem: Some(Box::new(Problem::of(&error))) },
        }
    }
}

impl SentRow {
    /// Result of the row; `None` if the row has neither a result nor a problem.
    pub fn into_result(self, provider: &'static str) -> Option<Result<MessageId, MessagingError>> {
        match self.problem {
            Some(problem) => Some(Err(problem.into_error(provider))),
            None => self.id.map(Ok),
        }
    }
}

/// A peeked message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "PeekedMessage"))]
pub struct Peeked {
    /// Its id.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
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
    pub ordering_key: Option<String>,
    /// Its priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// `PENDING`, `PROCESSING` or `RETRYABLE`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["PENDING", "PROCESSING", "RETRYABLE"])))]
    pub state: String,
    /// Number of deliveries.
    pub receive_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it can next be received.
    pub next_attempt_at: Timestamp,
    /// The last known error text.
    pub last_error: Option<String>,
}

impl Peeked {
    /// A message of `queue`.
    pub fn new(queue: QueueName, message: PeekedMessage) -> Self {
        let (body, body_base64) = body::split(message.body);
        Self {
            id: message.id,
            queue,
            body,
            body_base64,
            content_type: message.content_type.as_str().to_owned(),
            headers: message.headers.into(),
            ordering_key: text(message.ordering_key.as_ref()),
            priority: message.priority.get(),
            state: State::from(message.state).as_str().to_owned(),
            receive_count: message.deliveries_count,
            attempts_count: message.attempts_count,
            enqueued_at: message.enqueued_at,
            next_attempt_at: message.next_attempt_at,
            last_error: message.last_error,
        }
    }
}

impl TryFrom<Peeked> for PeekedMessage {
    type Error = MessagingError;

    fn try_from(peeked: Peeked) -> Result<Self, Self::Error> {
        let states = [LiveState::Pending, LiveState::Processing, LiveState::Retryable];
        let state = states.into_iter().find(|state| State::from(*state).as_str() == peeked.state).ok_or_else(|| {
            let why = format!(
                "'{}' is not a state of a live message; use PENDING, PROCESSING or RETRYABLE",
                peeked.state.escape_debug()
            );
            MessagingError::invalid("state", why)
        })?;
        Ok(Self {
            id: peeked.id,
            body: body::required("body", peeked.body, peeked.body_base64)?,
            content_type: ContentType::parse(&peeked.content_type)?,
            headers: peeked.headers.into_headers()?,
            ordering_key: key("ordering key", peeked.ordering_key)?,
            priority: Priority::new(peeked.priority)?,
            state,
            deliveries_count: peeked.receive_count,
            attempts_count: peeked.attempts_count,
            enqueued_at: peeked.enqueued_at,
            next_attempt_at: peeked.next_attempt_at,
            last_error: peeked.last_error,
        })
    }
}

/// `GET /v1/queues/{queue}/messages`, in send order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PeekedMessages {
    /// The messages.
    pub messages: Vec<Peeked>,
    /// Cursor of the next page; none on the last page and on stores that do not page.
    #[serde(default)]
    pub next: Option<String>,
}

/// The query of `GET /v1/queues/{queue}/messages`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeekQuery {
    /// Page size; 50 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// `POST /v1/queues/{queue}/messages/{id}/dead-letter`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Death"))]
#[serde(deny_unknown_fields)]
pub struct DeathRequest {
    /// Reason.
    pub reason: String,
    /// Error text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `POST /v1/queues/{queue}/messages/deliver-now-job`, `…/dead-letter-job` and `…/delete-job`: a filter of waiting
/// messages, and what to do with them. An empty filter chooses all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BulkMessages {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["ready", "delayed"])))]
    pub state: Option<WaitingState>,
    /// With this ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// With this header, as name=value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Accepted by the store at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Accepted by the store before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<MessageId>>,
    /// Reason, when they are dead-lettered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Maximum rate, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub rate: Option<f64>,
    /// Only count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl BulkMessages {
    /// The filter; matches all messages if `ids` is set.
    pub fn filter(&self) -> Result<WaitingFilter, MessagingError> {
        let filter = WaitingFilter {
            state: self.state,
            ordering_key: self.key.clone(),
            header: self.header.as_deref().map(header_of).transpose()?,
            since: self.since,
            before: self.before,
        };
        if self.ids.is_some() && filter != WaitingFilter::default() {
            return Err(MessagingError::invalid("choice", "`ids` cannot be combined with other filters"));
        }
        filter.check_action()?;
        Ok(filter)
    }
}

/// Result of a dry run of a job on waiting messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChosenMessages {
    /// Number of chosen messages.
    pub messages: u64,
    /// Number of given ids that are leased or do not exist.
    pub skipped: u64,
    /// Whether all messages of the queue were examined; else only the oldest were, and the job is limited to them.
    pub complete: bool,
    /// Whether nothing was changed because the request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Splits name=value.
pub fn header_of(text: &str) -> Result<(String, String), MessagingError> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(MessagingError::invalid("header", "write it as name=value")),
    }
}

/// Reads a filter from query parameters; `value` returns the value of a parameter, if present.
pub fn waiting_filter<'v, E: From<MessagingError>>(
    value: impl Fn(&'static str) -> Result<Option<&'v str>, E>,
) -> Result<WaitingFilter, E> {
    let time = |name: &'static str| {
        let time = value(name)?.map(|text| text.parse().map_err(|why: String| MessagingError::invalid(name, why)));
        Ok::<Option<Timestamp>, E>(time.transpose()?)
    };
    Ok(WaitingFilter {
        state: value("state")?.map(str::parse).transpose()?,
        ordering_key: value("key")?.map(str::to_owned),
        header: value("header")?.map(header_of).transpose()?,
        since: time("since")?,
        before: time("before")?,
    })
}

/// A failed attempt of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageAttempt {
    /// Its number; 1 is the first.
    pub attempt: u32,
    /// When it started, if recorded.
    pub started_at: Option<Timestamp>,
    /// When it failed.
    pub failed_at: Timestamp,
    /// Name of the worker.
    pub worker: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

impl From<postrider_core::MessageAttempt> for MessageAttempt {
    fn from(attempt: postrider_core::MessageAttempt) -> Self {
        let postrider_core::MessageAttempt { attempt, started_at, failed_at, worker, error } = attempt;
        Self { attempt, started_at, failed_at, worker, error }
    }
}

impl From<MessageAttempt> for postrider_core::MessageAttempt {
    fn from(attempt: MessageAttempt) -> Self {
        let MessageAttempt { attempt, started_at, failed_at, worker, error } = attempt;
        Self { attempt, started_at, failed_at, worker, error }
    }
}

/// `GET /v1/queues/{queue}/messages/{id}/attempts`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageAttempts {
    /// The attempts.
    pub attempts: Vec<MessageAttempt>,
}

pub(super) fn text(key: Option<&Key>) -> Option<String> {
    key.map(|key| key.as_str().to_owned())
}

pub(super) fn key(what: &'static str, text: Option<String>) -> Result<Option<Key>, MessagingError> {
    text.map(|text| Key::new(what, &text)).transpose()
}

pub(super) fn priority(number: Option<u8>) -> Result<Priority, MessagingError> {
    number.map_or_else(|| Ok(Priority::default()), Priority::new)
}

/// The new headers of an edit, if any.
pub(super) fn headers(fields: Option<HeaderFields>) -> Result<Option<Headers>, MessagingError> {
    fields.map(HeaderFields::into_headers).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn full() -> Message {
        Message::new(&b"\xff\x00"[..])
            .content_type(ContentType::from_static("image/png"))
            .header("tenant", "acme")
            .unwrap()
            .ordering_key("k")
            .unwrap()
            .dedup_key("d")
            .unwrap()
            .priority(Priority::HIGHEST)
            .delay(Duration::from_micros(1_500_001))
    }

    #[test]
    fn messages_round_trip() {
        let at = Timestamp::from_micros(1_700_000_000_123_456);
        let plain = Message::new("hello");
        for message in [plain.clone(), full(), full().expires_in(Duration::from_nanos(7)), full().expires_at(at)] {
            assert_eq!(Message::try_from(round_trip(&NewMessage::from(message.clone()))).unwrap(), message);
        }
        let id = plain.id;
        assert_eq!(json(&NewMessage::from(plain)), serde_json::json!({"id": id, "body": "hello"}));
    }

    #[test]
    fn unknown_fields_fail_the_request_and_bad_values_their_message() {
        assert!(is_refused::<NewMessage>(r#"{"body":"a","dealy":"5s"}"#));
        assert!(is_refused::<NewMessage>(r#"{"body":"a","delay":"soon"}"#));
        assert!(is_refused::<NewMessage>(r#"{"body":"a","id":"7"}"#));
        assert!(is_refused::<SendBatchRequest>(r#"{"messages":[],"more":1}"#));
        for bad in [
            r#"{}"#,
            r#"{"body":"a","body_base64":"YQ=="}"#,
            r#"{"body":"a","priority":10}"#,
            r#"{"body":"a","ordering_key":""}"#,
            r#"{"body":"a","headers":{"postrider-x":"1"}}"#,
            r#"{"body":"a","content_type":"a\nb"}"#,
            r#"{"body":"a","expires_in":"5s","expires_at":"2030-01-01T00:00:00Z"}"#,
        ] {
            let new: NewMessage = serde_json::from_str(bad).unwrap();
            assert!(matches!(Message::try_from(new), Err(MessagingError::InvalidInput { .. })), "{bad}");
        }
    }

    #[test]
    fn peeked_messages_round_trip() {
        let message = full();
        for state in [LiveState::Pending, LiveState::Processing, LiveState::Retryable] {
            let peeked = PeekedMessage {
                id: message.id,
                body: message.body.clone(),
                content_type: message.content_type.clone(),
                headers: message.headers.clone(),
                ordering_key: message.ordering_key.clone(),
                priority: message.priority,
                state,
                deliveries_count: 2,
                attempts_count: 1,
                enqueued_at: Timestamp::from_micros(1),
                next_attempt_at: Timestamp::from_micros(2),
                last_error: Some("no".into()),
            };
            let queue = QueueName::new("orders").unwrap();
            let page = PeekedMessages { messages: vec![Peeked::new(queue, peeked.clone())], next: None };
            let back = round_trip(&page).messages.remove(0);
            assert_eq!(PeekedMessage::try_from(back).unwrap(), peeked);
        }
    }

    #[test]
    fn rows_have_an_id_or_a_problem() {
        let id = MessageId::generate();
        let rows = SentBatch {
            results: vec![SentRow::from(Ok(id)), SentRow::from(Err(MessagingError::invalid("body", "too long")))],
        };
        let mut rows = round_trip(&rows).results.into_iter().map(|row| row.into_result("http").unwrap());
        assert_eq!(rows.next().unwrap().unwrap(), id);
        assert!(matches!(rows.next(), Some(Err(MessagingError::InvalidInput { what: "body", .. }))));
        assert!(SentRow { id: None, problem: None }.into_result("http").is_none());
    }
}
