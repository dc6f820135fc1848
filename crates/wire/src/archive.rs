//! Completed and purged messages.

use postrider_core::{
    ArchiveCursor, ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, ContentType, MessageId,
    MessagingError, Priority, QueueName, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::HeaderFields;
use super::body::{self, Base64, Text};
use super::message::{header_of, key, text};

/// An archived message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ArchivedMessage"))]
pub struct Archived {
    /// Id of the message.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
    /// `COMPLETED` or `FAILED`.
    pub state: ArchivedState,
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
    /// Number of deliveries.
    pub receive_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// When it ended.
    pub archived_at: Timestamp,
    /// The last known error text.
    pub last_error: Option<String>,
}

impl From<ArchivedMessage> for Archived {
    fn from(message: ArchivedMessage) -> Self {
        let (body, body_base64) = body::split(message.body);
        Self {
            id: message.id,
            queue: message.queue,
            state: message.state,
            body,
            body_base64,
            content_type: message.content_type.as_str().to_owned(),
            headers: message.headers.into(),
            ordering_key: text(message.ordering_key.as_ref()),
            priority: message.priority.get(),
            receive_count: message.deliveries_count,
            attempts_count: message.attempts_count,
            enqueued_at: message.enqueued_at,
            first_attempt_at: message.first_attempt_at,
            last_attempt_at: message.last_attempt_at,
            archived_at: message.archived_at,
            last_error: message.last_error,
        }
    }
}

impl TryFrom<Archived> for ArchivedMessage {
    type Error = MessagingError;

    fn try_from(archived: Archived) -> Result<Self, Self::Error> {
        Ok(Self {
            id: archived.id,
            queue: archived.queue,
            state: archived.state,
            body: body::required("body", archived.body, archived.body_base64)?,
            content_type: ContentType::parse(&archived.content_type)?,
            headers: archived.headers.into_headers()?,
            ordering_key: key("ordering key", archived.ordering_key)?,
            priority: Priority::new(archived.priority)?,
            deliveries_count: archived.receive_count,
            attempts_count: archived.attempts_count,
            enqueued_at: archived.enqueued_at,
            first_attempt_at: archived.first_attempt_at,
            last_attempt_at: archived.last_attempt_at,
            archived_at: archived.archived_at,
            last_error: archived.last_error,
        })
    }
}

/// `GET /v1/queues/{queue}/archive`, newest end first. A page may be short or empty and still have a next one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ArchivedMessages {
    /// The messages.
    pub messages: Vec<Archived>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

impl From<ArchivePage> for ArchivedMessages {
    fn from(page: ArchivePage) -> Self {
        let next = page.next.map(|ArchiveCursor(cursor)| cursor);
        Self { messages: page.messages.into_iter().map(Archived::from).collect(), next }
    }
}

impl TryFrom<ArchivedMessages> for ArchivePage {
    type Error = MessagingError;

    fn try_from(page: ArchivedMessages) -> Result<Self, Self::Error> {
        let messages = page.messages.into_iter().map(ArchivedMessage::try_from).collect::<Result<_, _>>()?;
        Ok(Self { messages, next: page.next.map(ArchiveCursor) })
    }
}

/// The query parameters of `GET /v1/queues/{queue}/archive`, as names and values.
pub fn parameters(query: &ArchiveQuery) -> Vec<(&'static str, String)> {
    let ArchiveQuery { filter, limit, after } = query;
    let ArchiveFilter { id, ordering_key, header, since, until, state } = filter;
    let written = [
        ("id", id.map(|id| id.to_string())),
        ("key", text(ordering_key.as_ref())),
        ("header", header.as_ref().map(|(name, value)| format!("{name}={value}"))),
        ("since", since.map(|time| time.to_string())),
        ("until", until.map(|time| time.to_string())),
        ("state", state.map(|state| state.to_string())),
        ("limit", Some(limit.to_string())),
        ("after", after.as_ref().map(|ArchiveCursor(cursor)| cursor.clone())),
    ];
    written.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Reads a filter from query parameters; `value` returns the value of a parameter, if present.
pub fn filter<'v, E: From<MessagingError>>(
    value: impl Fn(&'static str) -> Result<Option<&'v str>, E>,
) -> Result<ArchiveFilter, E> {
    let time = |name: &'static str| {
        let time = value(name)?.map(|text| text.parse().map_err(|why: String| MessagingError::invalid(name, why)));
        Ok::<Option<Timestamp>, E>(time.transpose()?)
    };
    let id = value("id")?.map(|text| {
        text.parse().map_err(|_| MessagingError::invalid("id", format!("'{}' is no UUID", text.escape_debug())))
    });
    let header = value("header")?.map(header_of);
    Ok(ArchiveFilter {
        id: id.transpose()?,
        ordering_key: key("ordering key", value("key")?.map(str::to_owned))?,
        header: header.transpose()?,
        since: time("since")?,
        until: time("until")?,
        state: value("state")?.map(str::parse).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use postrider_core::{Headers, Key};

    use super::*;
    use crate::testing::round_trip;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + micros)
    }

    #[test]
    fn archived_messages_round_trip() {
        let mut headers = Headers::new();
        headers.insert("tenant", "acme").unwrap();
        let full = ArchivedMessage {
            id: MessageId::generate(),
            queue: QueueName::new("orders").unwrap(),
            state: ArchivedState::Failed,
            body: (&b"\xff\x00"[..]).into(),
            content_type: ContentType::from_static("image/png"),
            headers,
            ordering_key: Some(Key::new("ordering key", "k").unwrap()),
            priority: Priority::HIGHEST,
            deliveries_count: 3,
            attempts_count: 2,
            enqueued_at: at(1),
            first_attempt_at: Some(at(2)),
            last_attempt_at: Some(at(3)),
            archived_at: at(4),
            last_error: Some("no".into()),
        };
        let bare = ArchivedMessage {
            state: ArchivedState::Completed,
            body: "text".into(),
            ordering_key: None,
            first_attempt_at: None,
            last_attempt_at: None,
            last_error: None,
            ..full.clone()
        };
        let page = ArchivePage { messages: vec![full, bare], next: Some(ArchiveCursor("1.2".into())) };
        assert_eq!(ArchivePage::try_from(round_trip(&ArchivedMessages::from(page.clone()))).unwrap(), page);
    }

    #[test]
    fn filters_round_trip_as_parameters() {
        let filter_of = |parameters: &[(&'static str, String)]| {
            let value = |name: &'static str| {
                let found = parameters.iter().find(|(own, _)| *own == name);
                Ok::<_, MessagingError>(found.map(|(_, value)| value.as_str()))
            };
            filter(value)
        };
        let full = ArchiveFilter {
            id: Some(MessageId::generate()),
            ordering_key: Some(Key::new("ordering key", "k").unwrap()),
            header: Some(("tenant".into(), "a=b".into())),
            since: Some(at(1)),
            until: Some(at(2)),
            state: Some(ArchivedState::Completed),
        };
        for wanted in [ArchiveFilter::default(), full] {
            let query = ArchiveQuery { filter: wanted.clone(), ..ArchiveQuery::default() };
            assert_eq!(filter_of(&parameters(&query)).unwrap(), wanted);
        }
        for (name, value) in
            [("id", "7"), ("key", "\n"), ("header", "tenant"), ("since", "yesterday"), ("state", "PENDING")]
        {
            assert!(filter_of(&[(name, value.to_owned())]).is_err(), "{name}={value}");
        }
    }
}
