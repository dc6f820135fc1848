//! Queue mode: a subscriber delivers the ids of tasks, and the store decides.
//!
//! A message is settled only after the changes that it caused are committed. If its task has ended, is with another
//! worker or does not exist, there is nothing to do and it is acknowledged; a message that comes too early is delivered
//! again when its task is due. A message without a task id is dead-lettered.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::message::MAX_DURATION;
use postrider_core::task::{ClaimAnswer, Finish, TaskId, TaskMessage, TaskStanding, TaskStore};
use postrider_core::{Deadline, MessagingError, MessagingService, Moment, Nack, RetryStrategy};
use postrider_subscriber::{CancellationToken, Delivery, HandlerError, Shutdown, StopCause, Subscriber};
use tokio_util::task::TaskTracker;

use crate::attempt::EndedAttempt;
use crate::backoff::Backoff;
use crate::batcher::Batcher;
use crate::polling::LAST_REPORTS;
use crate::worker::{Shared, TaskStopCause};

/// Upper bound of claims, or ends, in one call of the store.
const MAX_BATCH: usize = 500;

/// The release-stuck timeout: losing the message while its task runs changes nothing, so the handler is never dropped
/// for it.
const NEVER_STUCK: Duration = MAX_DURATION;

/// Handles deliveries.
#[derive(Debug)]
struct DeliveryHandler<S> {
    shared: Arc<Shared<S>>,
    claims: Batcher<TaskId, ClaimAnswer>,
    ends: Batcher<Finish, TaskStanding>,
    /// Cancelled when the time limit of the worker's stop has ended. Not when a message's lease is lost: only the
    /// task's own lease counts, and a restart of the broker must not cost an attempt.
    must_stop: CancellationToken,
    /// Attempts that were started for deliveries, which the subscriber may drop before they end.
    under_way: TaskTracker,
}

/// Handles deliveries until a stop is requested, the provider is closed, or nothing is left and `stop_when_empty` is
/// on.
pub(crate) async fn run<S, P>(
    shared: Arc<Shared<S>>,
    provider: P,
    shutdown: &Shutdown,
) -> Result<TaskStopCause, MessagingError>
where
    S: TaskStore + Clone,
    P: MessagingService,
{
    let types = shared.runner.handlers.types();
    let queues = types.iter().map(|name| shared.store.routes().queue(name)).collect::<Result<Vec<_>, _>>()?;
    let (must_stop, under_way) = (CancellationToken::new(), TaskTracker::new());
    // Cancels the attempts however this function ends.
    let _stops = must_stop.clone().drop_guard();
    let handler = DeliveryHandler {
        claims: claims(&shared),
        ends: ends(&shared),
        shared: shared.clone(),
        must_stop: must_stop.clone(),
        under_way: under_way.clone(),
    };
    let (handler, options) = (Arc::new(handler), &shared.options);
    // The store counts attempts. A delivery fails only if the store could not be reached.
    let again = RetryStrategy::constant_with_jitter(Duration::from_millis(200), Duration::from_millis(800));
    let subscriber = Subscriber::builder(provider, queues)
        .handler(tower::service_fn(move |delivery: Delivery| handler.clone().deliver(delivery)))
        .max_workers(options.max_workers)
        // Messages that are fetched together are claimed together, and a claim costs the store a commit.
        .fetch_batch_size(options.max_workers.clamp(100, MAX_BATCH))
        .retry_strategy(again)
        .graceful_timeout(options.graceful_timeout)
        // A cancelled handler has its own time to end, and its end must then be reported to the store.
        .cancel_timeout(options.cancel_timeout + LAST_REPORTS)
        .release_stuck_timeout(NEVER_STUCK)
        .max_fetch_interval(options.poll_interval)
        .stop_when_empty(options.stop_when_empty)
        .visibility(options.lease)
        .build()?;
    let graceful_timeout = options.graceful_timeout;
    let out_of_time = async {
        shutdown.requested().await;
        tokio::select! {
            () = tokio::time::sleep(graceful_timeout) => {}
            () = shutdown.requested_at_once() => {}
        }
        must_stop.cancel();
        std::future::pending::<StopCause>().await
    };
    let ended = tokio::select! {
        report = subscriber.run(shutdown.clone()) => report.cause,
        // It only cancels the attempts, and never ends.
        cause = out_of_time => cause,
    };
    // Attempts that the subscriber has dropped still report their end to the store.
    must_stop.cancel();
    under_way.close();
    let _ = tokio::time::timeout(options.cancel_timeout + LAST_REPORTS, under_way.wait()).await;
    Ok(match ended {
        StopCause::Requested => TaskStopCause::Requested,
        StopCause::NothingLeft => TaskStopCause::NothingLeft,
        StopCause::ProviderClosed => TaskStopCause::StoreClosed,
        cause => TaskStopCause::Panicked(cause.to_string()),
    })
}

