//! Jobs: long operations that continue after their request.
//!
//! A job is a loop in this process over independent operations. One that is canceled, or dies with the process, has
//! done a part of its work and undone nothing.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use postrider::{MessagingError, QueueName, Timestamp};
use postrider_wire::job::{Job as JobView, JobKind, JobState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::access::Caller;
use crate::live::{Change, Live};

/// Upper bounds of the listed jobs, of one caller and in all.
const MAX_LISTED_PER_CALLER: usize = 100;
const MAX_LISTED: usize = 1000;

/// Upper bound of running jobs.
const MAX_RUNNING: usize = 20;

/// A job: its progress, and the token that cancels it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    view: watch::Sender<JobView>,
    /// Key of the caller that started it.
    owner: Arc<str>,
    /// Cancels the job.
    pub(crate) stop: CancellationToken,
    live: Arc<Live>,
}

impl Job {
    pub(crate) fn view(&self) -> JobView {
        self.view.borrow().clone()
    }

    /// Whether a caller may see and cancel it: the one that started it, and those that may use its queue.
    pub(crate) fn is_visible_to(&self, caller: &Caller) -> bool {
        let may_use = match &self.view.borrow().queue {
            Some(queue) => caller.may_use(queue),
            None => caller.queues.is_none(),
        };
        may_use || caller.key == self.owner
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        // `self` holds the sender, so the wait cannot fail.
        let _ = self.view.subscribe().wait_for(|view| view.state != JobState::Running).await;
    }

    fn change(&self, change: impl FnOnce(&mut JobView)) {
        self.view.send_modify(change);
        self.live.publish(Change::Job(self.view()));
    }

    /// Sets the number of rows to process.
    pub(crate) fn set_total(&self, total: usize) {
        self.change(|view| view.total = total as u64);
    }

    /// Sets the numbers of processed and skipped rows.
    pub(crate) fn progress(&self, done: usize, skipped: usize) {
        self.change(|view| (view.done, view.skipped) = (done as u64, skipped as u64));
    }
}

/// The jobs of this process.
#[derive(Debug)]
pub(crate) struct Jobs {
    jobs: Mutex<VecDeque<Job>>,
    live: Arc<Live>,
    stop: CancellationToken,
    background: TaskTracker,
}

impl Jobs {
    /// Jobs are canceled by `stop`, and tracked by `background` until they have ended.
    pub(crate) fn new(live: Arc<Live>, stop: CancellationToken, background: TaskTracker) -> Self {
        Self { jobs: Mutex::default(), live, stop, background }
    }

    /// Starts a job.
    pub(crate) fn begin<W, F>(
        &self,
        caller: &Caller,
        kind: JobKind,
        queue: Option<QueueName>,
        work: W,
    ) -> Result<JobView, MessagingError>
    where
        W: FnOnce(Job) -> F,
        F: Future<Output = Result<(), MessagingError>> + Send + 'static,
    {
        let view = JobView {
            id: Uuid::now_v7(),
            kind,
            queue,
            state: JobState::Running,
            total: 0,
            done: 0,
            skipped: 0,
            error: None,
            started_at: Timestamp::now(),
            ended_at: None,
        };
        let job = Job {
            view: watch::Sender::new(view.clone()),
            owner: caller.key.clone(),
            stop: self.stop.child_token(),
            live: self.live.clone(),
        };
        {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            check_room(&jobs)?;
            make_room(&mut jobs, MAX_LISTED_PER_CALLER, |job| job.owner == caller.key);
            make_room(&mut jobs, MAX_LISTED, |_| true);
            jobs.push_back(job.clone());
        }
        let work = work(job.clone());
        self.background.spawn(async move {
            // Not aborted: it checks for cancellation itself, between chunks, so that its counts are right.
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            let is_canceled = job.stop.is_cancelled();
            job.change(|view| {
                view.ended_at = Some(Timestamp::now());
                (view.state, view.error) = match ended {
                    Ok(Ok(())) if is_canceled && view.done + view.skipped < view.total => (JobState::Canceled, None),
                    Ok(Ok(())) => (JobState::Done, None),
                    Ok(Err(error)) => (JobState::Failed, Some(error.to_string())),
                    Err(_) => (JobState::Failed, Some("the job panicked; see the server's log".to_owned())),
                };
            });
        });
        Ok(view)
    }

    /// Fails if too many jobs run. Called before the audit entry is written.
    pub(crate) fn check_room(&self) -> Result<(), MessagingError> {
        check_room(&self.jobs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn find(&self, id: Uuid) -> Option<Job> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().find(|job| job.view().id == id).cloned()
    }

    /// Newest first.
    pub(crate) fn list(&self) -> Vec<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

/// Removes the oldest ended jobs that match until there is room for one more.
fn make_room(jobs: &mut VecDeque<Job>, most: usize, is_one: impl Fn(&Job) -> bool) {
    while jobs.iter().filter(|job| is_one(job)).count() >= most
        && let Some(old) = jobs.iter().position(|job| is_one(job) && job.view().state != JobState::Running)
    {
        jobs.remove(old);
    }
}

fn check_room(jobs: &VecDeque<Job>) -> Result<(), MessagingError> {
    let running = jobs.iter().filter(|job| job.view().state == JobState::Running).count();
    match running < MAX_RUNNING {
        true => Ok(()),
        false => Err(MessagingError::busy(format!("{running} jobs are running; wait for one to end, or cancel one"))),
    }
}

impl Job {
    /// Waits until the rate permits the next chunk, after `done` rows since `began`. Returns `false` if the job is
    /// canceled.
    pub(crate) async fn wait_for_rate(&self, began: tokio::time::Instant, done: usize, rate: Option<f64>) -> bool {
        if let Some(rate) = rate {
            let due = began + std::time::Duration::from_secs_f64(done as f64 / rate);
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.stop.cancelled() => {}
            }
        }
        !self.stop.is_cancelled()
    }
}

/// Size of a chunk at a rate: at most half a second's worth.
pub(crate) fn chunk_size(rate: Option<f64>, most: usize) -> usize {
    rate.map_or(most, |rate| (rate / 2.0).clamp(1.0, most as f64) as usize)
}

/// Checks the rate of a job.
pub(crate) fn check_rate(rate: Option<f64>) -> Result<(), MessagingError> {
    match rate {
        Some(rate) if !rate.is_finite() || rate < 1.0 / 86_400.0 => {
            Err(MessagingError::invalid("rate", "use a number of rows per second, at least one per day"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_job_is_tracked_until_it_has_ended() {
        let background = TaskTracker::new();
        let jobs = Jobs::new(Arc::default(), CancellationToken::new(), background.clone());
        let (end, ended) = oneshot::channel::<()>();
        let begin = jobs.begin(&Caller::open("127.0.0.1"), JobKind::Redrive, None, |_| async move {
            let _ = ended.await;
            Ok(())
        });
        let id = begin.unwrap().id;
        background.close();
        assert!(background.wait().now_or_never().is_none());
        drop(end);
        background.wait().await;
        assert_eq!(jobs.find(id).unwrap().view().state, JobState::Done);
    }
}
