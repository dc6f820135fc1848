//! The leases of this process, over all its connections.
//!
//! The lease at SQS is its receipt, which fences late settlements only sometimes: SQS accepts an expired receipt until the
//! message is received again, and some emulators even after that. So every lease is also tracked here, by this host's
//! monotonic clock, and no call is made with one that has ended. A receipt can be used on any connection of the process,
//! so the table is global.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::{LeaseToken, MessagingError, ReceiptHandle, Timestamp};
use tokio::time::Instant;

use crate::receipt::ReceiptContent;

static LEASES: LazyLock<Mutex<Leases>> = LazyLock::new(Mutex::default);

/// Margin by which a lease of another process is shortened: both hosts compare their clocks with SQS's, which has whole
/// seconds.
const MARGIN_ELSEWHERE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Leases {
    all: HashMap<LeaseToken, Lease>,
    /// Number of leases at which forgotten ones are removed next.
    next_cleanup: usize,
}

#[derive(Debug)]
struct Lease {
    /// URL of the SQS queue.
    url: String,
    ends: Instant,
    /// When that end was set, by SQS's clock: a receipt that was issued later overrides it.
    set_at: Timestamp,
    /// Latest time at which a receipt of this lease can look valid.
    forget_at: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Received by this process, with a call made at `asked`.
    Here { stored: Box<Stored>, asked: Instant },
    /// Received by another process, and extended by this one.
    Elsewhere,
    /// Settled or released.
    Ended,
}

/// A lease that is valid now.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// The message; `None` when another process received it.
    pub(crate) stored: Option<Stored>,
    /// When the receive call was made; `None` when another process made it.
    pub(crate) asked: Option<Instant>,
    /// When the lease ends.
    pub(crate) ends: Instant,
}

impl Held {
    /// Returns the remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

/// The time until which an SQS receipt may be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    /// The lease, which may be extended or settled meanwhile; `None` for a receipt that only one call uses.
    token: Option<LeaseToken>,
    ends: Instant,
}

impl Fence {
    /// The fence of a lease.
    pub(crate) fn of(handle: &ReceiptHandle, ends: Instant) -> Self {
        Self { token: Some(handle.token()), ends }
    }

    /// The fence of a receipt that only one call uses.
    pub(crate) fn at(ends: Instant) -> Self {
        Self { token: None, ends }
    }

    /// Whether the receipt must not be used any more.
    pub(crate) fn has_ended(&self) -> bool {
        let now = Instant::now();
        let known = self.token.and_then(|token| lock().all.get(&token).map(|lease| lease.has_ended(now)));
        known.unwrap_or(self.ends <= now)
    }
}

impl Lease {
    /// Applies an extension by another process, which a later receipt contains.
    fn apply(&mut self, content: &ReceiptContent, now: Timestamp) {
        if content.set_at > self.set_at {
            self.set_at = content.set_at;
            self.ends = Instant::now() + left_elsewhere(content, now);
            self.forget_at = self.forget_at.max(self.ends + MARGIN_ELSEWHERE);
        }
    }

    fn has_ended(&self, now: Instant) -> bool {
        self.ends <= now || matches!(self.state, State::Ended)
    }
}

fn lock() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the margin by which a lease is shortened for network delay, because it is unknown when in a long poll SQS
/// delivered the message. `took` is the duration of the call, and `wait` SQS's wait for a message: the rest was spent on the
/// network, perhaps all of it by the answer.
pub(crate) fn margin(visibility: Duration, took: Duration, wait: Duration) -> Duration {
    let in_a_poll = took.min(visibility / 10).min(Duration::from_secs(1));
    took.saturating_sub(wait).max(in_a_poll)
}

/// Adds the lease of a receipt: for a message of the queue with this URL, received with a call made at `asked`, until
/// `ends`.
pub(crate) fn add(
    handle: &ReceiptHandle,
    content: &ReceiptContent,
    url: &str,
    stored: Stored,
    asked: Instant,
    ends: Instant,
) {
    let mut leases = lock();
    let now = Instant::now();
    if leases.all.len() >= leases.next_cleanup {
        leases.all.retain(|_, lease| lease.forget_at > now);
        leases.next_cleanup = (leases.all.len() * 2).max(1024);
    }
    let state = State::Here { stored: Box::new(stored), asked };
    let lease = Lease { url: url.to_owned(), ends, set_at: content.set_at, forget_at: ends, state };
    leases.all.insert(handle.token(), lease);
}

