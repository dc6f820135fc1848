//! Queue mode: a subscriber brings the ids of tasks, and the store decides.
//!
//! A message is settled only after what it brought about is committed. One whose task has ended, is with another worker
//! or does not exist has nothing to do and is acknowledged; one that came too early goes back until its task is due. What
//! is no message of ours at all goes to the dead letters.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::message::MAX_DURATION;
use postrider_core::task::{ClaimAnswer, Finish, TaskId, TaskMessage, TaskStanding, TaskStore};
use postrider_core::{Deadline, MessagingError, MessagingService, Moment, Nack, RetryStrategy};
use postrider_subscriber::{CancellationToken, Delivery, HandlerError, Shutdown, StopCause, Subscriber};
use tokio_util::task::TaskTracker;

use crate::attempt::EndedAttempt;
use crate::backoff::Backoff;
use crate::gather::Gather;
use crate::polling::LAST_WORD;
use crate::worker::{Desk, TaskStopCause};

/// So many claims, or ends, go together.
const MOST_TOGETHER: usize = 500;

/// A message that is lost while its task is worked on changes nothing, so nobody is freed from it by force.
const NEVER_STUCK: Duration = MAX_DURATION;

/// What handles deliveries.
#[derive(Debug)]
struct Counter<S> {
    desk: Arc<Desk<S>>,
    claims: Gather<TaskId, ClaimAnswer>,
    ends: Gather<Finish, TaskStanding>,
    /// Cancelled when the worker cannot wait any longer. Not when a message's lease is lost: the task's own lease is what
    /// counts, and a broker that restarts must not cost an attempt.
    must_stop: CancellationToken,
    /// What was begun for deliveries, which the subscriber may give up before it has ended.
    under_way: TaskTracker,
}

/// Works on what is delivered until a stop is asked for, the provider is closed, or nothing is left and that ends it.
pub(crate) async fn run<S, P>(
    desk: Arc<Desk<S>>,
    provider: P,
    shutdown: &Shutdown,
) -> Result<TaskStopCause, MessagingError>
where
    S: TaskStore + Clone,
    P: MessagingService,
{
    let types = desk.runner.handlers.types();
    let queues = types.iter().map(|name| desk.store.routes().queue(name)).collect::<Result<Vec<_>, _>>()?;
    let (must_stop, under_way) = (CancellationToken::new(), TaskTracker::new());
    // However this ends, nothing goes on without it.
    let _stops = must_stop.clone().drop_guard();
    let counter = Counter {
        claims: claims(&desk),
        ends: ends(&desk),
        desk: desk.clone(),
        must_stop: must_stop.clone(),
        under_way: under_way.clone(),
    };
    let (counter, options) = (Arc::new(counter), &desk.options);
    // The store counts attempts. A delivery that fails is one that the store could not be asked about.
    let again = RetryStrategy::constant_with_jitter(Duration::from_millis(200), Duration::from_millis(800));
    let subscriber = Subscriber::builder(provider, queues)
        .handler(tower::service_fn(move |delivery: Delivery| counter.clone().deliver(delivery)))
        .max_workers(options.max_workers)
        // What is fetched together is claimed together, and a claim costs the store a commit.
        .fetch_batch_size(options.max_workers.clamp(100, MOST_TOGETHER))
        .retry_strategy(again)
        .graceful_timeout(options.graceful_timeout)
        // A handler that is told to stop has its own time for that, and its end must be told to the store.
        .cancel_timeout(options.cancel_timeout + LAST_WORD)
        .release_stuck_timeout(NEVER_STUCK)
        .max_fetch_interval(options.poll_interval)
        .stop_when_empty(options.stop_when_empty)
        .visibility(options.lease)
        .build()?;
    let patience = options.graceful_timeout;
    let out_of_patience = async {
        shutdown.requested().await;
        tokio::select! {
            () = tokio::time::sleep(patience) => {}
            () = shutdown.requested_at_once() => {}
        }
        must_stop.cancel();
        std::future::pending::<StopCause>().await
    };
    let ended = tokio::select! {
        report = subscriber.run(shutdown.clone()) => report.cause,
        // It only tells the attempts.
        cause = out_of_patience => cause,
    };
    // What the subscriber has given up still tells the store how it ended.
    must_stop.cancel();
    under_way.close();
    let _ = tokio::time::timeout(options.cancel_timeout + LAST_WORD, under_way.wait()).await;
    Ok(match ended {
        StopCause::Requested => TaskStopCause::Requested,
        StopCause::NothingLeft => TaskStopCause::NothingLeft,
        StopCause::ProviderClosed => TaskStopCause::StoreClosed,
        cause => TaskStopCause::Panicked(cause.to_string()),
    })
}

