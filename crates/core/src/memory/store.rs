//! The state that all connections to a store in memory share.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::archive_policy::ArchivePolicy;
use crate::capabilities::{Capabilities, Feature, Limits, Support};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::queue_name::QueueName;
use crate::receipt::LeaseToken;
use crate::service::{MessageAttempt, PeekedMessage};
use crate::stats::{Measured, QueueStats};
use crate::sync::Mutex;
use crate::waiting::{PeekPage, PeekQuery, check_queue};

use super::archive::Archive;
use super::idempotency::Records;
use super::queue::{Queue, RowId};
use super::{MemoryProvider, PROVIDER};

/// A store in memory. It lives as long as this handle or a connection exists.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) capabilities: Capabilities,
    pub(super) create_queues: bool,
    /// One lock for all queues, because a dead-lettered message moves between two queues in one step.
    pub(super) state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queues: BTreeMap<QueueName, Queue>,
    pub(super) records: Records,
    pub(super) archive: Archive,
    rows: RowId,
    /// One half of every token; it identifies the receipts of this store.
    store: u64,
    leases: u64,
}

/// Builds a [`MemoryStore`].
#[derive(Debug, Clone)]
pub struct MemoryStoreBuilder {
    clock: Option<Arc<dyn Clock>>,
    limits: Limits,
    create_queues: bool,
    archive: ArchivePolicy,
    seed: Option<u64>,
}

impl MemoryStoreBuilder {
    /// The clock that judges leases and due times; the host's by default.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The limits of sizes and times.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether a send creates a missing queue; the default is yes.
    #[must_use]
    pub fn create_queues(mut self, create: bool) -> Self {
        self.create_queues = create;
        self
    }

    /// Which messages are archived; all of them by default. The archive keeps the last 10 000 messages, up to 64 MiB,
    /// for seven days.
    #[must_use]
    pub fn archive(mut self, policy: ArchivePolicy) -> Self {
        self.archive = policy;
        self
    }

    /// Makes the lease tokens the same in every run.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let store = self.seed.unwrap_or_else(rand::random);
        let (queues, archive) = (BTreeMap::new(), Archive::new(self.archive));
        let state = State { queues, records: Records::new(), archive, rows: 0, store, leases: 0 };
        MemoryStore {
            shared: Arc::new(Shared {
                clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
                capabilities: capabilities().with_limits(self.limits),
                create_queues: self.create_queues,
                state: Mutex::new(state),
            }),
        }
    }
}

fn capabilities() -> Capabilities {
    Capabilities::native(PROVIDER)
        .with(Feature::DurableSend, Support::emulated("messages are kept in this process and end with it"))
        .with(Feature::Recovery, Support::refused("there is no server to lose, and nothing survives the process"))
}

impl MemoryStore {
    /// An empty store with the host's clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A builder with the default settings.
    pub fn builder() -> MemoryStoreBuilder {
        let (limits, archive) = (Limits::default(), ArchivePolicy::default());
        MemoryStoreBuilder { clock: None, limits, create_queues: true, archive, seed: None }
    }

