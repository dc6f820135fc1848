//! The leases of this connection.
//!
//! The broker has no leases: it holds a message for a connection until the connection ends. So a lease is a record here. The
//! task that ends a lease takes the record out first, so that it ends once; a timer takes out expired ones and requeues
//! their messages. A record names the channel on which its message arrived: a delivery tag means another message on any
//! other channel.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::{LeaseToken, MessagingError, QueueName, ReceiptHandle};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::lock;
use crate::consumer_channel::ConsumerChannel;
use crate::partitions::ActivePartition;

/// A leased message.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) queue: QueueName,
    pub(crate) stored: Stored,
    pub(crate) location: Location,
    /// When the broker delivered it: its `consumer_timeout` counts from then.
    pub(crate) since: Instant,
    pub(crate) ends: Instant,
}

/// Where a message arrived and must be settled.
#[derive(Debug)]
pub(crate) enum Location {
    /// The channel of its queue.
    Channel { channel: Arc<ConsumerChannel>, tag: u64 },
    /// Its partition, which stays blocked until the lease ends.
    Partition(ActivePartition),
}

impl Lease {
    /// Whether a receipt names the message of this lease.
    fn is_of(&self, receipt: &ReceiptHandle) -> bool {
        self.queue == *receipt.queue() && self.stored.id == receipt.message_id()
    }

    /// Whether the broker still holds the message for this connection.
    pub(crate) fn is_held(&self) -> bool {
        match &self.location {
            Location::Channel { channel, .. } => channel.is_open(),
            Location::Partition(partition) => partition.is_open(),
        }
    }
}

/// All leases of a connection.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    state: Mutex<State>,
    /// Notified when the earliest end changes.
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
    /// Adds a lease.
    pub(crate) fn add(&self, token: LeaseToken, lease: Lease) {
        let is_first = lock(&self.state).put(token.0, lease);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Takes a lease out to end it. Returns `None` when it was settled, has expired, or was lost with its connection.
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
            // It has just expired: the timer requeues the message.
            self.add(receipt.token(), lease);
        }
        None
    }

    /// Restores a lease that could not be ended.
    pub(crate) fn restore(&self, receipt: &ReceiptHandle, lease: Lease) {
        self.add(receipt.token(), lease);
    }

    /// Sets the end of a lease. `longest` limits the total time since the delivery.
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
                    "message {} would be held for {} s in total, and the limit is {} s; raise consumer_timeout on the broker \
                     and in the configuration",
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

    /// Returns the leased messages of a queue.
    pub(crate) fn of(&self, queue: &QueueName) -> Vec<Stored> {
        let now = Instant::now();
        let state = lock(&self.state);
        let held = state.leases.values().filter(|lease| lease.queue == *queue && lease.ends > now && lease.is_held());
        held.map(|lease| lease.stored.clone()).collect()
    }

    /// Waits for leases to expire, and takes them out.
    pub(crate) async fn next_expired(&self) -> Vec<Lease> {
        loop {
            let first = lock(&self.state).ends.first().map(|(ends, _)| *ends);
            match first {
                Some(ends) if ends <= Instant::now() => return self.take_expired(),
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

    fn take_expired(&self) -> Vec<Lease> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        let mut expired = Vec::new();
        while let Some((ends, token)) = state.ends.first().copied().filter(|(ends, _)| *ends <= now) {
            state.ends.remove(&(ends, token));
            expired.extend(state.leases.remove(&token));
        }
        expired
    }

    /// Takes all leases out.
    pub(crate) fn take_all(&self) -> Vec<Lease> {
        let mut state = lock(&self.state);
        state.ends.clear();
        state.leases.drain().map(|(_, lease)| lease).collect()
    }
}
