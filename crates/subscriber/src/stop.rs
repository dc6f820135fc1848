//! Stops a subscriber: no new handlers, then a time limit for running ones, then the rest is returned. Each step is
//! bounded.

use std::future::Future;
use std::time::Duration;

use postrider_core::MessagingService;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::Buffer;
use crate::counters::Counts;
use crate::engine::{Engine, Shared};
use crate::health::HealthState;
use crate::held::later;
use crate::report::{StopCause, StopReport};
use crate::shutdown::Shutdown;

/// Time limit of the last settlements.
const LAST_FLUSH: Duration = Duration::from_secs(10);
/// Time limit of the last settlements when a stop at once is requested.
const LAST_FLUSH_AT_ONCE: Duration = Duration::from_secs(1);
/// Time limit for finished tasks to end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The tasks of a subscriber. Dropped, they are aborted.
pub(crate) struct Tasks {
    /// Ended by the request to stop.
    pub(crate) workers: JoinSet<()>,
    /// Ended when everything is settled.
    pub(crate) loops: JoinSet<()>,
    pub(crate) done: CancellationToken,
}

pub(crate) async fn stop<P: MessagingService>(
    engine: &Engine<P>,
    cause: StopCause,
    mut tasks: Tasks,
    shutdown: &Shutdown,
) -> StopReport {
    let shared = &*engine.shared;
    let began = Instant::now();
    let before = shared.counters.counts();
    shared.health.ended(HealthState::Stopping);
    shared.change(|buffer, now, _| {
        buffer.is_stopping = true;
        buffer.release_waiting(now);
    });
    tracing::info!(in_flight = shared.counts().in_flight, "stopping");

    let has_no_handlers = |buffer: &Buffer| buffer.busy == 0;
    drained(shared, has_no_handlers, later(began, engine.plan.graceful_timeout), shutdown.requested_at_once()).await;
    shared.buffer().cancel_running();
    let cancelled = later(Instant::now(), engine.plan.cancel_timeout);
    drained(shared, has_no_handlers, cancelled, shutdown.requested_at_once()).await;
    let abandoned = shared.change(|buffer, _, tally| buffer.abandon_running(tally));
    // Outside the mutex: dropping returns each message to its store.
    drop(abandoned);
    join(&mut tasks.workers).await;

    let limit = if shutdown.is_at_once() { LAST_FLUSH_AT_ONCE } else { LAST_FLUSH };
    let cut_short = async {
        shutdown.requested_at_once().await;
        tokio::time::sleep(LAST_FLUSH_AT_ONCE).await;
    };
    drained(shared, Buffer::is_clean, later(Instant::now(), limit), cut_short).await;
    tasks.done.cancel();
    join(&mut tasks.loops).await;
    let left = std::mem::take(&mut shared.buffer().held);
    let unsettled = left.len() as u64;
    drop(left);

    shared.health.ended(HealthState::Stopped);
    let totals = shared.counts();
    let settled = |counts: &Counts| counts.acked + counts.retried + counts.dead;
    let report = StopReport {
        cause,
        finished: settled(&totals) - settled(&before),
        released: totals.released - before.released,
        abandoned: totals.abandoned - before.abandoned,
        unsettled,
        was_forced: shutdown.is_at_once(),
        took: began.elapsed(),
        totals,
    };
    tracing::info!(%report, "stopped");
    report
}

/// Waits until the buffer satisfies the condition, until `until`, or until `cut_short` ends.
async fn drained(
    shared: &Shared,
    is_drained: impl Fn(&Buffer) -> bool,
    until: Instant,
    cut_short: impl Future<Output = ()>,
) {
    let settled = async {
        loop {
            let mut changed = std::pin::pin!(shared.drained.notified());
            // Registered before the check, or a change between the two would be missed.
            changed.as_mut().enable();
            if is_drained(&shared.buffer()) {
                return;
            }
            changed.await;
        }
    };
    tokio::select! {
        biased;
        () = settled => {}
        () = cut_short => {}
        () = tokio::time::sleep_until(until) => {}
    }
}

/// Waits for tasks to end, and aborts those that do not in time.
async fn join(tasks: &mut JoinSet<()>) {
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(JOIN_TIMEOUT, all).await.is_err() {
        tasks.abort_all();
    }
}