fn claims<S: TaskStore + Clone>(shared: &Arc<Shared<S>>) -> Batcher<TaskId, ClaimAnswer> {
    let shared = shared.clone();
    Batcher::new("claim tasks", MAX_BATCH, move |ids: Vec<TaskId>| {
        let shared = shared.clone();
        async move {
            let Shared { store, options, runner, .. } = &*shared;
            store.claim_by_id(&ids, options.lease, &runner.worker, Deadline::default()).await
        }
    })
}

fn ends<S: TaskStore + Clone>(shared: &Arc<Shared<S>>) -> Batcher<Finish, TaskStanding> {
    let store = shared.store.clone();
    Batcher::new("finish tasks", MAX_BATCH, move |ends: Vec<Finish>| {
        let store = store.clone();
        async move { store.finish(ends, Deadline::default()).await }
    })
}

/// The outcome of a delivery.
#[derive(Debug)]
enum DeliveryOutcome {
    Done,
    /// The task is not due yet: deliver it again after this time.
    Redeliver(Duration),
}

impl<S: TaskStore + Clone> DeliveryHandler<S> {
    /// Handles a delivery in a separate task: when the caller is dropped, the claimed task is still finished.
    async fn deliver(self: Arc<Self>, delivery: Delivery) -> Result<(), HandlerError> {
        let id = TaskMessage::read(&delivery.body).map_err(HandlerError::undecodable)?;
        let work = self.under_way.spawn(self.clone().run_task(id));
        match work.await.map_err(HandlerError::retryable)?? {
            DeliveryOutcome::Done => {}
            DeliveryOutcome::Redeliver(time) => drop(delivery.control().nack(Nack::retry_after(time))),
        }
        Ok(())
    }

    async fn run_task(self: Arc<Self>, id: TaskId) -> Result<DeliveryOutcome, HandlerError> {
        let claimed_at = Moment::now();
        let claimed = self.claims.call(id).await.inspect_err(|error| self.shared.store_failed(error))?;
        self.shared.store_answered();
        match claimed {
            ClaimAnswer::Claimed(task) => {
                let ended = self.shared.runner.run(*task, claimed_at, &self.must_stop).await;
                self.report(ended).await?;
            }
            ClaimAnswer::NotDue(time) => return Ok(DeliveryOutcome::Redeliver(time)),
            ClaimAnswer::NotClaimable => self.shared.counters.count_idle_delivery(),
        }
        Ok(DeliveryOutcome::Done)
    }

    /// Reports the end of an attempt to the store, and retries while it cannot be reached: the message stays leased.
    async fn report(&self, mut ended: EndedAttempt) -> Result<(), HandlerError> {
        let Some(finish) = ended.finish() else {
            self.shared.record_end(&ended, None);
            return Ok(());
        };
        let mut backoff = Backoff::default();
        loop {
            let mut reported = self.ends.call(finish.clone()).await;
            if reported.as_ref().is_err_and(is_lasting) {
                // Another end of its batch may be at fault: this one is reported by itself.
                let alone = self.shared.store.finish(vec![finish.clone()], Deadline::default()).await;
                reported = alone.map(|standings| standings.first().copied().unwrap_or(TaskStanding::Lost(None)));
            }
            match reported {
                Ok(standing) => {
                    self.shared.store_answered();
                    self.shared.record_end(&ended, ended.kept(standing, self.shared.store.routes().mode));
                    return Ok(());
                }
                Err(error @ MessagingError::Closed { .. }) => return Err(error.into()),
                Err(error) if is_lasting(&error) => {
                    // The store will never accept it. The lease ends, and the task is retried.
                    tracing::error!(%error, task = %ended.lease.id, "the store refuses the end of an attempt");
                    self.shared.record_end(&ended, None);
                    return Ok(());
                }
                Err(error) => {
                    ended.may_be_kept |= matches!(error, MessagingError::OutcomeUnknown { .. });
                    self.shared.store_failed(&error);
                    backoff.pause().await;
                }
            }
        }
    }
}

/// Whether the same call would fail again every time.
pub(crate) fn is_lasting(error: &MessagingError) -> bool {
    !error.is_retryable() && !matches!(error, MessagingError::OutcomeUnknown { .. } | MessagingError::Closed { .. })
}
