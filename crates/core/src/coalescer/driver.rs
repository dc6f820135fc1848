//! What carries the batches out, one after the other.

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

/// The futures that carry the batches out. Nothing moves unless somebody runs them.
///
/// When they are dropped, every caller who waits is told so and later ones are refused.
#[must_use = "nothing is carried out unless the drivers run"]
pub struct Drivers {
    futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Drivers {
    pub(super) fn new(drivers: impl IntoIterator<Item = Driver>) -> Self {
        Self { futures: drivers.into_iter().map(|driver| Box::pin(driver.run()) as _).collect() }
    }

    /// Runs them on the tokio runtime that the caller is in. Panics outside of one, as `tokio::spawn` does.
    pub fn spawn(self) {
        for driver in self.futures {
            spawn(driver);
        }
    }

    /// The futures themselves, for another executor. Each must be polled on its own.
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
/// Whatever ends it (its lanes are closed, its task is aborted, it was never run), its `Drop` leaves no caller without
/// an answer.
pub(super) struct Driver {
    executor: Arc<dyn BatchExecutor>,
    extends: Intake<ExtendRow>,
    settles: Intake<Settlement>,
    sends: Intake<SendRow>,
    /// What the executor has at the moment; empty between two batches.
    under_way: Batch,
    /// The later parts of a batch that was split, the next one last. At most one for each time that it was halved.
    later_parts: Vec<Batch>,
    /// Dropped with the driver, which is how `close` learns of its end.
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
            under_way: Batch::default(),
            later_parts: Vec::new(),
            _running: running,
        }
    }

    async fn run(mut self) {
        while poll_fn(|context| self.poll_gather(context)).await {
            self.carry_out().await;
            // An executor that never has to wait would keep the thread from everybody else.
            tokio::task::consume_budget().await;
        }
    }

    /// Makes a batch of whatever is queued, or waits for something. Answers `false` when nothing will come.
    fn poll_gather(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            // Each lane has its own bounds within the batch, so that none can crowd out another.
            self.extends.fill(&mut self.under_way.extends);
            self.settles.fill(&mut self.under_way.settles);
            self.sends.fill(&mut self.under_way.sends);
            if !self.under_way.is_empty() {
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

    /// Carries out the batch, and brings every caller's answer back. A batch that is rejected is halved, first half
    /// first, until the rows at fault stand alone.
    async fn carry_out(&mut self) {
        loop {
            // A provider's panic must not take everybody's queue down. Its state is its own to protect.
            let execution = AssertUnwindSafe(async { self.executor.execute(&self.under_way).await });
            match execution.catch_unwind().await {
                Ok(Ok(reply)) => self.answer(reply),
                Ok(Err(BatchFailure::Rejected(_))) if self.under_way.len() > 1 => {
                    self.later_parts.push(self.under_way.split_off_second_half());
                    continue;
                }
                Ok(Err(BatchFailure::Rejected(error))) => self.reject(&error),
                Ok(Err(BatchFailure::NotDone(error))) => self.give_up(&error),
                Ok(Err(BatchFailure::Unknown(error))) => self.lose(&(Arc::new(error) as _)),
                Err(payload) => self.lose(&NoAnswer::panicked(&*payload).into_source()),
            }
            self.under_way.clear();
            match self.later_parts.pop() {
                Some(part) => self.under_way = part,
                None => return,
            }
        }
    }

    fn answer(&mut self, reply: BatchReply) {
        self.extends.answer(&self.under_way.extends, reply.extends);
        self.settles.answer(&self.under_way.settles, reply.settles);
        self.sends.answer(&self.under_way.sends, reply.sends);
    }

    fn reject(&mut self, error: &MessagingError) {
        self.extends.reject(&self.under_way.extends, error);
        self.settles.reject(&self.under_way.settles, error);
        self.sends.reject(&self.under_way.sends, error);
    }

    fn give_up(&mut self, error: &MessagingError) {
        self.later_parts.clear();
        self.extends.give_up(error);
        self.settles.give_up(error);
        self.sends.give_up(error);
    }

    /// Only the part that the executor had may have been carried out; the later ones were not sent, and are not.
    fn lose(&mut self, source: &ErrorSource) {
        self.unknown(source);
        self.later_parts.clear();
        self.extends.give_up_after(source);
        self.settles.give_up_after(source);
        self.sends.give_up_after(source);
    }

    fn unknown(&mut self, source: &ErrorSource) {
        self.extends.unknown(&self.under_way.extends, source);
        self.settles.unknown(&self.under_way.settles, source);
        self.sends.unknown(&self.under_way.sends, source);
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
