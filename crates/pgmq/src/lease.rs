//! Leases: a receipt names the message, its read and its end.

use std::collections::BTreeMap;

use postrider_core::{LeaseToken, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle, Timestamp};
use postrider_pg::columns::Time;
use postrider_sql::stripes::fnv1a;

use crate::PROVIDER;

/// A lease.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) msg_id: i64,
    pub(crate) read_ct: i32,
    pub(crate) last_read_at: Timestamp,
    /// The end that it was given.
    pub(crate) vt: Timestamp,
}

impl Lease {
    /// Returns the receipt of a lease.
    pub(crate) fn receipt(&self, queue: &QueueName, id: MessageId) -> ReceiptHandle {
        let handle = [self.msg_id.to_be_bytes(), self.vt.as_micros().to_be_bytes()].concat();
        ReceiptHandle::new(PROVIDER, queue.clone(), id, self.token(queue, id), NativeRef::Handle(handle.into()))
    }

    /// Returns the read count and a checksum of the rest of the receipt: messages are numbered from 1 in every queue.
    fn token(&self, queue: &QueueName, id: MessageId) -> LeaseToken {
        let numbers = [self.msg_id.to_be_bytes(), self.vt.as_micros().to_be_bytes()].concat();
        let sum = fnv1a(queue.as_str().as_bytes().iter().chain(&[0]).chain(id.as_uuid().as_bytes()).chain(&numbers));
        let read = u64::from(self.read_ct.cast_unsigned()) << 32 | (sum >> 32);
        LeaseToken(u128::from(self.last_read_at.as_micros().cast_unsigned()) << 64 | u128::from(read))
    }

    /// Reads a receipt of this provider.
    pub(crate) fn read(receipt: &ReceiptHandle) -> Result<Self, MessagingError> {
        receipt.check_provider(PROVIDER)?;
        let lost = || MessagingError::invalid_receipt("it names no message of PGMQ");
        let NativeRef::Handle(handle) = receipt.native() else { return Err(lost()) };
        let (msg_id, vt) = handle.split_first_chunk::<8>().ok_or_else(lost)?;
        let vt: [u8; 8] = vt.try_into().map_err(|_| lost())?;
        let token = receipt.token().0;
        // The upper halves hold these numbers.
        let (last_read_at, read_ct) = ((token >> 64) as u64, (token as u64 >> 32) as u32);
        let lease = Self {
            msg_id: i64::from_be_bytes(*msg_id),
            read_ct: read_ct.cast_signed(),
            last_read_at: Timestamp::from_micros(last_read_at.cast_signed()),
            vt: Timestamp::from_micros(i64::from_be_bytes(vt)),
        };
        if lease.token(receipt.queue(), receipt.message_id()) != receipt.token() {
            return Err(receipt.expired());
        }
        Ok(lease)
    }
}

/// Leases of one queue as the statements take them: one array a column, in the order of the rows, so that two batches
/// cannot deadlock.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    pub(crate) msg_ids: Vec<i64>,
    pub(crate) read_cts: Vec<i32>,
    pub(crate) read_at: Vec<Time>,
    pub(crate) ends: Vec<Time>,
}

impl Leases {
    pub(crate) fn push(&mut self, lease: &Lease) {
        self.msg_ids.push(lease.msg_id);
        self.read_cts.push(lease.read_ct);
        self.read_at.push(Time(lease.last_read_at));
        self.ends.push(Time(lease.vt));
    }
}

/// Returns leases by queue, each in order.
pub(crate) fn by_queue<'r>(receipts: impl Iterator<Item = &'r ReceiptHandle>) -> BTreeMap<QueueName, Leases> {
    let mut read: Vec<(&QueueName, Lease)> =
        receipts.filter_map(|receipt| Some((receipt.queue(), Lease::read(receipt).ok()?))).collect();
    read.sort_by_key(|(_, lease)| lease.msg_id);
    let mut queues: BTreeMap<QueueName, Leases> = BTreeMap::new();
    read.iter().for_each(|(queue, lease)| queues.entry((*queue).clone()).or_default().push(lease));
    queues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_read_back_and_is_valid_for_one_message() {
        let (queue, other) = (QueueName::new("a").unwrap(), QueueName::new("b").unwrap());
        let id = MessageId::generate();
        let (read, end) = (Timestamp::from_micros(-5), Timestamp::from_micros(7));
        let lease = Lease { msg_id: 12, read_ct: 3, last_read_at: read, vt: end };
        let receipt: ReceiptHandle = lease.receipt(&queue, id).to_string().parse().unwrap();
        let found = Lease::read(&receipt).unwrap();
        assert_eq!((found.msg_id, found.read_ct, found.last_read_at, found.vt), (12, 3, read, end));
        let forged =
            |queue: &QueueName, id, native| ReceiptHandle::new(PROVIDER, queue.clone(), id, receipt.token(), native);
        assert!(Lease::read(&forged(&other, id, receipt.native().clone())).is_err());
        assert!(Lease::read(&forged(&queue, MessageId::generate(), receipt.native().clone())).is_err());
        assert!(Lease::read(&forged(&queue, id, NativeRef::Row(12))).is_err());
        assert!(Lease::read(&forged(&queue, id, NativeRef::Handle([0; 16].into()))).is_err());
    }
}
