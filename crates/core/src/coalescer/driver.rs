//! Execution of the batches, one after the other.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use tokio::sync::watch;

use super::batch::{Batch, BatchExecutor, BatchFailure, BatchReply, ExtendRow, SendRow};
use super::intake::Intake;
use super::lane::{Idle, Lane};
use super::no_answer::NoAnswer;
use crate::disposition::Settlement;
use crate::error::{ErrorSource, MessagingError};
use crate::spawn::spawn;

/// The futures that execute the batches. Nothing is executed unless they run.
///
/// When they are dropped, waiting callers get an error and later ones are refused.
#[must_use = "nothing is executed unless the drivers run"]
pub struct Drivers {
    futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Drivers {
    pub(super) fn new(drivers: impl IntoIterator<Item = Driver>) -> Self {
        Self { futures: drivers.into_iter().map(|driver| Box::pin(driver.run()) as _).collect() }
    }

    /// Spawns the futures on the current tokio runtime. Panics outside of one, as `tokio::spawn` does.
    pub fn spawn(self) {
        for driver in self.futures {
            spawn(driver);
        }
    }

    /// The futures, for another executor. Each must be polled independently.
    pub fn into_futures(self) -> Vec<impl Future<Output = ()> + Send + use<>> {
        self.futures
    }
}

impl fmt::Debug for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drivers").field("count", &self.futures.len()).finish()
    }
}

/// Serves one lane, or all three in merged batches.
///
/// However it ends (its lanes are closed, its task is aborted, it never ran), its `Drop` answers every caller.
pub(super) struct Driver {
    executor: Arc<dyn BatchExecutor>,
    extends: Intake<ExtendRow>,
    settles: Intake<Settlement>,
    sends: Intake<SendRow>,
    /// The batch that is being executed; empty between two batches.
    in_flight: Batch,
    /// The remaining parts of a split batch, the next one last. At most one for each split.
    later_parts: Vec<Batch>,
    /// Dropped with the driver; this is how `close` notices its end.
    _running: watch::Sender<()>,
}

impl Driver {
    pub(super) fn new(
        executor: Arc<dyn BatchExecutor>,
        extends: Option<Arc<Lane<ExtendRow>>>,
        settles: Option<Arc<Lane<Settlement>>>,
        sends: Option<Arc<Lane<SendRow>>>,
        running: watch::Sender<()>,
    ) -> Self {
        Self {
            executor,
            extends: Intake::new(extends),
            settles: Intake::new(settles),
            sends: Intake::new(sends),
            in_flight: Batch::default(),
            later_parts: Vec::new(),
            _running: running,
        }
    }

    async fn run(mut self) {
        while poll_fn(|context| self.poll_fill(context)).await {
            self.execute().await;
            // An executor that never waits would block the thread for all other tasks.
            tokio::task::consume_budget().await;
        }
    }

    /// Takes queued rows into a batch, or waits for some. Returns `false` when the lanes have ended.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            // Each lane has its own bounds within the batch, so that none can displace another.
            self.extends.fill(&mut self.in_flight.extends);
            self.settles.fill(&mut self.in_flight.settles);
            self.sends.fill(&mut self.in_flight.sends);
            if !self.in_flight.is_empty() {
                return Poll::Ready(true);
            }
            let waker = context.waker();
            let idle = [self.extends.sleep(waker), self.settles.sleep(waker), self.sends.sleep(waker)];
            if idle.iter().all(|lane| *lane == Idle::Ended) {
                return Poll::Ready(false);
            }
            if !idle.contains(&Idle::Work) {
                return Poll::Pending;
            }
        }
    }

    /// Executes the batch and answers the callers. A rejected batch is split, and the first half goes first, until the
    /// rows at fault are alone.
    async fn execute(&mut self) {
        loop {
            // A panic of the provider must not end the driver. Its state is its own responsibility.
            let execution = AssertUnwindSafe(async { self.executor.execute(&self.in_flight).await });
            match execution.catch_unwind().await {
                Ok(Ok(reply)) => self.answer(reply),
                Ok(Err(BatchFailure::Rejected(_))) if self.in_flight.len() > 1 => {
                    self.later_parts.push(self.in_flight.split_off_second_half());
                    continue;
                }
                Ok(Err(BatchFailure::Rejected(error))) => self.reject(&error),
                Ok(Err(BatchFailure::NotDone(error))) => self.give_up(&error),
                Ok(Err(BatchFailure::Unknown(error))) => self.outcome_lost(&(Arc::new(error) as _)),
                Err(payload) => self.outcome_lost(&NoAnswer::panicked(&*payload).into_source()),
            }
            self.in_flight.clear();
            match self.later_parts.pop() {
                Some(part) => self.in_flight = part,
                None => return,
            }
        }
    }

    fn answer(&mut self, reply: BatchReply) {
        self.extends.answer(&self.in_flight.extends, reply.extends);
        self.settles.answer(&self.in_flight.settles, reply.settles);
        self.sends.answer(&self.in_flight.sends, reply.sends);
    }

    fn reject(&mut self, error: &MessagingError) {
        self.extends.reject(&self.in_flight.extends, error);
        self.settles.reject(&self.in_flight.settles, error);
        self.sends.reject(&self.in_flight.sends, error);
    }

    fn give_up(&mut self, error: &MessagingError) {
        self.later_parts.clear();
        self.extends.give_up(error);
        self.settles.give_up(error);
        self.sends.give_up(error);
    }

    /// Only the part that was being executed may have taken effect; the later parts were not sent, and will not be.
    fn outcome_lost(&mut self, source: &ErrorSource) {
        self.unknown(source);
        self.later_parts.clear();
        self.extends.give_up_after(source);
        self.settles.give_up_after(source);
        self.sends.give_up_after(source);
    }

    fn unknown(&mut self, source: &ErrorSource) {
        self.extends.unknown(&self.in_flight.extends, source);
        self.settles.unknown(&self.in_flight.settles, source);
        self.sends.unknown(&self.in_flight.sends, source);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.unknown(&NoAnswer::DriverGone.into_source());
        self.extends.end();
        self.settles.end();
        self.sends.end();
    }
}
