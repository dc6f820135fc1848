//! What a receipt of ours says.

use postrider_core::{LeaseToken, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle, Timestamp};
use uuid::Uuid;

use crate::PROVIDER;
use crate::names::Side;

/// The version of what stands in a receipt.
const VERSION: u8 = 2;

/// The version before, which did not say when the end of the lease was set. It is read and no more issued.
const VERSION_BEFORE: u8 = 1;

/// A lease, as its receipt names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Which side of its queue the message is on.
    pub(crate) side: Side,
    /// When the lease ends unless it is extended, by SQS's clock.
    pub(crate) ends_at: Timestamp,
    /// When that end was set: by the receive, or by an extension. Of two receipts of a lease the later one is right.
    pub(crate) set_at: Timestamp,
    /// SQS's own receipt.
    pub(crate) receipt: String,
}

impl Ticket {
    fn native(&self) -> Box<[u8]> {
        let mut bytes = vec![VERSION, u8::from(self.side == Side::Fifo)];
        bytes.extend(self.ends_at.as_micros().to_be_bytes());
        bytes.extend(self.set_at.as_micros().to_be_bytes());
        bytes.extend(self.receipt.as_bytes());
        bytes.into()
    }

    /// The receipt of a message.
    pub(crate) fn issue(&self, queue: &QueueName, id: MessageId) -> ReceiptHandle {
        let native = NativeRef::Handle(self.native());
        ReceiptHandle::new(PROVIDER, queue.clone(), id, self.token(queue, id), native)
    }

    /// The lease's token. It is derived from what a lease is for as long as it lasts, and so not from its end: a receipt
    /// for another message, queue or delivery has another, and those of an extended lease have the same.
    fn token(&self, queue: &QueueName, id: MessageId) -> LeaseToken {
        let mut all = id.as_uuid().as_bytes().to_vec();
        all.extend(queue.as_str().as_bytes());
        all.extend([0, VERSION, u8::from(self.side == Side::Fifo)]);
        all.extend(self.receipt.as_bytes());
        LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).as_u128())
    }

    /// Reads a receipt, and refuses one that nobody issued.
    pub(crate) fn read(handle: &ReceiptHandle) -> Result<Self, MessagingError> {
        handle.check_provider(PROVIDER)?;
        let NativeRef::Handle(native) = handle.native() else {
            return Err(MessagingError::invalid_receipt("it names a row, and SQS has none"));
        };
        let ticket = Self::decode(native)
            .ok_or_else(|| MessagingError::invalid_receipt("it is of a version that is not known here"))?;
        let (queue, id) = (handle.queue(), handle.message_id());
        let token = match native.first() {
            Some(&VERSION_BEFORE) => token_before(queue, id, native),
            _ => ticket.token(queue, id),
        };
        if handle.token() != token {
            return Err(MessagingError::invalid_receipt("it was not issued like this"));
        }
        Ok(ticket)
    }

    fn decode(native: &[u8]) -> Option<Self> {
        let ([version, side], rest) = native.split_first_chunk::<2>()?;
        let (ends_at, rest) = rest.split_first_chunk::<8>()?;
        let (set_at, receipt) = match *version {
            VERSION => rest.split_first_chunk::<8>()?,
            // Any other receipt of its lease was set later.
            VERSION_BEFORE => (&[0; 8], rest),
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

/// The token of a receipt of the version before: derived from all that it says.
fn token_before(queue: &QueueName, id: MessageId, native: &[u8]) -> LeaseToken {
    let mut all = id.as_uuid().as_bytes().to_vec();
    all.extend(queue.as_str().as_bytes());
    all.push(0);
    all.extend(native);
    LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issued by the version before for a message in the queue `q`.
    const BEFORE: &str = "pr1.A3NxcwFxAYkKXayWd0u8zrMCCZqAVwRXG3I_1lFCtWKWkf5LPngBAQEAAAAAAAAATUFRRUIvKz0D0KqP";

    #[test]
    fn a_receipt_of_the_version_before_is_still_read() {
        let handle: ReceiptHandle = BEFORE.parse().unwrap();
        let at = Timestamp::from_micros;
        let ticket = Ticket { side: Side::Fifo, ends_at: at(77), set_at: Timestamp::EPOCH, receipt: "AQEB/+=".into() };
        assert_eq!(Ticket::read(&handle).unwrap(), ticket);
        let other = LeaseToken(handle.token().0 ^ 1);
        let made_up =
            ReceiptHandle::new(PROVIDER, handle.queue().clone(), handle.message_id(), other, handle.native().clone());
        assert!(Ticket::read(&made_up).is_err());
    }

    #[test]
    fn a_receipt_says_where_the_message_is_and_when_its_lease_ends() {
        let queue = QueueName::new("q").unwrap();
        for side in [Side::Standard, Side::Fifo] {
            let at = Timestamp::from_micros;
            let ticket = Ticket { side, ends_at: at(77), set_at: at(7), receipt: "AQEB/+=".into() };
            let handle = ticket.issue(&queue, MessageId::generate());
            let text = handle.to_string();
            assert_eq!(Ticket::read(&text.parse().unwrap()).unwrap(), ticket);
            let other = QueueName::new("other").unwrap();
            let moved =
                ReceiptHandle::new(PROVIDER, other, handle.message_id(), handle.token(), handle.native().clone());
            assert!(Ticket::read(&moved).is_err());
            let extended = Ticket { ends_at: at(777), set_at: at(70), ..ticket.clone() };
            let goes_on = extended.issue(&queue, handle.message_id());
            assert_eq!(Ticket::read(&goes_on).unwrap(), extended);
            assert_eq!(goes_on.token(), handle.token(), "it is the same lease");
            let again = Ticket { receipt: "AQEC".into(), ..ticket };
            assert_ne!(again.issue(&queue, handle.message_id()).token(), handle.token(), "it is another delivery");
        }
    }
}
