//! The state that the loops share.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, Envelope, MessagingError, MessagingService, QueueName, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::{Buffer, PerKey};
use crate::counters::{Counters, Counts, Tally};
use crate::health::HealthCell;
use crate::held::Phase;
use crate::observer::Observer;
use crate::options::Plan;

/// Time after its deadline for which a provider's answer is still awaited.
const GRACE: Duration = Duration::from_secs(10);

/// The state that the loops share: the provider, the buffer, and the notifications between them.
pub(crate) struct Engine<P> {
    pub(crate) provider: P,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) shared: Arc<Shared>,
    /// The limit of `max_per_key`.
    pub(crate) per_key: Option<PerKey>,
    /// The limit on running handlers that is shared with other subscribers.
    pub(crate) limit: Option<Arc<Semaphore>>,
    /// Cancelled when the store is closed.
    pub(crate) closed: CancellationToken,
    /// Cancelled when a fetch finds nothing while no message is leased, and `stop_when_empty` is on.
    pub(crate) empty: CancellationToken,
}

/// The part that does not depend on the provider's type, which a [`Monitor`](crate::Monitor) shares.
pub(crate) struct Shared {
    /// A blocking mutex: see the module of the buffer.
    buffer: Mutex<Buffer>,
    /// Notified when a fetch may begin. A `Notify`, because one task waits and only the latest notification counts.
    pub(crate) fetch: Notify,
    /// Notified when there is something to flush.
    pub(crate) flush: Notify,
    /// Notified when a lease was added that must be renewed before the next check.
    pub(crate) leases: Notify,
    /// Notified when the last handler has ended, or the last settlement was answered.
    pub(crate) drained: Notify,
    /// Wakes one idle worker at a time, when the buffer requests it.
    pub(crate) work: Notify,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) health: HealthCell,
}

impl Shared {
    pub(crate) fn new(buffer: Buffer, counters: Counters, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            buffer: Mutex::new(buffer),
            fetch: Notify::new(),
            flush: Notify::new(),
            leases: Notify::new(),
            drained: Notify::new(),
            work: Notify::new(),
            counters,
            observer,
            health: HealthCell::default(),
        }
    }

    /// The buffer. After a panic under the mutex, which would be a bug, the other loops continue.
    pub(crate) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the buffer, then counts the events and wakes the loops that have something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Buffer, Instant, &mut Tally) -> T) -> T {
        self.change_at(Instant::now(), change)
    }

    /// [`Self::change`] for a caller that has just read the clock.
    pub(crate) fn change_at<T>(&self, now: Instant, change: impl FnOnce(&mut Buffer, Instant, &mut Tally) -> T) -> T {
        let mut tally = Tally::default();
        let mut buffer = self.buffer();
        let answer = change(&mut buffer, now, &mut tally);
        let wakes = buffer.wakes(now);
        let wakes_worker = std::mem::take(&mut buffer.wakes_worker);
        let has_earlier_lease = std::mem::take(&mut buffer.has_earlier_lease);
        let is_drained = buffer.is_stopping && (buffer.busy == 0 || buffer.is_clean());
        let ended = buffer.ended.take();
        let refused = std::mem::take(&mut buffer.refused);
        drop(buffer);
        drop(refused);
        if wakes.fetch {
            self.fetch.notify_one();
        }
        if wakes.flush {
            self.flush.notify_one();
        }
        if wakes_worker {
            self.work.notify_one();
        }
        if has_earlier_lease {
            self.leases.notify_one();
        }
        if is_drained {
            self.drained.notify_waiters();
        }
        self.counters.add_all(tally);
        for message in ended {
            message.log();
            self.notify_observer(|observer| observer.ended(message));
        }
        answer
    }

    /// Records the answer to a settle in the health state; `failure` is its first error.
    pub(crate) fn record_settle(&self, failure: Option<MessagingError>) {
        let Some(error) = failure else {
            if self.health.settled() {
                tracing::warn!("the store settles messages again");
            }
            return;
        };
        match self.health.settle_failed(error.clone()) {
            1 => tracing::warn!(%error, "cannot settle messages; trying again while the leases are kept"),
            failures => tracing::debug!(%error, failures, "still cannot settle messages"),
        }
        self.notify_observer(|observer| observer.settle_failed(&error));
    }

    /// Calls the observer; its panic must not end the calling loop.
    pub(crate) fn notify_observer(&self, call: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.observer
            && std::panic::catch_unwind(AssertUnwindSafe(|| call(&**observer))).is_err()
        {
            tracing::error!("the observer panicked");
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.counters.counts();
        let buffer = self.buffer();
        counts.buffered = buffer.waiting as u64;
        for held in buffer.held.values() {
            match held.phase {
                Phase::Waiting => {}
                Phase::Running(_) | Phase::Lost(_) => counts.in_flight += 1,
                Phase::Decided(_) | Phase::Settling(_) => counts.unsettled += 1,
            }
        }
        counts.in_flight += buffer.unleased_count() as u64;
        counts
    }
}

/// The answer of a provider. A provider ends its calls at their deadline; one that does not must not block a loop for
/// ever.
pub(crate) async fn answered<T>(
    call: impl Future<Output = Result<T, MessagingError>>,
    operation: &'static str,
) -> Result<T, MessagingError> {
    let limit = Deadline::after(Deadline::DEFAULT + GRACE);
    let unanswered = Err(MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None });
    limit.limit(call).await.unwrap_or(unanswered)
}

impl<P: MessagingService> Engine<P> {
    /// The store's time of this delivery: the end of its lease minus the length of the lease.
    pub(crate) fn store_time(&self, envelope: &Envelope) -> Timestamp {
        envelope.lease_expires_at.saturating_sub(self.plan.visibility)
    }
}

impl<P> std::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("queues", &self.queues).field("plan", &self.plan).finish_non_exhaustive()
    }
}
