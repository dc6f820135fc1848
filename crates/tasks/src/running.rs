//! The running attempts of this process, and the heartbeats that renew their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use postrider_core::task::{Heartbeat, Progress, TaskLease, TaskStanding, TaskState, TaskStore};
use postrider_core::{Deadline, MessagingError, Moment};
use postrider_subscriber::{CancellationToken, Control};

/// Interval at which running tasks are checked for a cancel, which reaches the handler within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// Why a handler was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The task was canceled.
    Canceled,
    /// The task's deadline has passed.
    DeadlinePassed,
    /// The attempt took longer than the worker allows.
    TimedOut,
    /// The lease was lost: another worker may have the task, or the store could not be reached in time.
    LeaseLost,
    /// The worker stops, and its time limit has ended.
    WorkerStopped,
}

/// A running attempt.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) lease: TaskLease,
    /// Has the lease's end, the handler's token and its own decision.
    pub(crate) control: Control,
    reason: OnceLock<StopReason>,
    // Mutexes, held for a move: a handler may report progress from any of its tasks.
    progress: Mutex<Option<Progress>>,
    renewed: Mutex<Moment>,
}

impl Running {
    /// Records that the lease was requested at this moment.
    fn renew(&self, lease: Duration, requested: Moment) {
        *lock(&self.renewed) = requested;
        self.control.is_leased_for(lease, requested);
    }

    /// Cancels the handler. The first reason counts.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.reason.set(reason);
        self.control.cancellation().cancel();
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.reason.get().copied()
    }

    pub(crate) fn note_progress(&self, progress: Progress) {
        *lock(&self.progress) = Some(progress);
    }

    /// The reported progress that is not stored yet. The end of an attempt need not store it.
    fn take_progress(&self) -> Option<Progress> {
        lock(&self.progress).take()
    }

    fn return_progress(&self, progress: Option<Progress>) {
        let mut kept = lock(&self.progress);
        // Progress that was reported meanwhile is newer.
        *kept = kept.take().or(progress);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running attempts.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// Length of a lease.
    pub(crate) lease: Duration,
    // A mutex, held for a look-up: twice an attempt, and by the heartbeat.
    running: Mutex<HashMap<TaskLease, Arc<Running>>>,
}

/// Registers a running attempt; dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Registered<'a> {
    attempts: &'a Attempts,
    pub(crate) running: Arc<Running>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.attempts.running).remove(&self.running.lease);
    }
}

impl Attempts {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, running: Mutex::default() }
    }

    /// Registers an attempt, whose lease is renewed from now on. `asked` is the time of its claim.
    pub(crate) fn begin(&self, lease: TaskLease, asked: Moment) -> Registered<'_> {
        let running = Arc::new(Running {
            lease,
            control: Control::new(),
            reason: OnceLock::new(),
            progress: Mutex::default(),
            renewed: Mutex::new(asked),
        });
        running.renew(self.lease, asked);
        lock(&self.running).insert(lease, running.clone());
        Registered { attempts: self, running }
    }

    fn all(&self) -> Vec<Arc<Running>> {
        lock(&self.running).values().cloned().collect()
    }
}

/// Renews the leases of the running attempts, until `end` is cancelled.
pub(crate) async fn keep_alive<S: TaskStore>(
    store: S,
    attempts: Arc<Attempts>,
    lease: Duration,
    end: CancellationToken,
) {
    let interval = CHECK_INTERVAL.min(lease / 4);
    let mut cannot_renew = false;
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        let running = attempts.all();
        if !running.is_empty() {
            keep_once(&store, &running, lease, &mut cannot_renew).await;
        }
    }
}

async fn keep_once<S: TaskStore>(store: &S, running: &[Arc<Running>], lease: Duration, cannot_renew: &mut bool) {
    let now = Moment::now();
    let (mut to_renew, mut to_check) = (Vec::new(), Vec::new());
    for running in running {
        let progress = running.take_progress();
        let age = now.since(*lock(&running.renewed));
        if progress.is_some() || age >= lease / 3 {
            to_renew.push((running, progress));
        } else if age >= CHECK_INTERVAL / 2 {
            // A shorter attempt ends before it can be canceled.
            to_check.push(running);
        }
    }
    renew(store, to_renew, lease, cannot_renew).await;
    check(store, &to_check).await;
}

/// Renews leases. `cannot_renew` is whether the last renewal failed, so that an outage is logged once.
async fn renew<S: TaskStore>(
    store: &S,
    to_renew: Vec<(&Arc<Running>, Option<Progress>)>,
    lease: Duration,
    cannot_renew: &mut bool,
) {
    if to_renew.is_empty() {
        return;
    }
    let requested = Moment::now();
    let heartbeats =
        to_renew.iter().map(|(running, progress)| Heartbeat { lease: running.lease, progress: progress.clone() });
    let deadline = Deadline::after(lease / 2);
    match store.heartbeat(heartbeats.collect(), lease, deadline).await {
        Ok(standings) => {
            if std::mem::take(cannot_renew) {
                tracing::warn!("leases of tasks can be renewed again");
            }
            for ((running, _), standing) in to_renew.into_iter().zip(standings) {
                match standing {
                    // Counted from before the call, because the store counts from within it.
                    TaskStanding::Held | TaskStanding::Spent => running.renew(lease, requested),
                    TaskStanding::Lost(state) => running.stop(reason_of(state)),
                }
            }
        }
        Err(error) => {
            match std::mem::replace(cannot_renew, true) {
                false => {
                    tracing::warn!(%error, tasks = to_renew.len(), "leases of tasks cannot be renewed; retrying")
                }
                true => tracing::debug!(%error, tasks = to_renew.len(), "leases of tasks still cannot be renewed"),
            }
            let is_over = |error: &MessagingError| matches!(error, MessagingError::Closed { .. });
            for (running, progress) in to_renew {
                running.return_progress(progress);
                if is_over(&error) || !running.control.is_leased() {
                    // Another worker may have it by now.
                    running.stop(StopReason::LeaseLost);
                }
            }
        }
    }
}

/// Cancels attempts whose task is no longer theirs.
async fn check<S: TaskStore>(store: &S, to_check: &[&Arc<Running>]) {
    if to_check.is_empty() {
        return;
    }
    let leases: Vec<TaskLease> = to_check.iter().map(|running| running.lease).collect();
    // A failed check is repeated soon; errors are logged by the renewals.
    let Ok(standings) = store.standings(&leases, Deadline::after(Duration::from_secs(5))).await else { return };
    for (running, standing) in to_check.iter().zip(standings) {
        if let TaskStanding::Lost(state) = standing {
            running.stop(reason_of(state));
        }
    }
}

fn reason_of(state: Option<TaskState>) -> StopReason {
    match state {
        Some(TaskState::Canceled) => StopReason::Canceled,
        // While its lease is valid, only a passed deadline makes a task dead.
        Some(TaskState::Dead) => StopReason::DeadlinePassed,
        _ => StopReason::LeaseLost,
    }
}
