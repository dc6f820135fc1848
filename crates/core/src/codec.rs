//! Encoding of values as message bodies, above the provider.
//!
//! The wrapper around a value, [`Json`] or [`MsgPack`], selects the codec. A blanket implementation for serde types
//! would forbid all other codecs.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::MessagingError;
use crate::message::ContentType;

/// A value that can be read from a message's body.
pub trait FromBytes: Sized + Send + 'static {
    /// The encoding of the body.
    const CONTENT_TYPE: ContentType;

    /// Decodes the body.
    fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError>;
}

/// A value that can be sent as a message's body, and read from it.
pub trait QueueMessage: FromBytes + Sync {
    /// Encodes the value.
    fn to_bytes(&self) -> Result<Bytes, MessagingError>;
}

/// A value that is encoded as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Json<T>(pub T);

/// A value that is encoded as MessagePack, with field names, so that fields can be added later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MsgPack<T>(pub T);

/// Encodes a value as JSON.
pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, MessagingError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| MessagingError::Serialization { content_type: "JSON", source: Arc::new(error) })
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> QueueMessage for Json<T> {
    fn to_bytes(&self) -> Result<Bytes, MessagingError> {
        to_json(&self.0)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromBytes for Json<T> {
    const CONTENT_TYPE: ContentType = ContentType::JSON;

    fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
        serde_json::from_slice(bytes)
            .map(Self)
            .map_err(|error| MessagingError::Deserialization { content_type: "JSON", source: Arc::new(error) })
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> QueueMessage for MsgPack<T> {
    fn to_bytes(&self) -> Result<Bytes, MessagingError> {
        rmp_serde::to_vec_named(&self.0)
            .map(Bytes::from)
            .map_err(|error| MessagingError::Serialization { content_type: "MessagePack", source: Arc::new(error) })
    }
}

impl<T: DeserializeOwned + Send + 'static> FromBytes for MsgPack<T> {
    const CONTENT_TYPE: ContentType = ContentType::MSGPACK;

    fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
        // A reader shows how many bytes are left after the value.
        let mut rest = bytes;
        let value = rmp_serde::from_read(&mut rest).map_err(|error| MessagingError::Deserialization {
            content_type: "MessagePack",
            source: Arc::new(error),
        })?;
        if !rest.is_empty() {
            let error = std::io::Error::other(format!("{} bytes are left over", rest.len()));
            return Err(MessagingError::Deserialization { content_type: "MessagePack", source: Arc::new(error) });
        }
        Ok(Self(value))
    }
}

/// Bytes are not encoded.
impl QueueMessage for Bytes {
    fn to_bytes(&self) -> Result<Bytes, MessagingError> {
        Ok(self.clone())
    }
}

impl FromBytes for Bytes {
    const CONTENT_TYPE: ContentType = ContentType::OCTET_STREAM;

    fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
        Ok(Self::copy_from_slice(bytes))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::message::Message;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Order {
        id: u64,
        note: Option<String>,
    }

    fn order() -> Order {
        Order { id: 7, note: Some("ä".into()) }
    }

    #[test]
    fn both_codecs_round_trip_and_set_their_content_type() {
        let json = Json(order()).to_bytes().unwrap();
        assert_eq!(Json::<Order>::from_bytes(&json).unwrap().0, order());
        let pack = MsgPack(order()).to_bytes().unwrap();
        assert_eq!(MsgPack::<Order>::from_bytes(&pack).unwrap().0, order());
        assert!(pack.len() < json.len());
        assert_eq!(Message::encode(&Json(order())).unwrap().content_type, ContentType::JSON);
        assert_eq!(Message::encode(&MsgPack(order())).unwrap().content_type, ContentType::MSGPACK);
    }

    #[test]
    fn undecodable_bytes_name_the_error() {
        let error = Json::<Order>::from_bytes(b"{\"id\":").unwrap_err();
        assert!(error.to_string().starts_with("cannot decode the message as JSON: EOF"), "{error}");
        assert!(!error.is_retryable());
        let mut pack = MsgPack(order()).to_bytes().unwrap().to_vec();
        assert!(MsgPack::<Order>::from_bytes(&pack[..3]).is_err());
        pack.push(0);
        assert!(MsgPack::<Order>::from_bytes(&pack).unwrap_err().to_string().contains("left over"));
    }

    #[test]
    fn fields_can_be_added_to_a_messagepack_value() {
        #[derive(Serialize, Deserialize)]
        struct Newer {
            id: u64,
            note: Option<String>,
            extra: u8,
        }
        let newer = MsgPack(Newer { id: 7, note: None, extra: 1 }).to_bytes().unwrap();
        assert_eq!(MsgPack::<Order>::from_bytes(&newer).unwrap().0.id, 7);
    }
}
