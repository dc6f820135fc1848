//! What a receipt of ours says.

use postrider_core::{LeaseToken, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle, Timestamp};
use uuid::Uuid;

use crate::PROVIDER;
use crate::names::Side;

/// The version of what stands in a receipt.
const VERSION: u8 = 1;

/// A lease, as its receipt names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Which side of its queue the message is on.
    pub(crate) side: Side,
    /// When the lease ends unless it is extended, by SQS's clock.
    pub(crate) ends_at: Timestamp,
    /// SQS's own receipt.
    pub(crate) receipt: String,
}

impl Ticket {
    fn native(&self) -> Box<[u8]> {
        let mut bytes = vec![VERSION, u8::from(self.side == Side::Fifo)];
        bytes.extend(self.ends_at.as_micros().to_be_bytes());
        bytes.extend(self.receipt.as_bytes());
        bytes.into()
    }

    /// The receipt of a message. Its token is derived from all that it says: whoever changes something in it has none.
    pub(crate) fn issue(&self, queue: &QueueName, id: MessageId) -> ReceiptHandle {
        let native = self.native();
        let token = token(queue, id, &native);
        ReceiptHandle::new(PROVIDER, queue.clone(), id, token, NativeRef::Handle(native))
    }

    /// Reads a receipt, and refuses one that nobody issued.
    pub(crate) fn read(handle: &ReceiptHandle) -> Result<Self, MessagingError> {
        handle.check_provider(PROVIDER)?;
        let NativeRef::Handle(native) = handle.native() else {
            return Err(MessagingError::invalid_receipt("it names a row, and SQS has none"));
        };
        if handle.token() != token(handle.queue(), handle.message_id(), native) {
            return Err(MessagingError::invalid_receipt("it was not issued like this"));
        }
        Self::decode(native).ok_or_else(|| MessagingError::invalid_receipt("it is of a version that is not known here"))
    }

    fn decode(native: &[u8]) -> Option<Self> {
        let ([version, side], rest) = native.split_first_chunk::<2>()?;
        let (ends_at, receipt) = rest.split_first_chunk::<8>()?;
        (*version == VERSION).then_some(Self {
            side: if *side == 1 { Side::Fifo } else { Side::Standard },
            ends_at: Timestamp::from_micros(i64::from_be_bytes(*ends_at)),
            receipt: String::from_utf8(receipt.to_vec()).ok()?,
        })
    }
}

fn token(queue: &QueueName, id: MessageId, native: &[u8]) -> LeaseToken {
    let mut all = id.as_uuid().as_bytes().to_vec();
    all.extend(queue.as_str().as_bytes());
    all.push(0);
    all.extend(native);
    LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_says_where_the_message_is_and_when_its_lease_ends() {
        let queue = QueueName::new("q").unwrap();
        for side in [Side::Standard, Side::Fifo] {
            let ticket = Ticket { side, ends_at: Timestamp::from_micros(77), receipt: "AQEB/+=".into() };
            let handle = ticket.issue(&queue, MessageId::generate());
            let text = handle.to_string();
            assert_eq!(Ticket::read(&text.parse().unwrap()).unwrap(), ticket);
            let other = QueueName::new("other").unwrap();
            let moved =
                ReceiptHandle::new(PROVIDER, other, handle.message_id(), handle.token(), handle.native().clone());
            assert!(Ticket::read(&moved).is_err());
        }
    }
}