/// Returns the lease of a receipt if it is valid. `now` is SQS's time, which decides about a receipt of another process.
pub(crate) fn check(handle: &ReceiptHandle, content: &ReceiptContent, now: Timestamp) -> Result<Held, MessagingError> {
    match lock().all.get_mut(&handle.token()) {
        Some(lease) => {
            lease.apply(content, now);
            let ends = lease.ends;
            match &lease.state {
                _ if lease.has_ended(Instant::now()) => Err(handle.expired()),
                State::Here { stored, asked } => {
                    Ok(Held { stored: Some((**stored).clone()), asked: Some(*asked), ends })
                }
                State::Elsewhere | State::Ended => Ok(Held { stored: None, asked: None, ends }),
            }
        }
        None => {
            let left = left_elsewhere(content, now);
            match left.is_zero() {
                true => Err(handle.expired()),
                false => Ok(Held { stored: None, asked: None, ends: Instant::now() + left }),
            }
        }
    }
}

/// Remaining time of a lease of which only the receipt is known.
fn left_elsewhere(content: &ReceiptContent, now: Timestamp) -> Duration {
    content.ends_at.since(now).saturating_sub(MARGIN_ELSEWHERE)
}

/// Sets a new end of a lease. Returns the receipt with the new end, which is valid in every process.
pub(crate) fn extended(
    handle: &ReceiptHandle,
    content: &ReceiptContent,
    ends: Instant,
    now: Timestamp,
) -> ReceiptHandle {
    let mut leases = lock();
    let lease = leases.all.entry(handle.token()).or_insert_with(|| lease_elsewhere(content, State::Elsewhere, now));
    // Strictly later, also for two extensions at the same moment.
    let set_at = now.max(lease.set_at.saturating_add(Duration::from_micros(1)));
    (lease.ends, lease.set_at) = (ends, set_at);
    lease.forget_at = lease.forget_at.max(ends);
    let ends_at = now.saturating_add(ends.saturating_duration_since(Instant::now()));
    ReceiptContent { ends_at, set_at, ..content.clone() }.issue(handle.queue(), handle.message_id())
}

/// A lease of another process, remembered until the end in its receipt.
fn lease_elsewhere(content: &ReceiptContent, state: State, now: Timestamp) -> Lease {
    let ends = Instant::now() + content.ends_at.since(now) + MARGIN_ELSEWHERE;
    Lease { url: String::new(), ends, set_at: content.set_at, forget_at: ends, state }
}

/// Ends a lease. The end is remembered until the end in its receipt.
pub(crate) fn end(handle: &ReceiptHandle, content: &ReceiptContent, now: Timestamp) {
    let mut leases = lock();
    let lease = leases.all.entry(handle.token()).or_insert_with(|| lease_elsewhere(content, State::Ended, now));
    lease.state = State::Ended;
}

/// Ends the leases of a deleted queue.
pub(crate) fn queue_deleted(url: &str) {
    lock().all.values_mut().filter(|lease| lease.url == url).for_each(|lease| lease.state = State::Ended);
}

