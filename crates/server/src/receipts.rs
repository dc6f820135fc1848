//! Receipts, leases and cursors as clients see them.
//!
//! A store's own receipt may consist of a row number and a count that can be guessed. The server hands out that receipt
//! with a MAC that only servers on the same state can compute, so a valid one was issued to a client. The queue is in
//! plain text, so that the limits of a token are checked first.

use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, Mac};
use postrider::provider::NativeRef;
use postrider::task::TaskLease;
use postrider::{MessagingError, ReceiptHandle, TaskId, TaskType, Timestamp};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::access::Caller;

/// Provider name in receipts of a server.
const PROVIDER: &str = "http";

const LEASE_PREFIX: &str = "prl1.";

const CURSOR_PREFIX: &str = "prc1.";

/// Block length to which cursors are padded.
const CURSOR_BLOCK: usize = 64;

/// End of a cursor's text before the padding. It does not occur in UTF-8.
const END: u8 = 0xff;

/// The content of a client's receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The store's receipt.
    pub(crate) own: ReceiptHandle,
    /// Failed attempts before this delivery.
    pub(crate) attempts_count: u32,
    /// The worker that received the message.
    pub(crate) worker: Option<Arc<str>>,
}

/// The content of a client's task lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpenedLease {
    pub(crate) lease: TaskLease,
    pub(crate) task_type: TaskType,
    /// When the task was claimed.
    pub(crate) began: Option<Timestamp>,
}

/// Signs and verifies receipts, and encrypts cursors.
pub(crate) struct Seal {
    key: [u8; 32],
}

