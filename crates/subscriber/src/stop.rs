//! How a subscriber stops: nothing new, a time for what has begun, then the rest is given back. Each step is bounded.

use std::future::Future;
use std::time::Duration;

use postrider_core::MessagingService;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::Buffer;
use crate::counters::Counts;
use crate::engine::{Desk, Engine};
use crate::health::HealthState;
use crate::held::later;
use crate::report::{StopCause, StopReport};
use crate::shutdown::Shutdown;

/// How long the store may take for the last settlements.
const LAST_FLUSH: Duration = Duration::from_secs(10);
/// The same, when the stop was asked for a second time.
const LAST_FLUSH_AT_ONCE: Duration = Duration::from_secs(1);
/// How long tasks may take to end that have nothing left to do.
const LEAVE: Duration = Duration::from_secs(1);

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
    let desk = &*engine.desk;
    let began = Instant::now();
    let before = desk.counters.counts();
    desk.health.ended(HealthState::Stopping);
    desk.change(|buffer, now, _| {
        buffer.is_stopping = true;
        buffer.release_waiting(now);
    });
    tracing::info!(in_flight = desk.counts().in_flight, "stopping");

    let has_no_handlers = |buffer: &Buffer| buffer.busy == 0;
    quiet(desk, has_no_handlers, later(began, engine.plan.graceful_timeout), shutdown.requested_at_once()).await;
    desk.buffer().cancel_running();
    quiet(desk, has_no_handlers, later(Instant::now(), engine.plan.cancel_timeout), shutdown.requested_at_once()).await;
    let abandoned = desk.change(|buffer, _, tally| buffer.abandon_running(tally));
    // Outside the lock: dropping gives each back to its store.
    drop(abandoned);
    leave(&mut tasks.workers).await;

    let patience = if shutdown.is_at_once() { LAST_FLUSH_AT_ONCE } else { LAST_FLUSH };
    let hurry = async {
        shutdown.requested_at_once().await;
        tokio::time::sleep(LAST_FLUSH_AT_ONCE).await;
    };
    quiet(desk, Buffer::is_clean, later(Instant::now(), patience), hurry).await;
    tasks.done.cancel();
    leave(&mut tasks.loops).await;
    let left = std::mem::take(&mut desk.buffer().held);
    let unsettled = left.len() as u64;
    drop(left);

    desk.health.ended(HealthState::Stopped);
    let totals = desk.counts();
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

/// Waits until the buffer is as it should be, until a time at most, or until it is cut short.
async fn quiet(desk: &Desk, is_quiet: impl Fn(&Buffer) -> bool, until: Instant, cut_short: impl Future<Output = ()>) {
    let settled = async {
        loop {
            let mut changed = std::pin::pin!(desk.quiet.notified());
            // Registered before the look, or a change between the two would be missed.
            changed.as_mut().enable();
            if is_quiet(&desk.buffer()) {
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

/// Waits a little for tasks that were told to end; the others are aborted and not waited for.
async fn leave(tasks: &mut JoinSet<()>) {
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LEAVE, all).await.is_err() {
        tasks.abort_all();
    }
}
