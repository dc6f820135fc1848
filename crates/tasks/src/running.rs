//! Attempts that are under way in this process, and the signs of life that keep their leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use postrider_core::task::{Heartbeat, Progress, TaskLease, TaskStanding, TaskState, TaskStore};
use postrider_core::{Deadline, MessagingError, Moment};
use postrider_subscriber::CancellationToken;

/// How often a look is taken at whether running tasks were canceled. A handler is told within a second.
const LOOK: Duration = Duration::from_millis(400);

/// Why a handler was told to stop.
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
    /// The worker must stop and cannot wait any longer.
    WorkerStopped,
}

/// One attempt that is under way.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) lease: TaskLease,
    pub(crate) cancel: CancellationToken,
    reason: OnceLock<StopReason>,
    is_released: AtomicBool,
    // Locks, held for a move: a handler may tell of progress from any of its tasks.
    progress: Mutex<Option<Progress>>,
    renewed: Mutex<Moment>,
    lasts: Duration,
}

impl Running {
    /// Whether its lease surely lasts, by the clock of this process: counted from before the store was last asked for it.
    pub(crate) fn is_leased(&self) -> bool {
        lock(&self.renewed).elapsed() < self.lasts
    }

    /// Tells the handler to stop. The first reason counts.
    pub(crate) fn stop(&self, reason: StopReason) {
        let _ = self.reason.set(reason);
        self.cancel.cancel();
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.reason.get().copied()
    }

    /// The attempt was never begun, and is not to count.
    pub(crate) fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    pub(crate) fn note_progress(&self, progress: Progress) {
        *lock(&self.progress) = Some(progress);
    }

    /// What was told of progress and is not kept yet. Whoever finishes an attempt need not keep it.
    fn take_progress(&self) -> Option<Progress> {
        lock(&self.progress).take()
    }

    fn return_progress(&self, progress: Option<Progress>) {
        let mut kept = lock(&self.progress);
        // What was told meanwhile is newer.
        *kept = kept.take().or(progress);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attempts that are under way.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// How long a lease lasts.
    lease: Duration,
    // A lock, held for a look: twice an attempt, and by the heartbeat.
    running: Mutex<HashMap<TaskLease, Arc<Running>>>,
}

/// An attempt's place among those that are under way; dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    attempts: &'a Attempts,
    pub(crate) running: Arc<Running>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.attempts.running).remove(&self.running.lease);
    }
}

impl Attempts {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, running: Mutex::default() }
    }

    /// From here on the lease is kept, for which the store was asked at that time.
    pub(crate) fn begin(&self, lease: TaskLease, asked: Moment) -> Place<'_> {
        let running = Arc::new(Running {
            lease,
            cancel: CancellationToken::new(),
            reason: OnceLock::new(),
            is_released: AtomicBool::new(false),
            progress: Mutex::default(),
            renewed: Mutex::new(asked),
            lasts: self.lease,
        });
        lock(&self.running).insert(lease, running.clone());
        Place { attempts: self, running }
    }

    fn all(&self) -> Vec<Arc<Running>> {
        lock(&self.running).values().cloned().collect()
    }
}

/// Keeps the leases of everything that is under way, until it is told to end.
pub(crate) async fn keep_alive<S: TaskStore>(
    store: S,
    attempts: Arc<Attempts>,
    lease: Duration,
    end: CancellationToken,
) {
    let every = LOOK.min(lease / 4);
    let mut cannot_renew = false;
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        let running = attempts.all();
        if !running.is_empty() {
            keep_once(&store, &running, lease, &mut cannot_renew).await;
        }
    }
}

async fn keep_once<S: TaskStore>(store: &S, running: &[Arc<Running>], lease: Duration, cannot_renew: &mut bool) {
    let now = Moment::now();
    let (mut to_renew, mut to_look_at) = (Vec::new(), Vec::new());
    for running in running {
        let progress = running.take_progress();
        let age = now.since(*lock(&running.renewed));
        if progress.is_some() || age >= lease / 3 {
            to_renew.push((running, progress));
        } else if age >= LOOK / 2 {
            // A moment's work is over before anybody could have canceled it.
            to_look_at.push(running);
        }
    }
    renew(store, to_renew, lease, cannot_renew).await;
    look(store, &to_look_at).await;
}

/// `cannot_renew` says whether the store did not answer the last time: what lasts is logged once.
async fn renew<S: TaskStore>(
    store: &S,
    to_renew: Vec<(&Arc<Running>, Option<Progress>)>,
    lease: Duration,
    cannot_renew: &mut bool,
) {
    if to_renew.is_empty() {
        return;
    }
    let asked = Moment::now();
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
                    // Counted from before the call: the store counted from within it.
                    TaskStanding::Held | TaskStanding::Spent => *lock(&running.renewed) = asked,
                    TaskStanding::Lost(state) => running.stop(reason_of(state)),
                }
            }
        }
        Err(error) => {
            match std::mem::replace(cannot_renew, true) {
                false => {
                    tracing::warn!(%error, tasks = to_renew.len(), "leases of tasks cannot be renewed; trying again")
                }
                true => tracing::debug!(%error, tasks = to_renew.len(), "leases of tasks still cannot be renewed"),
            }
            let is_over = |error: &MessagingError| matches!(error, MessagingError::Closed { .. });
            for (running, progress) in to_renew {
                running.return_progress(progress);
                if is_over(&error) || !running.is_leased() {
                    // Another worker may have it by now.
                    running.stop(StopReason::LeaseLost);
                }
            }
        }
    }
}

async fn look<S: TaskStore>(store: &S, to_look_at: &[&Arc<Running>]) {
    if to_look_at.is_empty() {
        return;
    }
    let leases: Vec<TaskLease> = to_look_at.iter().map(|running| running.lease).collect();
    // A look that fails is taken again soon; the renewals tell of trouble.
    let Ok(standings) = store.standings(&leases, Deadline::after(Duration::from_secs(5))).await else { return };
    for (running, standing) in to_look_at.iter().zip(standings) {
        if let TaskStanding::Lost(state) = standing {
            running.stop(reason_of(state));
        }
    }
}

fn reason_of(state: Option<TaskState>) -> StopReason {
    match state {
        Some(TaskState::Canceled) => StopReason::Canceled,
        // Nobody else makes a task dead while its lease lasts.
        Some(TaskState::Dead) => StopReason::DeadlinePassed,
        _ => StopReason::LeaseLost,
    }
}
