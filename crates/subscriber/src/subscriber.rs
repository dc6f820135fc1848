//! A subscriber: the loops, started together and stopped together.

use std::fmt;
use std::sync::Arc;

use postrider_core::{MessagingService, QueueName};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::builder::{NoHandler, SubscriberBuilder};
use crate::counters::Counts;
use crate::engine::{Engine, Shared};
use crate::error::panic_text;
use crate::fetch::FetchLoop;
use crate::flush::FlushLoop;
use crate::health::Health;
use crate::leases::LeaseLoop;
use crate::queues::IntoQueues;
use crate::release_stuck::ReleaseStuckLoop;
use crate::report::{StopCause, StopReport};
use crate::run::Run;
use crate::shutdown::Shutdown;
use crate::stop::{Tasks, stop};
use crate::work::Worker;

/// Receives the messages of queues and runs a handler for them.
#[must_use = "a subscriber does nothing until it is run"]
pub struct Subscriber<P, R> {
    pub(crate) engine: Arc<Engine<P>>,
    pub(crate) runner: R,
}

impl<P: MessagingService> Subscriber<P, NoHandler> {
    /// Builds a subscriber of one queue or several, which still needs a handler.
    pub fn builder(provider: P, queues: impl IntoQueues) -> SubscriberBuilder<P, NoHandler> {
        SubscriberBuilder::new(provider, queues)
    }
}

impl<P: MessagingService, R: Run> Subscriber<P, R> {
    /// A monitor, to read its state while it runs.
    pub fn monitor(&self) -> Monitor {
        Monitor { queues: self.engine.queues.clone(), shared: self.engine.shared.clone() }
    }

    /// Handles messages until a stop is requested, the provider is closed, or nothing is left and `stop_when_empty` is
    /// on. Returns the report of the stop.
    ///
    /// Dropping the future stops at once: handlers are dropped, and every leased message is returned, best effort, with
    /// its delivery counted.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> StopReport {
        let shutdown = shutdown.into();
        let Self { engine, runner } = self;
        tracing::info!(queues = ?engine.queues, workers = engine.plan.workers, "subscriber started");
        let stopping = CancellationToken::new();
        let done = CancellationToken::new();
        let mut loops = JoinSet::new();
        loops.spawn(LeaseLoop::new(engine.clone()).run(done.clone()));
        loops.spawn(FlushLoop::new(engine.clone()).run(done.clone()));
        loops.spawn(ReleaseStuckLoop::new(engine.clone()).run(done.clone()));
        loops.spawn(FetchLoop::new(engine.clone()).run(stopping.clone()));
        let mut workers = JoinSet::new();
        for _ in 0..engine.plan.workers {
            workers.spawn(Worker::new(engine.clone(), runner.clone()).run(stopping.clone()));
        }
        let cause = tokio::select! {
            () = shutdown.requested() => StopCause::Requested,
            () = engine.empty.cancelled() => StopCause::NothingLeft,
            () = engine.closed.cancelled() => StopCause::ProviderClosed,
            ended = loops.join_next() => StopCause::Panicked(said(ended)),
            ended = workers.join_next() => StopCause::Panicked(said(ended)),
        };
        if !matches!(cause, StopCause::Requested | StopCause::NothingLeft) {
            tracing::error!(queues = ?engine.queues, %cause, "stopping");
        }
        stopping.cancel();
        stop(&engine, cause, Tasks { workers, loops, done }, &shutdown).await
    }
}

/// The panic message of a loop that ended early, which only a panic can cause.
fn said(ended: Option<Result<(), JoinError>>) -> String {
    match ended.and_then(Result::err).map(JoinError::try_into_panic) {
        Some(Ok(panic)) => panic_text(&*panic).to_owned(),
        Some(Err(_)) | None => "it ended".to_owned(),
    }
}

impl<P, R> fmt::Debug for Subscriber<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// Reads the state of a subscriber while it runs, and after. Clones are the same.
#[derive(Clone)]
pub struct Monitor {
    queues: Vec<QueueName>,
    shared: Arc<Shared>,
}

impl Monitor {
    /// The subscriber's queues.
    pub fn queues(&self) -> &[QueueName] {
        &self.queues
    }

    /// The counts of events and messages.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Its health.
    pub fn health(&self) -> Health {
        self.shared.health.read()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("queues", &self.queues).field("counts", &self.counts()).finish()
    }
}