/// Returns the leased messages of a queue.
pub(crate) fn leased(url: &str) -> Vec<Stored> {
    let now = Instant::now();
    let leases = lock();
    let valid = leases.all.values().filter(|lease| lease.url == url && lease.ends > now);
    valid
        .filter_map(|lease| match &lease.state {
            State::Here { stored, .. } => Some((**stored).clone()),
            State::Elsewhere | State::Ended => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use postrider_core::{Message, MessageId, QueueName};

    use super::*;
    use crate::names::Side;

    const MINUTE: Duration = Duration::from_secs(60);

    fn lease(ends: Duration) -> (ReceiptHandle, ReceiptContent) {
        let (receipt, ends_at) = (MessageId::generate().to_string(), Timestamp::EPOCH.saturating_add(ends));
        let content = ReceiptContent { side: Side::Standard, ends_at, set_at: Timestamp::EPOCH, receipt };
        (content.issue(&QueueName::new("q").unwrap(), MessageId::generate()), content)
    }

    fn has_ended<T>(answer: Result<T, MessagingError>) -> bool {
        matches!(answer, Err(MessagingError::VisibilityExpired { .. }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_by_time_by_settlement_or_with_its_queue() {
        let stored = Stored::new(&Message::new("x"), Timestamp::EPOCH);
        let url = MessageId::generate().to_string();
        let leased_for = |time| {
            let (handle, content) = lease(time);
            add(&handle, &content, &url, stored.clone(), Instant::now(), Instant::now() + time);
            (handle, content)
        };
        let (handle, content) = leased_for(MINUTE);
        let check = |handle: &ReceiptHandle, content: &ReceiptContent| check(handle, content, Timestamp::EPOCH);
        assert_eq!(check(&handle, &content).unwrap().left(), MINUTE);
        let fence = Fence::of(&handle, Instant::now() + MINUTE);
        extended(&handle, &content, Instant::now() + MINUTE * 3, Timestamp::EPOCH);
        tokio::time::advance(MINUTE * 2).await;
        assert_eq!(check(&handle, &content).unwrap().left(), MINUTE);
        assert!(!fence.has_ended(), "extended meanwhile, it may be used");
        assert_eq!(leased(&url).len(), 1);
        tokio::time::advance(MINUTE).await;
        assert!(has_ended(check(&handle, &content)) && fence.has_ended());
        let (settled, content) = leased_for(MINUTE);
        end(&settled, &content, Timestamp::EPOCH);
        assert!(has_ended(check(&settled, &content)));
        let (deleted, content) = leased_for(MINUTE);
        queue_deleted(&url);
        assert!(has_ended(check(&deleted, &content)) && leased(&url).is_empty());
    }

    #[test]
    fn a_lease_of_another_process_ends_as_its_receipt_says() {
        let (handle, content) = lease(MINUTE);
        let at = |time| Timestamp::EPOCH.saturating_add(time);
        let held = check(&handle, &content, at(MINUTE / 2)).unwrap();
        assert!(held.stored.is_none() && held.asked.is_none());
        assert!(has_ended(check(&handle, &content, at(MINUTE - MARGIN_ELSEWHERE))));
        extended(&handle, &content, Instant::now() + MINUTE * 5, at(MINUTE / 2));
        assert!(check(&handle, &content, at(MINUTE * 2)).is_ok(), "extended here, it is valid here");
        end(&handle, &content, at(MINUTE / 2));
        assert!(has_ended(check(&handle, &content, at(MINUTE / 2))), "settled here, it has ended here");
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_receipt_decides_when_a_lease_ends() {
        let second = Duration::from_secs(1);
        let (handle, content) = lease(MINUTE);
        let at = |time| Timestamp::EPOCH.saturating_add(time);
        let stored = Stored::new(&Message::new("x"), Timestamp::EPOCH);
        add(&handle, &content, "", stored, Instant::now(), Instant::now() + MINUTE);
        let elsewhere = |ends_at, set_at| {
            let content = ReceiptContent { ends_at: at(ends_at), set_at: at(set_at), ..content.clone() };
            (content.issue(handle.queue(), handle.message_id()), content)
        };
        let (longer, longer_ticket) = elsewhere(MINUTE * 3, second * 10);
        let (shorter, shorter_ticket) = elsewhere(MINUTE, second * 20);
        tokio::time::advance(MINUTE * 2).await;
        assert!(has_ended(check(&handle, &content, at(MINUTE * 2))), "this process has not seen the extension");
        let held = check(&longer, &longer_ticket, at(MINUTE * 2)).unwrap();
        assert_eq!(held.left(), MINUTE - MARGIN_ELSEWHERE);
        assert!(held.stored.is_some(), "the message is still stored here");
        assert!(check(&handle, &content, at(MINUTE * 2)).is_ok(), "now it has");
        assert!(has_ended(check(&shorter, &shorter_ticket, at(MINUTE * 2))), "it was shortened after that");
        assert!(has_ended(check(&longer, &longer_ticket, at(MINUTE * 2))));

        let (handle, content) = lease(MINUTE);
        let next = extended(&handle, &content, Instant::now() + MINUTE * 5, Timestamp::EPOCH);
        let next_ticket = ReceiptContent::read(&next).unwrap();
        assert_eq!((next.token(), next_ticket.ends_at), (handle.token(), at(MINUTE * 5)));
        assert!(next_ticket.set_at > content.set_at);
        end(&next, &next_ticket, at(MINUTE));
        assert!(has_ended(check(&handle, &content, Timestamp::EPOCH)), "both receipts belong to one lease");
    }

    #[test]
    fn a_lease_is_shortened_by_the_network_delay_and_not_by_more() {
        let (second, poll) = (Duration::from_secs(1), Duration::from_secs(20));
        assert_eq!(margin(MINUTE, Duration::from_millis(5), poll), Duration::from_millis(5));
        assert_eq!(margin(MINUTE, poll, poll), second);
        assert_eq!(margin(second, poll, poll), Duration::from_millis(100));
        assert_eq!(margin(MINUTE, poll + second * 7, poll), second * 7);
        assert_eq!(
            margin(MINUTE, second * 7, Duration::ZERO),
            second * 7,
            "without a long poll all of it is network delay"
        );
    }
}
