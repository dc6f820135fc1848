//! A message as its sender makes it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::capabilities::Limits;
use crate::clock::Timestamp;
use crate::codec::{self, QueueMessage};
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;

/// The longest delay, lease or lifetime: a hundred years. Longer is a mistake, and would not fit every store.
pub const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

const MAX_KEY: usize = 128;

/// A message to be sent: bytes, and what the law needs to know about them.
///
/// ```
/// use std::time::Duration;
/// use postrider_core::{Message, Priority};
///
/// # fn main() -> Result<(), postrider_core::MessagingError> {
/// let message = Message::new("hello")
///     .header("tenant", "acme")?
///     .ordering_key("customer-7")?
///     .delay(Duration::from_millis(500));
/// assert_eq!(message.priority, Priority::default());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its identity, made by the sender.
    pub id: MessageId,
    /// What it says.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Text beside the body.
    pub headers: Headers,
    /// Messages with the same key are handled one at a time, in send order.
    pub ordering_key: Option<Key>,
    /// While a message with this key lives, a second one is not made.
    pub dedup_key: Option<Key>,
    /// How urgent it is, between keys.
    pub priority: Priority,
    /// How long after the send it may first be received, by the store's clock.
    pub delay: Duration,
    /// When it is too late to handle it, by the store's clock.
    pub expires: Option<Expiry>,
}

impl Message {
    /// A message with a new id and plain bytes for a body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            id: MessageId::generate(),
            body: body.into(),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            dedup_key: None,
            priority: Priority::default(),
            delay: Duration::ZERO,
            expires: None,
        }
    }

    /// A message whose body is `value`, encoded by its own codec.
    pub fn encode<T: QueueMessage>(value: &T) -> Result<Self, MessagingError> {
        let mut message = Self::new(value.to_bytes()?);
        message.content_type = T::CONTENT_TYPE;
        Ok(message)
    }

    /// A message whose body is `value` as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, MessagingError> {
        Ok(Self::new(codec::to_json(value)?).content_type(ContentType::JSON))
    }

    /// With an id that the caller made.
    #[must_use]
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = id;
        self
    }

    /// With a content type.
    #[must_use]
    pub fn content_type(mut self, content_type: ContentType) -> Self {
        self.content_type = content_type;
        self
    }

    /// With one more header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Result<Self, MessagingError> {
        self.headers.insert(name, value)?;
        Ok(self)
    }

    /// Handled after every earlier message with the same key, and before every later one.
    pub fn ordering_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.ordering_key = Some(Key::new("ordering key", key.as_ref())?);
        Ok(self)
    }

    /// Sent only if no message with this key lives.
    pub fn dedup_key(mut self, key: impl AsRef<str>) -> Result<Self, MessagingError> {
        self.dedup_key = Some(Key::new("dedup key", key.as_ref())?);
        Ok(self)
    }

    /// With a priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Not received before that long after the send.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Dead-lettered as `expired` when it has not been handled that long after the send.
    #[must_use]
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.expires = Some(Expiry::In(lifetime));
        self
    }

    /// Dead-lettered as `expired` when it has not been handled by then.
    #[must_use]
    pub fn expires_at(mut self, time: Timestamp) -> Self {
        self.expires = Some(Expiry::At(time));
        self
    }

    /// Whether a store with these limits can take it; the error names the limit that it breaks.
    pub fn check(&self, limits: &Limits) -> Result<(), MessagingError> {
        if self.body.len() > limits.max_body_bytes {
            return Err(MessagingError::invalid(
                "body",
                format!(
                    "message {} has {} bytes, at most {} are allowed by common.messaging.max_message_bytes and by what \
                     the store takes; send a reference to the data instead, or raise it",
                    self.id,
                    self.body.len(),
                    limits.max_body_bytes
                ),
            ));
        }
        let headers = self.headers.byte_len();
        if headers > limits.max_header_bytes {
            return Err(MessagingError::invalid(
                "headers",
                format!(
                    "message {} has {headers} bytes of headers, at most {} are allowed together",
                    self.id, limits.max_header_bytes
                ),
            ));
        }
        check_duration("delay", self.delay, limits.max_delay)?;
        if let Some(Expiry::In(lifetime)) = self.expires {
            check_duration("expiry", lifetime, MAX_DURATION)?;
        }
        Ok(())
    }
}

/// Refuses a duration that is longer than `most`.
pub(crate) fn check_duration(what: &'static str, value: Duration, most: Duration) -> Result<(), MessagingError> {
    if value > most {
        return Err(MessagingError::invalid(
            what,
            format!("{} s is longer than the {} s that are allowed", value.as_secs(), most.as_secs()),
        ));
    }
    Ok(())
}

/// When a message is too late to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// That long after the store accepted it.
    In(Duration),
    /// At that time of the store's clock.
    At(Timestamp),
}

