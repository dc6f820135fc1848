//! Receipts: proof of a lease.
//!
//! A receipt names provider, queue, message and lease token, so that a settle can be checked against all of them. It is
//! valid as long as its lease. If the store tracks the end of a lease itself, the receipt stays valid after an extend;
//! otherwise an extend returns a new receipt with the same token. As text a receipt is one shell word: `pr1.`, then the
//! fields and their checksum in unpadded base64url.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::error::MessagingError;
use crate::id::MessageId;
use crate::queue_name::QueueName;

const PREFIX: &str = "pr1.";

/// The unique value that names a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken(pub u128);

impl LeaseToken {
    /// Generates a unique token.
    pub fn generate() -> Self {
        Self(Uuid::new_v4().as_u128())
    }
}

/// The store's own reference to a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NativeRef {
    /// A row number.
    Row(u64),
    /// A handle that only the store interprets.
    Handle(Box<[u8]>),
}

/// A receipt: settles a received message or extends its lease.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ReceiptHandle {
    provider: Cow<'static, str>,
    queue: QueueName,
    message_id: MessageId,
    token: LeaseToken,
    native: NativeRef,
}

impl ReceiptHandle {
    /// Creates a receipt. For providers.
    pub fn new(
        provider: &'static str,
        queue: QueueName,
        message_id: MessageId,
        token: LeaseToken,
        native: NativeRef,
    ) -> Self {
        Self { provider: Cow::Borrowed(provider), queue, message_id, token, native }
    }

    /// The provider that issued it.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The queue that the message was received from.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The id of the message.
    pub fn message_id(&self) -> MessageId {
        self.message_id
    }

    /// The token of the lease.
    pub fn token(&self) -> LeaseToken {
        self.token
    }

    /// The store's own reference to the message.
    pub fn native(&self) -> &NativeRef {
        &self.native
    }

    /// The row number, if the provider's receipts name rows.
    pub fn row(&self) -> Result<u64, MessagingError> {
        match &self.native {
            NativeRef::Row(row) => Ok(*row),
            NativeRef::Handle(_) => Err(MessagingError::invalid_receipt("it names no row of this store")),
        }
    }

    /// Refuses a receipt of another provider.
    pub fn check_provider(&self, provider: &str) -> Result<(), MessagingError> {
        if self.provider != provider {
            return Err(MessagingError::invalid_receipt(format!(
                "it was issued by '{}', this is '{provider}'",
                self.provider.escape_debug()
            )));
        }
        Ok(())
    }

    /// Refuses a receipt of another queue.
    pub fn check_queue(&self, queue: &QueueName) -> Result<(), MessagingError> {
        if self.queue != *queue {
            return Err(MessagingError::invalid_receipt(format!(
                "it is for a message of queue '{}', not '{queue}'",
                self.queue
            )));
        }
        Ok(())
    }

    /// The error for a receipt whose lease has ended.
    pub fn expired(&self) -> MessagingError {
        MessagingError::VisibilityExpired { queue: self.queue.clone(), id: self.message_id }
    }

    /// The error for a message that an open transaction has.
    pub fn taken(&self) -> MessagingError {
        MessagingError::MessageLeased { queue: self.queue.clone(), id: self.message_id }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(96);
        put_slice(&mut bytes, self.provider.as_bytes());
        put_slice(&mut bytes, self.queue.as_str().as_bytes());
        bytes.extend_from_slice(self.message_id.as_uuid().as_bytes());
        bytes.extend_from_slice(&self.token.0.to_be_bytes());
        match &self.native {
            NativeRef::Row(row) => {
                bytes.push(0);
                bytes.extend_from_slice(&row.to_be_bytes());
            }
            NativeRef::Handle(handle) => {
                bytes.push(1);
                bytes.extend_from_slice(handle);
            }
        }
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (fields, checksum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(fields) != u32::from_be_bytes(*checksum) {
            return None;
        }
        let mut rest = fields;
        let provider = Cow::Owned(std::str::from_utf8(take_slice(&mut rest)?).ok()?.to_owned());
        let queue = QueueName::for_reading(std::str::from_utf8(take_slice(&mut rest)?).ok()?).ok()?;
        let message_id = MessageId::from_uuid(Uuid::from_bytes(take(&mut rest)?));
        let token = LeaseToken(u128::from_be_bytes(take(&mut rest)?));
        let native = match (take::<1>(&mut rest)?, rest) {
            ([0], row) => NativeRef::Row(u64::from_be_bytes(row.try_into().ok()?)),
            ([1], handle) => NativeRef::Handle(handle.into()),
            _ => return None,
        };
        Some(Self { provider, queue, message_id, token, native })
    }
}

/// Writes one length byte, then the bytes. Names of providers and queues are much shorter than 256 bytes.
fn put_slice(bytes: &mut Vec<u8>, slice: &[u8]) {
    let length = u8::try_from(slice.len()).unwrap_or(u8::MAX);
    bytes.push(length);
    bytes.extend_from_slice(&slice[..usize::from(length)]);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

fn take_slice<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let [length] = take::<1>(rest)?;
    let (taken, left) = rest.split_at_checked(usize::from(length))?;
    *rest = left;
    Some(taken)
}

impl fmt::Display for ReceiptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64URL_NOPAD.encode_display(&self.encode()))
    }
}

impl fmt::Debug for ReceiptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptHandle")
            .field("provider", &self.provider)
            .field("queue", &self.queue)
            .field("message_id", &self.message_id)
            .field("token", &format_args!("{:032x}", self.token.0))
            .finish_non_exhaustive()
    }
}

impl FromStr for ReceiptHandle {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Text from a file or a pipe ends with a line break.
        let Some(encoded) = text.trim().strip_prefix(PREFIX) else {
            return Err(MessagingError::invalid_receipt(format!("it does not begin with '{PREFIX}'")));
        };
        BASE64URL_NOPAD
            .decode(encoded.as_bytes())
            .ok()
            .and_then(|bytes| Self::decode(&bytes))
            .ok_or_else(|| MessagingError::invalid_receipt("it is damaged or incomplete"))
    }
}

impl Serialize for ReceiptHandle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReceiptHandle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(native: NativeRef) -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new("memory", queue, MessageId::generate(), LeaseToken::generate(), native)
    }

    #[test]
    fn a_receipt_is_one_shell_word_and_round_trips() {
        for native in [NativeRef::Row(u64::MAX), NativeRef::Handle([7; 300].into()), NativeRef::Handle([].into())] {
            let receipt = receipt(native);
            let text = receipt.to_string();
            assert!(text.starts_with("pr1."));
            assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{text}");
            assert_eq!(text.parse::<ReceiptHandle>().unwrap(), receipt);
            assert_eq!(format!("{text}\n").parse::<ReceiptHandle>().unwrap(), receipt);
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_character_is_refused() {
        let text = receipt(NativeRef::Row(7)).to_string();
        for end in 0..text.len() {
            assert!(text[..end].parse::<ReceiptHandle>().is_err(), "cut at {end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let damaged = String::from_utf8(bytes).unwrap();
            assert!(damaged.parse::<ReceiptHandle>().is_err(), "flipped at {at}");
        }
        for made_up in ["", "pr1.", "pr2.AAAA", "pr1.====", "42", "pr1.YWJj"] {
            assert!(made_up.parse::<ReceiptHandle>().is_err(), "{made_up}");
        }
    }
}