    /// Opens another connection. Each is closed separately.
    pub fn open(&self) -> MemoryProvider {
        MemoryProvider::new(self.clone())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// The queue with this name. A missing one is added, without existing for other calls yet.
    pub(super) fn queue(&mut self, name: &QueueName) -> &mut Queue {
        // Looked up twice, because the entry API would clone the name on every call.
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), Queue::new(name.clone()));
        }
        match self.queues.get_mut(name) {
            Some(queue) => queue,
            None => unreachable!("it was inserted above"),
        }
    }

    pub(super) fn next_row(&mut self) -> RowId {
        self.rows += 1;
        self.rows
    }

    pub(super) fn next_token(&mut self) -> LeaseToken {
        self.leases += 1;
        LeaseToken(u128::from(self.store) << 64 | u128::from(self.leases))
    }

    pub(super) fn issued(&self, token: LeaseToken) -> bool {
        token.0 >> 64 == u128::from(self.store)
    }

    pub(super) fn stats(&self, name: &QueueName, now: Timestamp) -> QueueStats {
        let (mut ready, mut in_flight, mut delayed) = (0, 0, 0);
        let mut oldest: Option<Timestamp> = None;
        let queue = self.queues.get(name);
        for row in queue.into_iter().flat_map(|queue| queue.rows.values()) {
            if row.is_leased(now) {
                in_flight += 1;
            } else if row.next_attempt_at() > now {
                delayed += 1;
            } else {
                ready += 1;
                let created_at = row.record().created_at;
                oldest = Some(oldest.map_or(created_at, |oldest| oldest.min(created_at)));
            }
        }
        let dead = if name.holds_dead_letters() { None } else { self.queues.get(&name.dead_letters()) };
        QueueStats {
            queue: name.clone(),
            ready: Measured::Exact(ready),
            in_flight: Measured::Exact(in_flight),
            delayed: Measured::Exact(delayed),
            dead: Measured::Exact(dead.map_or(0, |dead| dead.rows.len() as u64)),
            oldest_age: Measured::Exact(oldest.map(|oldest| now.since(oldest))),
            paused: queue.is_some_and(|queue| queue.paused),
        }
    }

    pub(super) fn peek(&self, name: &QueueName, limit: usize, now: Timestamp) -> Vec<PeekedMessage> {
        self.peek_rows(name, 0, now).take(limit).map(|(_, message)| message).collect()
    }

    pub(super) fn peek_page(
        &self,
        name: &QueueName,
        query: &PeekQuery,
        now: Timestamp,
    ) -> Result<PeekPage, MessagingError> {
        check_queue(name)?;
        let after = query.row()?.cast_unsigned();
        let rows = self.peek_rows(name, after, now).map(|(row, message)| (row.cast_signed(), message));
        Ok(PeekPage::of_rows(rows.take(query.limit.saturating_add(1)).collect(), query.limit))
    }

    fn peek_rows(
        &self,
        name: &QueueName,
        after: RowId,
        now: Timestamp,
    ) -> impl Iterator<Item = (RowId, PeekedMessage)> {
        let rows = self.queues.get(name).into_iter().flat_map(move |queue| queue.rows.range(after.saturating_add(1)..));
        rows.map(move |(id, row)| {
            let message = PeekedMessage {
                id: row.message.id,
                body: row.message.body.clone(),
                content_type: row.message.content_type.clone(),
                headers: row.message.headers.clone(),
                ordering_key: row.message.ordering_key.clone(),
                priority: row.message.priority,
                state: row.state(now),
                deliveries_count: row.record().deliveries_count,
                attempts_count: row.record().attempts_count,
                enqueued_at: row.record().created_at,
                next_attempt_at: row.next_attempt_at(),
                last_error: row.record().last_error.clone(),
            };
            (*id, message)
        })
    }

    pub(super) fn attempts(&self, name: &QueueName, id: MessageId) -> Vec<MessageAttempt> {
        // The oldest message with the id: the operations by id use that one.
        let find = |name: &QueueName| {
            let queue = self.queues.get(name)?;
            queue.rows_of(id).next().and_then(|row| queue.rows.get(&row))
        };
        let row = find(&name.origin()).or_else(|| find(&name.dead_letters()));
        row.map(|row| row.failures.iter().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn purge(&mut self, name: &QueueName, now: Timestamp) -> u64 {
        let Some(queue) = self.queues.get_mut(name) else { return 0 };
        let unleased: Vec<_> = queue.rows.iter().filter(|(_, row)| !row.is_leased(now)).map(|(id, _)| *id).collect();
        for id in &unleased {
            queue.remove(*id, now);
        }
        unleased.len() as u64
    }

    pub(super) fn delete(&mut self, name: &QueueName) {
        for name in [name.dead_letters(), name.clone()] {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.clear();
            }
        }
    }
}
