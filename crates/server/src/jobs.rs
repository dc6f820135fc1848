//! Work that goes on after its request: redrives and replays at a rate.
//!
//! A job is a loop in this process over operations that are each complete by themselves, so one that ends early, with the
//! process or by a person's word, has done a part and undone nothing.

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

/// Upper bounds of the jobs that are remembered, of one caller and in all.
const REMEMBERED_OF_A_CALLER: usize = 100;
const REMEMBERED: usize = 1000;

/// So many run at once.
const MOST_RUNNING: usize = 20;

/// A job that runs: what it tells others, and what they tell it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    view: watch::Sender<JobView>,
    /// The key of whoever began it.
    began_by: Arc<str>,
    /// Asked to end.
    pub(crate) stop: CancellationToken,
    live: Arc<Live>,
}

impl Job {
    pub(crate) fn view(&self) -> JobView {
        self.view.borrow().clone()
    }

    /// Whether somebody may see it, and end it: whoever began it, and whoever may use all that it changes.
    pub(crate) fn is_for(&self, caller: &Caller) -> bool {
        let may_use = match &self.view.borrow().queue {
            Some(queue) => caller.may_use(queue),
            None => caller.queues.is_none(),
        };
        may_use || caller.key == self.began_by
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        // The sender is here, so it does not end before.
        let _ = self.view.subscribe().wait_for(|view| view.state != JobState::Running).await;
    }

    fn change(&self, change: impl FnOnce(&mut JobView)) {
        self.view.send_modify(change);
        self.live.tell(Change::Job(self.view()));
    }

    /// How much there is to do.
    pub(crate) fn of(&self, total: usize) {
        self.change(|view| view.total = total as u64);
    }

    /// How much is done.
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
    begun: TaskTracker,
}

impl Jobs {
    /// They end when `stop` is asked for, and are among what was `begun` until they have.
    pub(crate) fn new(live: Arc<Live>, stop: CancellationToken, begun: TaskTracker) -> Self {
        Self { jobs: Mutex::default(), live, stop, begun }
    }

    /// Begins a job.
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
            began_by: caller.key.clone(),
            stop: self.stop.child_token(),
            live: self.live.clone(),
        };
        {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            check_room(&jobs)?;
            make_room(&mut jobs, REMEMBERED_OF_A_CALLER, |job| job.began_by == caller.key);
            make_room(&mut jobs, REMEMBERED, |_| true);
            jobs.push_back(job.clone());
        }
        let work = work(job.clone());
        self.begun.spawn(async move {
            // To its end: it looks itself whether it shall stop, between two steps that are each complete and counted.
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            let is_canceled = job.stop.is_cancelled();
            job.change(|view| {
                view.ended_at = Some(Timestamp::now());
                (view.state, view.error) = match ended {
                    Ok(Ok(())) if is_canceled && view.done + view.skipped < view.total => (JobState::Canceled, None),
                    Ok(Ok(())) => (JobState::Done, None),
                    Ok(Err(error)) => (JobState::Failed, Some(error.to_string())),
                    Err(_) => (JobState::Failed, Some("the server failed at it; its log says more".to_owned())),
                };
            });
        });
        Ok(view)
    }

    /// Refuses a job for which there is no room, before anybody writes down that it is begun.
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

/// Forgets the oldest of some jobs, but for those that run, until there is room for one more.
fn make_room(jobs: &mut VecDeque<Job>, most: usize, is_one: impl Fn(&Job) -> bool) {
    while jobs.iter().filter(|job| is_one(job)).count() >= most
        && let Some(old) = jobs.iter().position(|job| is_one(job) && job.view().state != JobState::Running)
    {
        jobs.remove(old);
    }
}

fn check_room(jobs: &VecDeque<Job>) -> Result<(), MessagingError> {
    let running = jobs.iter().filter(|job| job.view().state == JobState::Running).count();
    match running < MOST_RUNNING {
        true => Ok(()),
        false => Err(MessagingError::busy(format!("{running} jobs run already; wait for one to end, or cancel it"))),
    }
}

impl Job {
    /// Waits so that no more than `rate` a second are done, of which `done` are since `began`. Answers whether the job goes
    /// on.
    pub(crate) async fn goes_on(&self, began: tokio::time::Instant, done: usize, rate: Option<f64>) -> bool {
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

/// How many go together at a rate: at most half a second's worth.
pub(crate) fn chunk(rate: Option<f64>, most: usize) -> usize {
    rate.map_or(most, |rate| (rate / 2.0).clamp(1.0, most as f64) as usize)
}

/// Refuses a rate that cannot be meant.
pub(crate) fn check_rate(rate: Option<f64>) -> Result<(), MessagingError> {
    match rate {
        Some(rate) if !rate.is_finite() || rate < 1.0 / 86_400.0 => {
            Err(MessagingError::invalid("rate", "it is a number a second, at least one a day"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_job_is_under_way_until_it_has_ended() {
        let begun = TaskTracker::new();
        let jobs = Jobs::new(Arc::default(), CancellationToken::new(), begun.clone());
        let (end, ended) = oneshot::channel::<()>();
        let begin = jobs.begin(&Caller::open("127.0.0.1"), JobKind::Redrive, None, |_| async move {
            let _ = ended.await;
            Ok(())
        });
        let id = begin.unwrap().id;
        begun.close();
        assert!(begun.wait().now_or_never().is_none());
        drop(end);
        begun.wait().await;
        assert_eq!(jobs.find(id).unwrap().view().state, JobState::Done);
    }
}
