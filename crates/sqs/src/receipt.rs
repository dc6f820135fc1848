//! The content of a receipt.

use postrider_core::{LeaseToken, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle, Timestamp};
use uuid::Uuid;

use crate::PROVIDER;
use crate::names::Side;

/// Version of the format.
const VERSION: u8 = 2;

/// Previous version, without the time at which the end was set. It is read and no longer issued.
const PREVIOUS_VERSION: u8 = 1;

/// The lease that a receipt names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceiptContent {
    /// The side of the queue with the message.
    pub(crate) side: Side,
    /// When the lease ends unless it is extended, by SQS's clock.
    pub(crate) ends_at: Timestamp,
    /// When that end was set, by the receive or by an extension. Of two receipts of a lease the later one is valid.
    pub(crate) set_at: Timestamp,
    /// SQS's own receipt.
    pub(crate) receipt: String,
}

impl ReceiptContent {
    fn native(&self) -> Box<[u8]> {
        let mut bytes = vec![VERSION, u8::from(self.side == Side::Fifo)];
        bytes.extend(self.ends_at.as_micros().to_be_bytes());
        bytes.extend(self.set_at.as_micros().to_be_bytes());
        bytes.extend(self.receipt.as_bytes());
        bytes.into()
    }

    /// Returns the receipt of a message.
    pub(crate) fn issue(&self, queue: &QueueName, id: MessageId) -> ReceiptHandle {
        let native = NativeRef::Handle(self.native());
        ReceiptHandle::new(PROVIDER, queue.clone(), id, self.token(queue, id), native)
    }

    /// Returns the lease token, derived from everything but the end of the lease: receipts of an extended lease share it, and
    /// another message, queue or delivery has another one.
    fn token(&self, queue: &QueueName, id: MessageId) -> LeaseToken {
        let mut all = id.as_uuid().as_bytes().to_vec();
        all.extend(queue.as_str().as_bytes());
        all.extend([0, VERSION, u8::from(self.side == Side::Fifo)]);
        all.extend(self.receipt.as_bytes());
        LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).as_u128())
    }

    /// Reads a receipt, and refuses one that was not issued here.
    pub(crate) fn read(handle: &ReceiptHandle) -> Result<Self, MessagingError> {
        handle.check_provider(PROVIDER)?;
        let NativeRef::Handle(native) = handle.native() else {
            return Err(MessagingError::invalid_receipt("it names a database row, and this is a receipt of SQS"));
        };
        let content = Self::decode(native).ok_or_else(|| {
            MessagingError::invalid_receipt("its version is not supported; use the program that issued it")
        })?;
        let (queue, id) = (handle.queue(), handle.message_id());
        let token = match native.first() {
            Some(&PREVIOUS_VERSION) => previous_token(queue, id, native),
            _ => content.token(queue, id),
        };
        if handle.token() != token {
            return Err(MessagingError::invalid_receipt("its token does not match its content"));
        }
        Ok(content)
    }

    fn decode(native: &[u8]) -> Option<Self> {
        let ([version, side], rest) = native.split_first_chunk::<2>()?;
        let (ends_at, rest) = rest.split_first_chunk::<8>()?;
        let (set_at, receipt) = match *version {
            VERSION => rest.split_first_chunk::<8>()?,
            // Every other receipt of the lease is later.
            PREVIOUS_VERSION => (&[0; 8], rest),
            _ => return None,
        };
        let time = |bytes: &[u8; 8]| Timestamp::from_micros(i64::from_be_bytes(*bytes));
        Some(Self {
            side: if *side == 1 { Side::Fifo } else { Side::Standard },
            ends_at: time(ends_at),
            set_at: time(set_at),
            receipt: String::from_utf8(receipt.to_vec()).ok()?,
        })
    }
}

/// The token of a receipt of the previous version, derived from its whole content.
fn previous_token(queue: &QueueName, id: MessageId, native: &[u8]) -> LeaseToken {
    let mut all = id.as_uuid().as_bytes().to_vec();
    all.extend(queue.as_str().as_bytes());
    all.push(0);
    all.extend(native);
    LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receipt of the previous version for a message of the queue `q`.
    const PREVIOUS: &str = "pr1.A3NxcwFxAYkKXayWd0u8zrMCCZqAVwRXG3I_1lFCtWKWkf5LPngBAQEAAAAAAAAATUFRRUIvKz0D0KqP";

    #[test]
    fn a_receipt_of_the_previous_version_is_read() {
        let handle: ReceiptHandle = PREVIOUS.parse().unwrap();
        let at = Timestamp::from_micros;
        let content =
            ReceiptContent { side: Side::Fifo, ends_at: at(77), set_at: Timestamp::EPOCH, receipt: "AQEB/+=".into() };
        assert_eq!(ReceiptContent::read(&handle).unwrap(), content);
        let other = LeaseToken(handle.token().0 ^ 1);
        let made_up =
            ReceiptHandle::new(PROVIDER, handle.queue().clone(), handle.message_id(), other, handle.native().clone());
        assert!(ReceiptContent::read(&made_up).is_err());
    }

    #[test]
    fn a_receipt_survives_a_round_trip_and_names_one_delivery() {
        let queue = QueueName::new("q").unwrap();
        for side in [Side::Standard, Side::Fifo] {
            let at = Timestamp::from_micros;
            let content = ReceiptContent { side, ends_at: at(77), set_at: at(7), receipt: "AQEB/+=".into() };
            let handle = content.issue(&queue, MessageId::generate());
            let text = handle.to_string();
            assert_eq!(ReceiptContent::read(&text.parse().unwrap()).unwrap(), content);
            let other = QueueName::new("other").unwrap();
            let moved =
                ReceiptHandle::new(PROVIDER, other, handle.message_id(), handle.token(), handle.native().clone());
            assert!(ReceiptContent::read(&moved).is_err());
            let extended = ReceiptContent { ends_at: at(777), set_at: at(70), ..content.clone() };
            let goes_on = extended.issue(&queue, handle.message_id());
            assert_eq!(ReceiptContent::read(&goes_on).unwrap(), extended);
            assert_eq!(goes_on.token(), handle.token(), "it is the same lease");
            let again = ReceiptContent { receipt: "AQEC".into(), ..content };
            assert_ne!(again.issue(&queue, handle.message_id()).token(), handle.token(), "it is another delivery");
        }
    }
}
