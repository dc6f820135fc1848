//! Leases: what this connection holds, and until when.
//!
//! The broker knows no leases: it holds a message for a connection as long as the connection lives. So a lease is a
//! record here. Whoever ends one takes the record out first, so that it ends once; a timer takes out those that ran out
//! and gives their messages back. A record names the channel on which its message came: a message's number means another
//! message on any other.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::{LeaseToken, MessagingError, QueueName, ReceiptHandle};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::feed::Feed;
use crate::keyed::Place;
use crate::link::lock;

/// A message in somebody's hands.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) queue: QueueName,
    pub(crate) stored: Stored,
    pub(crate) at: At,
    /// When the broker handed it over: it takes back what it waits for too long.
    pub(crate) since: Instant,
    pub(crate) ends: Instant,
}

/// Where it came from, and where it is settled.
#[derive(Debug)]
pub(crate) enum At {
    /// On the channel of its queue.
    Feed { feed: Arc<Feed>, tag: u64 },
    /// In a partition, which it holds.
    Partition(Place),
}

impl Lease {
    /// Whether a receipt names the message that this is a lease on.
    fn is_of(&self, receipt: &ReceiptHandle) -> bool {
        self.queue == *receipt.queue() && self.stored.id == receipt.message_id()
    }

    /// Whether the broker still holds the message for us.
    pub(crate) fn is_held(&self) -> bool {
        match &self.at {
            At::Feed { feed, .. } => feed.is_open(),
            At::Partition(place) => place.is_open(),
        }
    }
}

/// All leases of a connection.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Held for a few moves.
    state: Mutex<State>,
    /// The first end has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    leases: HashMap<u128, Lease>,
    ends: BTreeSet<(Instant, u128)>,
}

impl State {
    fn take(&mut self, token: u128) -> Option<Lease> {
        let lease = self.leases.remove(&token)?;
        self.ends.remove(&(lease.ends, token));
        Some(lease)
    }

    fn put(&mut self, token: u128, lease: Lease) -> bool {
        let ends = lease.ends;
        self.leases.insert(token, lease);
        self.ends.insert((ends, token));
        self.ends.first() == Some(&(ends, token))
    }
}

impl Leases {
    /// Notes a lease.
    pub(crate) fn add(&self, token: LeaseToken, lease: Lease) {
        let is_first = lock(&self.state).put(token.0, lease);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Takes a lease out to end it. Answers none when it is over: settled, run out, or gone with its connection.
    pub(crate) fn take(&self, receipt: &ReceiptHandle) -> Option<Lease> {
        let lease = {
            let mut state = lock(&self.state);
            state.leases.get(&receipt.token().0).filter(|lease| lease.is_of(receipt))?;
            state.take(receipt.token().0)?
        };
        if lease.ends > Instant::now() && lease.is_held() {
            return Some(lease);
        }
        if lease.is_held() {
            // It ran out a moment ago: the timer gives it back.
            self.add(receipt.token(), lease);
        }
        None
    }

    /// Puts a lease back that could not be ended.
    pub(crate) fn put_back(&self, receipt: &ReceiptHandle, lease: Lease) {
        self.add(receipt.token(), lease);
    }

    /// Sets the end of a lease. The broker takes a message back that it has waited for longer than `longest`.
    pub(crate) fn extend(
        &self,
        receipt: &ReceiptHandle,
        extension: Duration,
        longest: Duration,
    ) -> Result<(), MessagingError> {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let lease = state.leases.get(&receipt.token().0);
        let lease = lease.filter(|lease| lease.is_of(receipt) && lease.ends > now && lease.is_held());
        let Some(lease) = lease else { return Err(receipt.expired()) };
        let ends = now + extension;
        if ends.saturating_duration_since(lease.since) > longest {
            return Err(MessagingError::invalid(
                "extension",
                format!(
                    "message {} would be held for {} s in all, and the broker takes back what is held for longer than {} \
                     s; raise consumer_timeout at the broker and here",
                    receipt.message_id(),
                    ends.saturating_duration_since(lease.since).as_secs(),
                    longest.as_secs()
                ),
            ));
        }
        if let Some(mut lease) = state.take(receipt.token().0) {
            lease.ends = ends;
            state.put(receipt.token().0, lease);
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The messages of a queue that are leased.
    pub(crate) fn of(&self, queue: &QueueName) -> Vec<Stored> {
        let now = Instant::now();
        let state = lock(&self.state);
        let held = state.leases.values().filter(|lease| lease.queue == *queue && lease.ends > now && lease.is_held());
        held.map(|lease| lease.stored.clone()).collect()
    }

    /// Waits for leases to run out, and takes them out.
    pub(crate) async fn run_out(&self) -> Vec<Lease> {
        loop {
            let first = lock(&self.state).ends.first().map(|(ends, _)| *ends);
            match first {
                Some(ends) if ends <= Instant::now() => return self.take_over(),
                Some(ends) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(ends) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn take_over(&self) -> Vec<Lease> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        let mut over = Vec::new();
        while let Some((ends, token)) = state.ends.first().copied().filter(|(ends, _)| *ends <= now) {
            state.ends.remove(&(ends, token));
            over.extend(state.leases.remove(&token));
        }
        over
    }

    /// Takes all of them out.
    pub(crate) fn take_all(&self) -> Vec<Lease> {
        let mut state = lock(&self.state);
        state.ends.clear();
        state.leases.drain().map(|(_, lease)| lease).collect()
    }
}
