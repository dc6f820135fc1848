//! What the loops share.

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

/// How long after its deadline a provider may still answer.
const GRACE: Duration = Duration::from_secs(10);

/// What the loops share: the provider, the buffer, and how to wake each other.
pub(crate) struct Engine<P> {
    pub(crate) provider: P,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) desk: Arc<Desk>,
    /// What `max_per_key` counts by.
    pub(crate) per_key: Option<PerKey>,
    /// Handlers that run at the same time, together with other subscribers.
    pub(crate) limit: Option<Arc<Semaphore>>,
    /// The store is closed: there is nothing to go on with.
    pub(crate) closed: CancellationToken,
    /// A fetch found nothing while nothing was at work, and that is when to stop.
    pub(crate) empty: CancellationToken,
}

/// The part that does not depend on the provider, for whoever watches.
pub(crate) struct Desk {
    /// A blocking lock: see the module of the buffer.
    buffer: Mutex<Buffer>,
    /// Woken when a fetch may begin. A `Notify`, because one waits and only the newest news counts.
    pub(crate) fetch: Notify,
    /// Woken when there is something to flush.
    pub(crate) flush: Notify,
    /// Woken when a lease came that is due before the next look.
    pub(crate) leases: Notify,
    /// Woken when the last handler has ended, or the last settlement has been answered.
    pub(crate) quiet: Notify,
    /// Wakes one idle worker at a time; the buffer knows when.
    pub(crate) work: Notify,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) health: HealthCell,
}

impl Desk {
    pub(crate) fn new(buffer: Buffer, counters: Counters, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            buffer: Mutex::new(buffer),
            fetch: Notify::new(),
            flush: Notify::new(),
            leases: Notify::new(),
            quiet: Notify::new(),
            work: Notify::new(),
            counters,
            observer,
            health: HealthCell::default(),
        }
    }

    /// The buffer. A panic inside would be a bug of ours; the others go on with what is there.
    pub(crate) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the buffer, then counts and wakes whoever has something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Buffer, Instant, &mut Tally) -> T) -> T {
        self.change_at(Instant::now(), change)
    }

    /// [`Self::change`], for whoever has just looked at the clock.
    pub(crate) fn change_at<T>(&self, now: Instant, change: impl FnOnce(&mut Buffer, Instant, &mut Tally) -> T) -> T {
        let mut tally = Tally::default();
        let mut buffer = self.buffer();
        let answer = change(&mut buffer, now, &mut tally);
        let wakes = buffer.wakes(now);
        let wakes_worker = std::mem::take(&mut buffer.wakes_worker);
        let has_earlier_lease = std::mem::take(&mut buffer.has_earlier_lease);
        let is_quiet = buffer.is_stopping && (buffer.busy == 0 || buffer.is_clean());
        let to_tell = buffer.to_tell.take();
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
        if is_quiet {
            self.quiet.notify_waiters();
        }
        self.counters.add_all(tally);
        for message in to_tell {
            message.log();
            self.tell(|observer| observer.ended(message));
        }
        answer
    }

    /// Says what the answer to a settle means for the store's health.
    pub(crate) fn settling_went(&self, trouble: Option<MessagingError>) {
        let Some(error) = trouble else {
            if self.health.settled() {
                tracing::warn!("the store takes settlements again");
            }
            return;
        };
        match self.health.settle_failed(error.clone()) {
            1 => tracing::warn!(%error, "cannot settle messages; trying again while the leases are kept"),
            failures => tracing::debug!(%error, failures, "still cannot settle messages"),
        }
        self.tell(|observer| observer.settle_failed(&error));
    }

    /// Tells the observer. One that panics must not take a loop with it.
    pub(crate) fn tell(&self, news: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.observer
            && std::panic::catch_unwind(AssertUnwindSafe(|| news(&**observer))).is_err()
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

/// The answer of a provider, which ends its calls itself when their deadline has passed. One that does not must not hold
/// a loop for ever.
pub(crate) async fn answered<T>(
    call: impl Future<Output = Result<T, MessagingError>>,
    operation: &'static str,
) -> Result<T, MessagingError> {
    let patience = Deadline::after(Deadline::DEFAULT + GRACE);
    let unanswered = Err(MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None });
    patience.limit(call).await.unwrap_or(unanswered)
}

impl<P: MessagingService> Engine<P> {
    /// The store's time when it made this delivery: a lease's length before the lease's end.
    pub(crate) fn store_time(&self, envelope: &Envelope) -> Timestamp {
        envelope.lease_expires_at.saturating_sub(self.plan.visibility)
    }
}

impl<P> std::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("queues", &self.queues).field("plan", &self.plan).finish_non_exhaustive()
    }
}