impl Seal {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    fn code(&self, what: &[u8], text: &[u8]) -> [u8; 32] {
        // HMAC accepts keys of any length, so this cannot fail.
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.key).unwrap_or_else(|_| unreachable!("any length"));
        mac.update(what);
        mac.update(text);
        mac.finalize().into_bytes().into()
    }

    fn mark(&self, what: &[u8], text: &[u8]) -> [u8; 16] {
        let mut mark = [0; 16];
        mark.copy_from_slice(&self.code(what, text)[..16]);
        mark
    }

    /// Encrypts a store's cursor for callers that may not see every row: it can be a row number, which would reveal how
    /// many hidden rows there are. The MAC is the nonce, so equal cursors have equal texts; all have the same length.
    pub(crate) fn hide_cursor(&self, listing: &str, cursor: &str) -> String {
        let mut text = cursor.as_bytes().to_vec();
        text.push(END);
        text.resize(text.len().next_multiple_of(CURSOR_BLOCK), 0);
        let mark = self.mark(format!("cursor of {listing}:").as_bytes(), &text);
        self.encrypt(&mark, &mut text);
        format!("{CURSOR_PREFIX}{}", BASE64URL_NOPAD.encode(&[&mark[..], &text].concat()))
    }

    /// Returns the store's cursor in a hidden one.
    pub(crate) fn read_cursor(&self, listing: &str, shown: &str) -> Result<String, MessagingError> {
        let foreign = || MessagingError::invalid_cursor(shown);
        let encoded = shown.strip_prefix(CURSOR_PREFIX).ok_or_else(foreign)?;
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_| foreign())?;
        let (mark, text) = bytes.split_first_chunk::<16>().ok_or_else(foreign)?;
        let mut text = text.to_vec();
        self.encrypt(mark, &mut text);
        if !bool::from(self.mark(format!("cursor of {listing}:").as_bytes(), &text).ct_eq(mark)) {
            return Err(foreign());
        }
        let end = text.iter().rposition(|byte| *byte == END).ok_or_else(foreign)?;
        text.truncate(end);
        String::from_utf8(text).map_err(|_| foreign())
    }

    /// Returns a cursor as the caller may see it: hidden if the token is limited to queues.
    pub(crate) fn visible_cursor(&self, caller: &Caller, listing: &str, cursor: String) -> String {
        if caller.queues.is_some() { self.hide_cursor(listing, &cursor) } else { cursor }
    }

    /// Returns the store's cursor in the one that a caller passed.
    pub(crate) fn store_cursor(
        &self,
        caller: &Caller,
        listing: &str,
        shown: Option<&str>,
    ) -> Result<Option<String>, MessagingError> {
        let read = |shown: &str| match caller.queues.is_some() {
            true => self.read_cursor(listing, shown),
            false => Ok(shown.to_owned()),
        };
        shown.map(read).transpose()
    }

    /// Encrypts or decrypts by XOR with a key stream derived from the MAC.
    fn encrypt(&self, mark: &[u8; 16], text: &mut [u8]) {
        for (number, block) in text.chunks_mut(32).enumerate() {
            let stream = self.code(b"stream", &[&mark[..], &(number as u64).to_be_bytes()].concat());
            block.iter_mut().zip(stream).for_each(|(byte, over)| *byte ^= over);
        }
    }

    /// Returns the receipt for a client. It carries the count of failed attempts, from which the server computes the
    /// backoff of a retry without a delay, and the worker, to which a failed attempt is attributed. Its lease token is
    /// the store's: receipts of one lease have the same token.
    pub(crate) fn seal(&self, own: &ReceiptHandle, attempts_count: u32, worker: &str) -> ReceiptHandle {
        let mut sealed = attempts_count.to_be_bytes().to_vec();
        // Neither the receipt's text nor the worker's name contains a line break.
        sealed.extend_from_slice(format!("{own}\n{worker}").as_bytes());
        let mut bytes = self.mark(b"receipt", &sealed).to_vec();
        bytes.append(&mut sealed);
        let native = NativeRef::Handle(bytes.into_boxed_slice());
        ReceiptHandle::new(PROVIDER, own.queue().clone(), own.message_id(), own.token(), native)
    }

    /// Verifies a client's receipt and returns its content.
    pub(crate) fn open(&self, shown: &ReceiptHandle) -> Result<Opened, MessagingError> {
        shown.check_provider(PROVIDER)?;
        let foreign = || MessagingError::invalid_receipt("it was not issued by this server");
        let NativeRef::Handle(bytes) = shown.native() else { return Err(foreign()) };
        let is_mark = |mark: &[u8], sealed: &[u8]| bool::from(self.mark(b"receipt", sealed).ct_eq(mark));
        let (sealed, token) = match bytes.split_first_chunk::<16>() {
            Some((mark, sealed)) if is_mark(mark, sealed) => (sealed, Some(shown.token())),
            // Receipts of the previous version have the MAC as their token.
            _ if is_mark(&shown.token().0.to_be_bytes(), bytes) => (&bytes[..], None),
            _ => return Err(foreign()),
        };
        let (attempts, text) = sealed.split_first_chunk::<4>().ok_or_else(foreign)?;
        let text = std::str::from_utf8(text).map_err(|_| foreign())?;
        // Receipts of older versions name no worker.
        let (own, worker) = text.split_once('\n').unwrap_or((text, ""));
        let worker = (!worker.is_empty()).then(|| worker.into());
        let own: ReceiptHandle = own.parse()?;
        // The MAC covers the inner receipt only, so the plain fields must equal it.
        let is_same = (own.queue(), own.message_id()) == (shown.queue(), shown.message_id());
        if !is_same || token.is_some_and(|token| token != own.token()) {
            return Err(foreign());
        }
        Ok(Opened { own, attempts_count: u32::from_be_bytes(*attempts), worker })
    }

    /// Returns the task lease for a client. It carries the time of the claim, from which the duration of the attempt is
    /// computed.
    pub(crate) fn seal_lease(&self, lease: &TaskLease, task_type: &TaskType) -> String {
        let mut bytes = Vec::with_capacity(64 + task_type.as_str().len());
        bytes.extend_from_slice(lease.id.as_uuid().as_bytes());
        bytes.extend_from_slice(&lease.token.to_be_bytes());
        bytes.extend_from_slice(format!("{task_type}\n{}", Timestamp::now().as_micros()).as_bytes());
        let mark = self.mark(b"lease", &bytes);
        bytes.extend_from_slice(&mark);
        format!("{LEASE_PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }

    /// Verifies a client's task lease and returns its content.
    pub(crate) fn open_lease(&self, shown: &str) -> Result<OpenedLease, MessagingError> {
        let foreign = || MessagingError::invalid("lease", "it was not issued by this server; use it as it was given");
        let encoded = shown.trim().strip_prefix(LEASE_PREFIX).ok_or_else(foreign)?;
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_| foreign())?;
        let (fields, mark) = bytes.split_last_chunk::<16>().ok_or_else(foreign)?;
        if !bool::from(self.mark(b"lease", fields).ct_eq(mark)) {
            return Err(foreign());
        }
        let (id, rest) = fields.split_first_chunk::<16>().ok_or_else(foreign)?;
        let (token, name) = rest.split_first_chunk::<8>().ok_or_else(foreign)?;
        let text = std::str::from_utf8(name).map_err(|_| foreign())?;
        let (name, began) = text.split_once('\n').map_or((text, None), |(name, began)| (name, began.parse().ok()));
        let id = TaskId::from_uuid(uuid::Uuid::from_bytes(*id));
        Ok(OpenedLease {
            lease: TaskLease { id, token: i64::from_be_bytes(*token) },
            task_type: TaskType::new(name)?,
            began: began.map(Timestamp::from_micros),
        })
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use postrider::provider::LeaseToken;
    use postrider::{MessageId, QueueName};

    use super::*;

    fn receipt(queue: &str, row: u64) -> ReceiptHandle {
        let queue = QueueName::new(queue).unwrap();
        ReceiptHandle::new("sqlite", queue, MessageId::generate(), LeaseToken(7), NativeRef::Row(row))
    }

    #[test]
    fn only_sealed_receipts_open() {
        let (seal, other) = (Seal::new([1; 32]), Seal::new([2; 32]));
        let own = receipt("orders", 3);
        let shown: ReceiptHandle = seal.seal(&own, 5, "host:7").to_string().parse().unwrap();
        assert_eq!(shown.queue().as_str(), "orders");
        assert_eq!(
            seal.open(&shown).unwrap(),
            Opened { own: own.clone(), attempts_count: 5, worker: Some("host:7".into()) }
        );
        assert!(other.open(&shown).is_err(), "of another server");
        assert!(seal.open(&own).is_err(), "the store's own receipt is worth nothing here");

        // The inner receipt of another queue with the plain fields of this one, and the other way around.
        let elsewhere = receipt("mail", 4);
        let NativeRef::Handle(inner) = seal.seal(&elsewhere, 0, "w").native().clone() else { panic!() };
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
            seal.seal(&elsewhere, 0, "w").token(),
            NativeRef::Handle(inner),
        );
        assert!(seal.open(&renamed).is_err(), "the plain queue is not the sealed one");
    }

    #[test]
    fn a_receipt_of_the_previous_version_opens() {
        // Sealed with the key [1; 32]: row 3, after five failed attempts.
        let text = "pr1.BGh0dHAGb3JkZXJzAZAWPYaUc5uupZZsJvitkUkUqcqrTE_F4DEyqMRS3k0BAAAABXByMS5Cbk54YkdsMFpRWnZjbVJsY25N\
                          QmtCWTlocFJ6bTY2bGxtd20tSzJSQUFBQUFBQUFBQUFBQUFBQUFBQUFCd0FBQUFBQUFBQUFBeVNmbC1jcYq3aw";
        let (seal, shown) = (Seal::new([1; 32]), text.parse::<ReceiptHandle>().unwrap());
        let id = "0190163d-8694-739b-aea5-966c26f8ad91".parse().unwrap();
        let own = ReceiptHandle::new("sqlite", shown.queue().clone(), id, LeaseToken(7), NativeRef::Row(3));
        assert_eq!(seal.open(&shown).unwrap(), Opened { own: own.clone(), attempts_count: 5, worker: None });
        assert!(Seal::new([2; 32]).open(&shown).is_err(), "of another server");
        let with = |queue: &str, token: LeaseToken| {
            let queue = QueueName::new(queue).unwrap();
            ReceiptHandle::new("http", queue, id, token, shown.native().clone())
        };
        assert!(seal.open(&with("mail", shown.token())).is_err(), "the plain queue is another");
        assert!(seal.open(&with("orders", own.token())).is_err(), "without its MAC");
    }

    #[test]
    fn a_hidden_cursor_reveals_nothing_and_is_read_back() {
        let seal = Seal::new([1; 32]);
        let hidden: Vec<_> = ["1", "2", "1000000000", ""].map(|cursor| seal.hide_cursor("tasks", cursor)).into();
        for (cursor, hidden) in ["1", "2", "1000000000", ""].into_iter().zip(&hidden) {
            assert_eq!(seal.read_cursor("tasks", hidden).unwrap(), cursor);
            assert_eq!(hidden.len(), seal.hide_cursor("tasks", "7").len(), "all have the same length");
            assert!(
                seal.read_cursor("letters", hidden).is_err()
                    && Seal::new([2; 32]).read_cursor("tasks", hidden).is_err()
            );
        }
        let alike = hidden[0].bytes().zip(hidden[1].bytes()).skip(CURSOR_PREFIX.len()).filter(|(a, b)| a == b).count();
        assert!(alike < 20, "{hidden:?}");
        let long = "x".repeat(200);
        assert_eq!(seal.read_cursor("tasks", &seal.hide_cursor("tasks", &long)).unwrap(), long);
        for made_up in ["1", "", "prc1.", "prc1.AAAA", &format!("{}A", hidden[0])] {
            assert!(seal.read_cursor("tasks", made_up).is_err(), "{made_up}");
        }
    }

    #[test]
    fn a_lease_on_a_task_is_sealed_with_its_type() {
        let seal = Seal::new([1; 32]);
        let (lease, kind) = (TaskLease { id: TaskId::generate(), token: -5 }, TaskType::new("mail.send").unwrap());
        let shown = seal.seal_lease(&lease, &kind);
        let opened = seal.open_lease(&shown).unwrap();
        assert_eq!((opened.lease, opened.task_type), (lease, kind));
        assert!(Timestamp::now().since(opened.began.unwrap()) < std::time::Duration::from_secs(60));
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
