//! Queue mode: a subscriber brings the ids of tasks, and the store decides.
//!
//! A message is settled only after what it brought about is committed. One whose task has ended, is with another worker
//! or does not exist has nothing to do and is acknowledged; one that came too early goes back until its task is due. What
//! is no message of ours at all goes to the dead letters.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{ClaimAnswer, Finish, TaskId, TaskMessage, TaskStanding, TaskStore};
use postrider_core::{Deadline, MessagingError, MessagingService, Nack, RetryStrategy};
use postrider_subscriber::{Delivery, HandlerError, Shutdown, StopCause, Subscriber};

use crate::attempt::EndedAttempt;
use crate::backoff::Backoff;
use crate::gather::Gather;
use crate::worker::{Desk, TaskStopCause};

/// So many claims, or ends, go together.
const MOST_TOGETHER: usize = 500;

/// What handles deliveries.
#[derive(Debug)]
struct Counter<S> {
    desk: Arc<Desk<S>>,
    claims: Gather<TaskId, ClaimAnswer>,
    ends: Gather<Finish, TaskStanding>,
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
    let counter = Arc::new(Counter { claims: claims(&desk), ends: ends(&desk), desk: desk.clone() });
    let options = &desk.options;
    // The store counts attempts. A delivery that fails is one that the store could not be asked about.
    let again = RetryStrategy::constant_with_jitter(Duration::from_millis(200), Duration::from_millis(800));
    let subscriber = Subscriber::builder(provider, queues)
        .handler(tower::service_fn(move |delivery: Delivery| {
            let counter = counter.clone();
            async move { counter.deliver(delivery).await }
        }))
        .max_workers(options.max_workers)
        // What is fetched together is claimed together, and a claim costs the store a commit.
        .fetch_batch_size(options.max_workers.clamp(100, MOST_TOGETHER))
        .retry_strategy(again)
        .graceful_timeout(options.graceful_timeout)
        // A handler that is told to stop has its own time for that, and its end must be told to the store.
        .cancel_timeout(options.cancel_timeout + Duration::from_secs(5))
        .max_fetch_interval(options.poll_interval)
        .stop_when_empty(options.stop_when_empty)
        .visibility(options.lease)
        .build()?;
    Ok(match subscriber.run(shutdown.clone()).await.cause {
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

impl<S: TaskStore + Clone> Counter<S> {
    async fn deliver(&self, delivery: Delivery) -> Result<(), HandlerError> {
        let id = TaskMessage::read(&delivery.body).map_err(HandlerError::undecodable)?;
        match self.claims.call(id).await.inspect_err(|error| self.desk.trouble(error))? {
            ClaimAnswer::Claimed(task) => {
                let ended = self.desk.runner.run(*task, delivery.cancellation()).await;
                self.tell(ended).await
            }
            ClaimAnswer::NotDue(time) => {
                delivery.control().nack(Nack::retry_after(time));
                Ok(())
            }
            ClaimAnswer::NotClaimable => {
                self.desk.counters.count_idle_delivery();
                Ok(())
            }
        }
    }

    /// Tells the store how an attempt ended, again and again while it cannot be reached: the message is kept meanwhile.
    async fn tell(&self, ended: EndedAttempt) -> Result<(), HandlerError> {
        let Some(finish) = ended.finish() else {
            self.desk.tell(&ended, false);
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
                    self.desk.tell(&ended, standing == TaskStanding::Held);
                    return Ok(());
                }
                Err(error @ MessagingError::Closed { .. }) => return Err(error.into()),
                Err(error) if is_lasting(&error) => {
                    // The store will never take it. The lease runs out, and the task is tried again.
                    tracing::error!(%error, task = %ended.lease.id, "the end of an attempt cannot be kept");
                    return Ok(());
                }
                Err(error) => {
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