fn claims<S: TaskStore + Clone>(desk: &Arc<Desk<S>>) -> Gather<TaskId, ClaimAnswer> {
    let desk = desk.clone();
    Gather::new("claim tasks", MOST_TOGETHER, move |ids: Vec<TaskId>| {
        let desk = desk.clone();
        async move {
            let Desk { store, options, runner, .. } = &*desk;
            store.claim_by_id(&ids, options.lease, &runner.worker, Deadline::default()).await
        }
    })
}

fn ends<S: TaskStore + Clone>(desk: &Arc<Desk<S>>) -> Gather<Finish, TaskStanding> {
    let store = desk.store.clone();
    Gather::new("finish tasks", MOST_TOGETHER, move |ends: Vec<Finish>| {
        let store = store.clone();
        async move { store.finish(ends, Deadline::default()).await }
    })
}

/// What becomes of a message.
#[derive(Debug)]
enum Settled {
    Done,
    /// Its task is not due yet.
    ComesBack(Duration),
}

impl<S: TaskStore + Clone> Counter<S> {
    /// Sees to a delivery in a task of its own: whoever waits for it may leave, and what was claimed is still finished.
    async fn deliver(self: Arc<Self>, delivery: Delivery) -> Result<(), HandlerError> {
        let id = TaskMessage::read(&delivery.body).map_err(HandlerError::undecodable)?;
        let work = self.under_way.spawn(self.clone().see_to(id));
        match work.await.map_err(HandlerError::retryable)?? {
            Settled::Done => {}
            Settled::ComesBack(time) => drop(delivery.control().nack(Nack::retry_after(time))),
        }
        Ok(())
    }

    async fn see_to(self: Arc<Self>, id: TaskId) -> Result<Settled, HandlerError> {
        let asked = Moment::now();
        let claimed = self.claims.call(id).await.inspect_err(|error| self.desk.trouble(error))?;
        self.desk.answered();
        match claimed {
            ClaimAnswer::Claimed(task) => {
                let ended = self.desk.runner.run(*task, asked, &self.must_stop).await;
                self.tell(ended).await?;
            }
            ClaimAnswer::NotDue(time) => return Ok(Settled::ComesBack(time)),
            ClaimAnswer::NotClaimable => self.desk.counters.count_idle_delivery(),
        }
        Ok(Settled::Done)
    }

    /// Tells the store how an attempt ended, again and again while it cannot be reached: the message is kept meanwhile.
    async fn tell(&self, mut ended: EndedAttempt) -> Result<(), HandlerError> {
        let Some(finish) = ended.finish() else {
            self.desk.tell(&ended, None);
            return Ok(());
        };
        let mut backoff = Backoff::default();
        loop {
            let mut told = self.ends.call(finish.clone()).await;
            if told.as_ref().is_err_and(is_lasting) {
                // Another of its batch may be at fault: it is told by itself.
                let alone = self.desk.store.finish(vec![finish.clone()], Deadline::default()).await;
                told = alone.map(|standings| standings.first().copied().unwrap_or(TaskStanding::Lost(None)));
            }
            match told {
                Ok(standing) => {
                    self.desk.answered();
                    self.desk.tell(&ended, ended.kept(standing, self.desk.store.routes().mode));
                    return Ok(());
                }
                Err(error @ MessagingError::Closed { .. }) => return Err(error.into()),
                Err(error) if is_lasting(&error) => {
                    // The store will never take it. The lease runs out, and the task is tried again.
                    tracing::error!(%error, task = %ended.lease.id, "the end of an attempt cannot be kept");
                    self.desk.tell(&ended, None);
                    return Ok(());
                }
                Err(error) => {
                    ended.may_be_kept |= matches!(error, MessagingError::OutcomeUnknown { .. });
                    self.desk.trouble(&error);
                    backoff.pause().await;
                }
            }
        }
    }
}

/// Whether the same call will fail for as long as it is made.
pub(crate) fn is_lasting(error: &MessagingError) -> bool {
    !error.is_retryable() && !matches!(error, MessagingError::OutcomeUnknown { .. } | MessagingError::Closed { .. })
}