impl Expiry {
    /// The time, for a message that the store accepts at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(lifetime) => now.saturating_add(lifetime),
            Self::At(time) => time,
        }
    }
}

/// An ordering or dedup key: 1 to 128 bytes of text without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks a key; `what` names it in the error.
    pub fn new(what: &'static str, key: &str) -> Result<Self, MessagingError> {
        if key.is_empty() {
            return Err(MessagingError::invalid(what, "it is empty; leave it out instead"));
        }
        if key.len() > MAX_KEY {
            return Err(MessagingError::invalid(
                what,
                format!("it has {} bytes, at most {MAX_KEY} are allowed; use a hash of it", key.len()),
            ));
        }
        if key.chars().any(char::is_control) {
            return Err(MessagingError::invalid(what, format!("'{}' holds a control character", key.escape_debug())));
        }
        Ok(Self(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// 0 to 9, higher is more urgent; 4 unless told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// How many priorities there are.
    pub const COUNT: usize = 10;
    /// The least urgent.
    pub const LOWEST: Self = Self(0);
    /// The most urgent.
    pub const HIGHEST: Self = Self(9);

    /// A priority from 0 to 9.
    pub fn new(priority: u8) -> Result<Self, MessagingError> {
        if usize::from(priority) >= Self::COUNT {
            return Err(MessagingError::invalid("priority", format!("{priority} is not between 0 and 9")));
        }
        Ok(Self(priority))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(4)
    }
}

impl TryFrom<u8> for Priority {
    type Error = MessagingError;

    fn try_from(priority: u8) -> Result<Self, Self::Error> {
        Self::new(priority)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

/// How a body is encoded: a MIME type.
#[derive(Clone)]
pub struct ContentType(Repr);

#[derive(Clone)]
enum Repr {
    Known(&'static str),
    Other(Arc<str>),
}

impl ContentType {
    /// Plain bytes.
    pub const OCTET_STREAM: Self = Self(Repr::Known("application/octet-stream"));
    /// JSON.
    pub const JSON: Self = Self(Repr::Known("application/json"));
    /// MessagePack.
    pub const MSGPACK: Self = Self(Repr::Known("application/msgpack"));

    /// A content type that is known when the program is built.
    pub const fn from_static(name: &'static str) -> Self {
        Self(Repr::Known(name))
    }

    /// A content type that came with a message: at most 128 bytes of visible text.
    pub fn parse(name: &str) -> Result<Self, MessagingError> {
        for known in [Self::OCTET_STREAM, Self::JSON, Self::MSGPACK] {
            if known.as_str() == name {
                return Ok(known);
            }
        }
        if name.is_empty() || name.len() > MAX_KEY || name.chars().any(|c| !(' '..='~').contains(&c)) {
            return Err(MessagingError::invalid("content type", "it must be 1 to 128 printable ASCII characters"));
        }
        Ok(Self(Repr::Other(name.into())))
    }

    /// The MIME type.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Known(name) => name,
            Repr::Other(name) => name,
        }
    }

    /// Whether a body of this type is JSON: `application/json`, with or without parameters.
    pub fn is_json(&self) -> bool {
        let essence = self.as_str().split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case(Self::JSON.as_str())
    }
}

/// By name: whether it was known when the program was built makes no difference.
impl PartialEq for ContentType {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ContentType {}

impl std::hash::Hash for ContentType {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_what_they_refuse() {
        let limits = Limits { max_body_bytes: 3, max_header_bytes: 4, ..Limits::default() };
        assert!(Message::new("abc").check(&limits).is_ok());
        let refused = |message: Message| match message.check(&limits) {
            Err(MessagingError::InvalidInput { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Message::new("abcd")), "body");
        assert_eq!(refused(Message::new("").header("abc", "de").unwrap()), "headers");
        assert_eq!(refused(Message::new("").delay(Duration::MAX)), "delay");
        assert_eq!(refused(Message::new("").expires_in(Duration::MAX)), "expiry");
    }

    #[test]
    fn keys_and_priorities_are_checked() {
        assert!(Message::new("").ordering_key("").is_err());
        assert!(Message::new("").ordering_key("k".repeat(129)).is_err());
        assert!(Message::new("").dedup_key("a\nb").is_err());
        assert!(Priority::new(9).is_ok() && Priority::new(10).is_err());
    }

    #[test]
    fn content_types_compare_by_name() {
        assert_eq!(ContentType::parse("application/json").unwrap(), ContentType::JSON);
        assert_eq!(ContentType::parse("image/png").unwrap(), ContentType::from_static("image/png"));
        assert_ne!(ContentType::parse("image/png").unwrap(), ContentType::from_static("image/gif"));
        assert!(ContentType::parse("text/plain; charset=utf-8").is_ok());
        assert!(ContentType::parse("a\nb").is_err());
    }
}
