//! Receipts that leave the process.
//!
//! A store's own receipt may be made of a row's number and a count that anybody could guess. What a server hands out is
//! that receipt with a mark that only servers of the same state can make: whoever shows it was given it. It names its
//! queue in the open, so that a token's limits can be checked before anything else.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, Mac};
use postrider::task::TaskLease;
use postrider::{LeaseToken, MessagingError, NativeRef, ReceiptHandle, TaskId, TaskType};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The kind of provider that receipts of a server are of.
const PROVIDER: &str = "http";

const LEASE_PREFIX: &str = "prl1.";

/// What marks receipts, and knows its own marks.
pub(crate) struct Seal {
    key: [u8; 32],
}

impl Seal {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    fn mark(&self, what: &[u8], text: &[u8]) -> [u8; 16] {
        // A key of any length is taken, so this cannot fail; a seal without a key would be no seal.
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.key).unwrap_or_else(|_| unreachable!("any length"));
        mac.update(what);
        mac.update(text);
        let mut mark = [0; 16];
        mark.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        mark
    }

    /// The receipt that a client is given. It carries how often a handler has failed on the message, so that a client
    /// which leaves the delay of a retry to the server is backed off like any other.
    pub(crate) fn seal(&self, own: &ReceiptHandle, attempts_count: u32) -> ReceiptHandle {
        let mut bytes = attempts_count.to_be_bytes().to_vec();
        bytes.extend_from_slice(own.to_string().as_bytes());
        let token = LeaseToken(u128::from_be_bytes(self.mark(b"receipt", &bytes)));
        let native = NativeRef::Handle(bytes.into_boxed_slice());
        ReceiptHandle::new(PROVIDER, own.queue().clone(), own.message_id(), token, native)
    }

    /// The store's receipt in one that a client showed, and how often a handler had failed before.
    pub(crate) fn open(&self, shown: &ReceiptHandle) -> Result<(ReceiptHandle, u32), MessagingError> {
        shown.check_provider(PROVIDER)?;
        let foreign = || MessagingError::invalid_receipt("it was not issued by this server");
        let NativeRef::Handle(bytes) = shown.native() else { return Err(foreign()) };
        let mark = self.mark(b"receipt", bytes);
        if !bool::from(mark.ct_eq(&shown.token().0.to_be_bytes())) {
            return Err(foreign());
        }
        let (attempts, text) = bytes.split_first_chunk::<4>().ok_or_else(foreign)?;
        let own: ReceiptHandle = std::str::from_utf8(text).map_err(|_| foreign())?.parse()?;
        // The mark is of the inner receipt alone; what stands in the open must say the same.
        if own.queue() != shown.queue() || own.message_id() != shown.message_id() {
            return Err(foreign());
        }
        Ok((own, u32::from_be_bytes(*attempts)))
    }

    /// The lease on a task as a client is given it.
    pub(crate) fn seal_lease(&self, lease: &TaskLease, task_type: &TaskType) -> String {
        let mut bytes = Vec::with_capacity(48 + task_type.as_str().len());
        bytes.extend_from_slice(lease.id.as_uuid().as_bytes());
        bytes.extend_from_slice(&lease.token.to_be_bytes());
        bytes.extend_from_slice(task_type.as_str().as_bytes());
        let mark = self.mark(b"lease", &bytes);
        bytes.extend_from_slice(&mark);
        format!("{LEASE_PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }

    /// The lease in what a client showed, and the type of its task.
    pub(crate) fn open_lease(&self, shown: &str) -> Result<(TaskLease, TaskType), MessagingError> {
        let foreign = || MessagingError::invalid("lease", "it was not issued by this server; use it as it was given");
        let encoded = shown.trim().strip_prefix(LEASE_PREFIX).ok_or_else(foreign)?;
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_| foreign())?;
        let (fields, mark) = bytes.split_last_chunk::<16>().ok_or_else(foreign)?;
        if !bool::from(self.mark(b"lease", fields).ct_eq(mark)) {
            return Err(foreign());
        }
        let (id, rest) = fields.split_first_chunk::<16>().ok_or_else(foreign)?;
        let (token, name) = rest.split_first_chunk::<8>().ok_or_else(foreign)?;
        let task_type = TaskType::new(std::str::from_utf8(name).map_err(|_| foreign())?)?;
        let id = TaskId::from_uuid(uuid::Uuid::from_bytes(*id));
        Ok((TaskLease { id, token: i64::from_be_bytes(*token) }, task_type))
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use postrider::{MessageId, QueueName};

    use super::*;

    fn receipt(queue: &str, row: u64) -> ReceiptHandle {
        let queue = QueueName::new(queue).unwrap();
        ReceiptHandle::new("sqlite", queue, MessageId::generate(), LeaseToken(7), NativeRef::Row(row))
    }

    #[test]
    fn what_was_sealed_opens_and_nothing_else_does() {
        let (seal, other) = (Seal::new([1; 32]), Seal::new([2; 32]));
        let own = receipt("orders", 3);
        let shown: ReceiptHandle = seal.seal(&own, 5).to_string().parse().unwrap();
        assert_eq!(shown.queue().as_str(), "orders");
        assert_eq!(seal.open(&shown).unwrap(), (own.clone(), 5));
        assert!(other.open(&shown).is_err(), "of another server");
        assert!(seal.open(&own).is_err(), "the store's own receipt is worth nothing here");

        // The inner receipt of another queue under the mark of this one, and the other way around.
        let elsewhere = receipt("mail", 4);
        let NativeRef::Handle(inner) = seal.seal(&elsewhere, 0).native().clone() else { panic!() };
        let spliced = ReceiptHandle::new(
            "http",
            own.queue().clone(),
            own.message_id(),
            shown.token(),
            NativeRef::Handle(inner.clone()),
        );
        assert!(seal.open(&spliced).is_err());
        let renamed = ReceiptHandle::new(
            "http",
            own.queue().clone(),
            elsewhere.message_id(),
            seal.seal(&elsewhere, 0).token(),
            NativeRef::Handle(inner),
        );
        assert!(seal.open(&renamed).is_err(), "the queue in the open is not the one that the receipt is for");
    }

    #[test]
    fn a_lease_on_a_task_is_sealed_with_its_type() {
        let seal = Seal::new([1; 32]);
        let (lease, kind) = (TaskLease { id: TaskId::generate(), token: -5 }, TaskType::new("mail.send").unwrap());
        let shown = seal.seal_lease(&lease, &kind);
        assert_eq!(seal.open_lease(&shown).unwrap(), (lease, kind));
        for at in LEASE_PREFIX.len()..shown.len() {
            let mut bytes = shown.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert!(seal.open_lease(&String::from_utf8(bytes).unwrap()).is_err(), "flipped at {at}");
        }
        for made_up in ["", "prl1.", "prl1.AAAA", "1.2"] {
            assert!(seal.open_lease(made_up).is_err());
        }
    }
}
