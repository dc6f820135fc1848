//! The leases of this process, whichever connection they were received on.
//!
//! SQS's receipt is the lease there, and it fences late settles only now and then: a receipt whose time is over is
//! accepted as long as nobody has received the message again, and some that speak its protocol accept it even then. So
//! every lease is watched here as well, by this host's monotonic clock, and nothing is asked of SQS with one that is over.
//! Receipts can be used on any connection of the process, which is why the table is the process's.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::{LeaseToken, MessagingError, ReceiptHandle, Timestamp};
use tokio::time::Instant;

use crate::receipt::Ticket;

static LEASES: LazyLock<Mutex<Leases>> = LazyLock::new(Mutex::default);

/// What a lease that ends elsewhere is shortened by: the clocks of two hosts are both compared with SQS's, which tells
/// whole seconds.
const MARGIN_ELSEWHERE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Leases {
    all: HashMap<LeaseToken, Lease>,
    /// So many leases are looked at for those that are over before the next look.
    next_look: usize,
}

#[derive(Debug)]
struct Lease {
    /// The queue in SQS.
    url: String,
    ends: Instant,
    /// When that end was set, by SQS's clock: a receipt that was issued later knows better.
    set_at: Timestamp,
    /// Until then a receipt can seem to be valid.
    remembered: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Received here, by a call that was made at that moment.
    Ours { stored: Box<Stored>, asked: Instant },
    /// Received by another process, and extended or checked by this one.
    Theirs,
    /// Settled or released.
    Over,
}

/// A lease that is valid now.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// The message; `None` when another process received it.
    pub(crate) stored: Option<Stored>,
    /// When the call was made that brought it; `None` likewise.
    pub(crate) asked: Option<Instant>,
    /// When the lease ends.
    pub(crate) ends: Instant,
}

impl Held {
    /// What is left of the lease.
    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

/// Until when a receipt of SQS's may be sent to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    /// The lease, which may be extended or settled meanwhile.
    token: Option<LeaseToken>,
    ends: Instant,
}

impl Fence {
    /// That of a lease.
    pub(crate) fn of(handle: &ReceiptHandle, ends: Instant) -> Self {
        Self { token: Some(handle.token()), ends }
    }

    /// That of a receipt which only this call has.
    pub(crate) fn at(ends: Instant) -> Self {
        Self { token: None, ends }
    }

    /// Whether it may not be sent any more.
    pub(crate) fn is_over(&self) -> bool {
        let now = Instant::now();
        let known = self.token.and_then(|token| lock().all.get(&token).map(|lease| lease.is_over(now)));
        known.unwrap_or(self.ends <= now)
    }
}

impl Lease {
    /// A receipt may know of an extension that another process made.
    fn hear(&mut self, ticket: &Ticket, now: Timestamp) {
        if ticket.set_at > self.set_at {
            self.set_at = ticket.set_at;
            self.ends = Instant::now() + left_elsewhere(ticket, now);
            self.remembered = self.remembered.max(self.ends + MARGIN_ELSEWHERE);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ends <= now || matches!(self.state, State::Over)
    }
}

fn lock() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a lease is shortened by, because its request or its answer may have been on the way for a while: nobody knows
/// when in a long poll SQS handed the message out. `took` is how long the call took, and `wait` how long SQS was to wait
/// for a message: what it took beyond that was spent on the way, perhaps all of it by the answer.
pub(crate) fn margin(visibility: Duration, took: Duration, wait: Duration) -> Duration {
    let in_a_poll = took.min(visibility / 10).min(Duration::from_secs(1));
    took.saturating_sub(wait).max(in_a_poll)
}

/// Notes the lease of a receipt: of a message in the queue with this URL, from a call that was made at `asked` and leases
/// until `ends`.
pub(crate) fn add(handle: &ReceiptHandle, ticket: &Ticket, url: &str, stored: Stored, asked: Instant, ends: Instant) {
    let mut leases = lock();
    let now = Instant::now();
    if leases.all.len() >= leases.next_look {
        leases.all.retain(|_, lease| lease.remembered > now);
        leases.next_look = (leases.all.len() * 2).max(1024);
    }
    let state = State::Ours { stored: Box::new(stored), asked };
    let lease = Lease { url: url.to_owned(), ends, set_at: ticket.set_at, remembered: ends, state };
    leases.all.insert(handle.token(), lease);
}

/// The lease of a receipt, if it is valid. `now` is SQS's time, by which a receipt of another process is judged.
pub(crate) fn check(handle: &ReceiptHandle, ticket: &Ticket, now: Timestamp) -> Result<Held, MessagingError> {
    match lock().all.get_mut(&handle.token()) {
        Some(lease) => {
            lease.hear(ticket, now);
            let ends = lease.ends;
            match &lease.state {
                _ if lease.is_over(Instant::now()) => Err(handle.expired()),
                State::Ours { stored, asked } => {
                    Ok(Held { stored: Some((**stored).clone()), asked: Some(*asked), ends })
                }
                State::Theirs | State::Over => Ok(Held { stored: None, asked: None, ends }),
            }
        }
        None => {
            let left = left_elsewhere(ticket, now);
            match left.is_zero() {
                true => Err(handle.expired()),
                false => Ok(Held { stored: None, asked: None, ends: Instant::now() + left }),
            }
        }
    }
}

/// What is left of a lease of which only its receipt is known.
fn left_elsewhere(ticket: &Ticket, now: Timestamp) -> Duration {
    ticket.ends_at.since(now).saturating_sub(MARGIN_ELSEWHERE)
}

/// A lease now ends at another time. Answers the receipt that says so in every process.
pub(crate) fn extended(handle: &ReceiptHandle, ticket: &Ticket, ends: Instant, now: Timestamp) -> ReceiptHandle {
    let mut leases = lock();
    let lease = leases.all.entry(handle.token()).or_insert_with(|| of_another(ticket, State::Theirs, now));
    // Also when two are made at the same moment, the second is the later one.
    let set_at = now.max(lease.set_at.saturating_add(Duration::from_micros(1)));
    (lease.ends, lease.set_at) = (ends, set_at);
    lease.remembered = lease.remembered.max(ends);
    let ends_at = now.saturating_add(ends.saturating_duration_since(Instant::now()));
    Ticket { ends_at, set_at, ..ticket.clone() }.issue(handle.queue(), handle.message_id())
}

/// A lease that another process has received, remembered for as long as its receipt says that it is valid.
fn of_another(ticket: &Ticket, state: State, now: Timestamp) -> Lease {
    let ends = Instant::now() + ticket.ends_at.since(now) + MARGIN_ELSEWHERE;
    Lease { url: String::new(), ends, set_at: ticket.set_at, remembered: ends, state }
}

/// A lease is over. That is remembered as long as its receipt says that it is valid.
pub(crate) fn over(handle: &ReceiptHandle, ticket: &Ticket, now: Timestamp) {
    let mut leases = lock();
    let lease = leases.all.entry(handle.token()).or_insert_with(|| of_another(ticket, State::Over, now));
    lease.state = State::Over;
}

/// The leases of a queue that is no more are over.
pub(crate) fn queue_gone(url: &str) {
    lock().all.values_mut().filter(|lease| lease.url == url).for_each(|lease| lease.state = State::Over);
}

/// The messages of a queue that are leased.
pub(crate) fn leased(url: &str) -> Vec<Stored> {
    let now = Instant::now();
    let leases = lock();
    let valid = leases.all.values().filter(|lease| lease.url == url && lease.ends > now);
    valid
        .filter_map(|lease| match &lease.state {
            State::Ours { stored, .. } => Some((**stored).clone()),
            State::Theirs | State::Over => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use postrider_core::{Message, MessageId, QueueName};

    use super::*;
    use crate::names::Side;

    const MINUTE: Duration = Duration::from_secs(60);

    fn lease(ends: Duration) -> (ReceiptHandle, Ticket) {
        let (receipt, ends_at) = (MessageId::generate().to_string(), Timestamp::EPOCH.saturating_add(ends));
        let ticket = Ticket { side: Side::Standard, ends_at, set_at: Timestamp::EPOCH, receipt };
        (ticket.issue(&QueueName::new("q").unwrap(), MessageId::generate()), ticket)
    }

    fn is_over<T>(answer: Result<T, MessagingError>) -> bool {
        matches!(answer, Err(MessagingError::VisibilityExpired { .. }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_by_its_time_by_its_word_or_with_its_queue() {
        let stored = Stored::new(&Message::new("x"), Timestamp::EPOCH);
        let url = MessageId::generate().to_string();
        let leased_for = |time| {
            let (handle, ticket) = lease(time);
            add(&handle, &ticket, &url, stored.clone(), Instant::now(), Instant::now() + time);
            (handle, ticket)
        };
        let (handle, ticket) = leased_for(MINUTE);
        let check = |handle: &ReceiptHandle, ticket: &Ticket| check(handle, ticket, Timestamp::EPOCH);
        assert_eq!(check(&handle, &ticket).unwrap().left(), MINUTE);
        let fence = Fence::of(&handle, Instant::now() + MINUTE);
        extended(&handle, &ticket, Instant::now() + MINUTE * 3, Timestamp::EPOCH);
        tokio::time::advance(MINUTE * 2).await;
        assert_eq!(check(&handle, &ticket).unwrap().left(), MINUTE);
        assert!(!fence.is_over(), "extended meanwhile, it may be sent");
        assert_eq!(leased(&url).len(), 1);
        tokio::time::advance(MINUTE).await;
        assert!(is_over(check(&handle, &ticket)) && fence.is_over());
        let (settled, ticket) = leased_for(MINUTE);
        over(&settled, &ticket, Timestamp::EPOCH);
        assert!(is_over(check(&settled, &ticket)));
        let (deleted, ticket) = leased_for(MINUTE);
        queue_gone(&url);
        assert!(is_over(check(&deleted, &ticket)) && leased(&url).is_empty());
    }

    #[test]
    fn a_lease_of_another_process_is_judged_by_what_its_receipt_says() {
        let (handle, ticket) = lease(MINUTE);
        let at = |time| Timestamp::EPOCH.saturating_add(time);
        let held = check(&handle, &ticket, at(MINUTE / 2)).unwrap();
        assert!(held.stored.is_none() && held.asked.is_none());
        assert!(is_over(check(&handle, &ticket, at(MINUTE - MARGIN_ELSEWHERE))));
        extended(&handle, &ticket, Instant::now() + MINUTE * 5, at(MINUTE / 2));
        assert!(check(&handle, &ticket, at(MINUTE * 2)).is_ok(), "extended here, it is valid here");
        over(&handle, &ticket, at(MINUTE / 2));
        assert!(is_over(check(&handle, &ticket, at(MINUTE / 2))), "settled here, it is over here");
    }

    #[tokio::test(start_paused = true)]
    async fn the_receipt_that_was_issued_last_says_when_a_lease_ends() {
        let second = Duration::from_secs(1);
        let (handle, ticket) = lease(MINUTE);
        let at = |time| Timestamp::EPOCH.saturating_add(time);
        let stored = Stored::new(&Message::new("x"), Timestamp::EPOCH);
        add(&handle, &ticket, "", stored, Instant::now(), Instant::now() + MINUTE);
        let elsewhere = |ends_at, set_at| {
            let ticket = Ticket { ends_at: at(ends_at), set_at: at(set_at), ..ticket.clone() };
            (ticket.issue(handle.queue(), handle.message_id()), ticket)
        };
        let (longer, longer_ticket) = elsewhere(MINUTE * 3, second * 10);
        let (shorter, shorter_ticket) = elsewhere(MINUTE, second * 20);
        tokio::time::advance(MINUTE * 2).await;
        assert!(is_over(check(&handle, &ticket, at(MINUTE * 2))), "this process knows of no extension");
        let held = check(&longer, &longer_ticket, at(MINUTE * 2)).unwrap();
        assert_eq!(held.left(), MINUTE - MARGIN_ELSEWHERE);
        assert!(held.stored.is_some(), "the message is still at hand");
        assert!(check(&handle, &ticket, at(MINUTE * 2)).is_ok(), "now it does");
        assert!(is_over(check(&shorter, &shorter_ticket, at(MINUTE * 2))), "it was shortened after that");
        assert!(is_over(check(&longer, &longer_ticket, at(MINUTE * 2))));

        let (handle, ticket) = lease(MINUTE);
        let next = extended(&handle, &ticket, Instant::now() + MINUTE * 5, Timestamp::EPOCH);
        let next_ticket = Ticket::read(&next).unwrap();
        assert_eq!((next.token(), next_ticket.ends_at), (handle.token(), at(MINUTE * 5)));
        assert!(next_ticket.set_at > ticket.set_at);
        over(&next, &next_ticket, at(MINUTE));
        assert!(is_over(check(&handle, &ticket, Timestamp::EPOCH)), "it is one lease, by whichever receipt it ended");
    }

    #[test]
    fn a_lease_is_shortened_by_what_nobody_knows_and_not_by_more() {
        let (second, poll) = (Duration::from_secs(1), Duration::from_secs(20));
        assert_eq!(margin(MINUTE, Duration::from_millis(5), poll), Duration::from_millis(5));
        assert_eq!(margin(MINUTE, poll, poll), second);
        assert_eq!(margin(second, poll, poll), Duration::from_millis(100));
        assert_eq!(margin(MINUTE, poll + second * 7, poll), second * 7);
        assert_eq!(
            margin(MINUTE, second * 7, Duration::ZERO),
            second * 7,
            "no poll, so all of it was spent on the way"
        );
    }
}
