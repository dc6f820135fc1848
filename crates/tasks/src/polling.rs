//! Polling mode: one loop claims tasks for its free workers and reports ended attempts, both in one transaction.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{ClaimTasks, FinishedAndClaimed, TaskNotice, TaskStanding, TaskStore, TaskType};
use postrider_core::{Deadline, MessagingError, Moment, WakeUps};
use postrider_subscriber::{CancellationToken, Shutdown};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::attempt::EndedAttempt;
use crate::backoff::Backoff;
use crate::delivered::is_lasting;
use crate::hints::next_hint;
use crate::worker::{Shared, TaskStopCause};

/// Time limit of the last reports, after handlers have had their time to end.
pub(crate) const LAST_REPORTS: Duration = Duration::from_secs(5);

/// Upper bound of reports in one transaction with a claim.
const MAX_REPORTS: usize = 1000;

/// The loop and its state.
pub(crate) struct Polling<S> {
    shared: Arc<Shared<S>>,
    types: Vec<TaskType>,
    /// A tokio task for each running attempt. Dropping them ends the attempts.
    attempts: JoinSet<EndedAttempt>,
    must_stop: CancellationToken,
    /// Ended attempts that are not reported to the store.
    unreported: Vec<EndedAttempt>,
    /// When to claim due tasks.
    claim_at: Instant,
    /// Number of next reports that go one by one, because one of them failed a batch.
    isolated: usize,
    /// Whether the next reports go without a claim, which may have been at fault.
    without_claim: bool,
    backoff: Backoff,
}

impl<S: TaskStore + Clone> Polling<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>) -> Self {
        Self {
            types: shared.runner.handlers.types(),
            shared,
            attempts: JoinSet::new(),
            must_stop: CancellationToken::new(),
            unreported: Vec::new(),
            claim_at: Instant::now(),
            isolated: 0,
            without_claim: false,
            backoff: Backoff::default(),
        }
    }

    /// Runs until a stop is requested, the store is closed, or nothing is left and `stop_when_empty` is on.
    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> TaskStopCause {
        let mut hints = self.subscribe().await;
        let cause = loop {
            tokio::select! {
                () = self.something_to_do(&mut hints) => {}
                () = shutdown.requested() => break TaskStopCause::Requested,
            }
            match self.exchange(true).await {
                Ok(Next::Continue) => {}
                Ok(Next::NothingLeft) => break TaskStopCause::NothingLeft,
                Err(MessagingError::Closed { .. }) => break TaskStopCause::StoreClosed,
                Err(error) => {
                    self.shared.store_failed(&error);
                    tokio::select! {
                        () = self.backoff.pause() => {}
                        () = shutdown.requested() => break TaskStopCause::Requested,
                    }
                }
            }
        };
        if cause == TaskStopCause::Requested {
            self.finish(shutdown).await;
        }
        cause
    }

    /// Subscribes to hints; without them the loop claims once a poll interval.
    async fn subscribe(&self) -> Option<WakeUps> {
        let notice = TaskNotice::Claimable(self.types.clone());
        let hints = self.shared.store.subscribe_tasks(notice, Deadline::default()).await;
        hints.inspect_err(|error| tracing::warn!(%error, "no hints of new tasks; polling for them instead")).ok()
    }

    fn free_workers(&self) -> usize {
        self.shared.options.max_workers.saturating_sub(self.attempts.len())
    }

    fn may_claim_now(&self) -> bool {
        self.free_workers() > 0 && self.claim_at <= Instant::now()
    }

    /// Waits until an attempt has ended, or a claim is due and a worker is free.
    async fn something_to_do(&mut self, hints: &mut Option<WakeUps>) {
        while self.unreported.is_empty() && !self.may_claim_now() {
            let (free_workers, claim_at) = (self.free_workers(), self.claim_at);
            tokio::select! {
                Some(ended) = self.attempts.join_next() => self.take(ended),
                hinted = next_hint(hints) => match hinted {
                    Some(()) => self.claim_at = Instant::now(),
                    None => *hints = None,
                },
                () = tokio::time::sleep_until(claim_at), if free_workers > 0 => {}
            }
        }
        // Yields first, so that handlers that are about to end share the report.
        tokio::task::yield_now().await;
        self.take_all();
    }

    fn take_all(&mut self) {
        while let Some(ended) = self.attempts.try_join_next() {
            self.take(ended);
        }
    }

    fn take(&mut self, ended: Result<EndedAttempt, JoinError>) {
        match ended {
            Ok(ended) => self.unreported.push(ended),
            // Panics of handlers are caught; this one came from the text of their error, or from a drop. The lease
            // ends, and the task is retried.
            Err(error) => tracing::error!(%error, "an attempt panicked outside its handler"),
        }
    }

    /// Reports ended attempts to the store and, if a claim is due, claims tasks.
    async fn exchange(&mut self, may_claim: bool) -> Result<Next, MessagingError> {
        let max = if self.isolated > 0 { 1 } else { MAX_REPORTS };
        let reported: Vec<EndedAttempt> = self.unreported.drain(..max.min(self.unreported.len())).collect();
        let free_workers = self.free_workers();
        let claim = (may_claim && !self.without_claim && self.may_claim_now()).then(|| ClaimTasks {
            types: self.types.clone(),
            max: free_workers,
            lease: self.shared.options.lease,
            worker: self.shared.runner.worker.to_string(),
        });
        let has_claimed = claim.is_some();
        let finished = reported.iter().filter_map(EndedAttempt::finish).collect();
        let claimed_at = Moment::now();
        let done = self.shared.store.finish_and_claim(finished, claim, Deadline::default()).await;
        match done {
            Ok(done) => {
                self.backoff.reset();
                self.shared.store_answered();
                self.isolated = self.isolated.saturating_sub(1);
                self.without_claim = false;
                self.shared.ended(&reported, &done.finished);
                Ok(if has_claimed { self.begin(done, free_workers, claimed_at) } else { Next::Continue })
            }
            Err(error) => self.put_back(reported, has_claimed, error),
        }
    }

    /// Puts reports back that failed, or whose outcome is unknown. A repeated report changes nothing.
    fn put_back(
        &mut self,
        mut reported: Vec<EndedAttempt>,
        has_claimed: bool,
        error: MessagingError,
    ) -> Result<Next, MessagingError> {
        let is_unknown = matches!(error, MessagingError::OutcomeUnknown { .. });
        reported.iter_mut().for_each(|ended| ended.may_be_kept |= is_unknown);
        if (is_lasting(&error) || is_refused_in_part(&error)) && !reported.is_empty() {
            if !has_claimed && reported.len() == 1 && is_lasting(&error) {
                // The store will never accept it. Its lease ends, and the task is retried.
                tracing::error!(%error, task = %reported[0].lease.id, "the store refuses the end of an attempt");
                self.shared.record_end(&reported[0], None);
                self.isolated = self.isolated.saturating_sub(1);
                return Ok(Next::Continue);
            }
            self.without_claim = true;
            if reported.len() > 1 {
                self.isolated = reported.len();
            }
        }
        self.unreported.splice(0..0, reported);
        Err(error)
    }

    /// Starts the claimed tasks, and sets the time of the next claim.
    fn begin(&mut self, done: FinishedAndClaimed, free_workers: usize, claimed_at: Moment) -> Next {
        let claimed = done.claimed.len();
        let now = Instant::now();
        let wait = done.next_due.unwrap_or(Duration::MAX).min(self.shared.options.poll_interval);
        // There may be more due tasks than were claimed.
        self.claim_at = if claimed > 0 { now } else { now + wait };
        debug_assert!(claimed <= free_workers);
        for task in done.claimed {
            let (shared, must_stop) = (self.shared.clone(), self.must_stop.clone());
            // A tokio task for each attempt, so that the handlers of a worker run in parallel.
            self.attempts.spawn(async move { shared.runner.run(task, claimed_at, &must_stop).await });
        }
        let is_idle = claimed == 0 && self.attempts.is_empty() && self.unreported.is_empty();
        if is_idle && self.shared.options.stop_when_empty {
            return Next::NothingLeft;
        }
        Next::Continue
    }

    /// Waits for running attempts to end, up to the time limit, and reports them.
    async fn finish(mut self, shutdown: &Shutdown) {
        let graceful_timeout = self.shared.options.graceful_timeout;
        let afterwards = self.shared.options.cancel_timeout + LAST_REPORTS;
        let must_stop = self.must_stop.clone();
        let out_of_time = async {
            tokio::select! {
                () = tokio::time::sleep(graceful_timeout) => {}
                () = shutdown.requested_at_once() => {}
            }
            must_stop.cancel();
            // A handler that blocks its thread, and a store that does not answer, are not waited for.
            tokio::time::sleep(afterwards).await;
        };
        let finish = async {
            while !self.attempts.is_empty() || !self.unreported.is_empty() {
                if self.unreported.is_empty()
                    && let Some(ended) = self.attempts.join_next().await
                {
                    self.take(ended);
                }
                self.take_all();
                match self.exchange(false).await {
                    Ok(_) => {}
                    Err(MessagingError::Closed { .. }) => return,
                    Err(error) => {
                        self.shared.store_failed(&error);
                        self.backoff.pause().await;
                    }
                }
            }
        };
        tokio::select! {
            () = finish => {}
            () = out_of_time => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Continue,
    NothingLeft,
}

impl<S: TaskStore> Shared<S> {
    /// Counts reported attempts, logs them and notifies the observer.
    pub(crate) fn ended(&self, reported: &[EndedAttempt], standings: &[TaskStanding]) {
        let (mut standings, mode) = (standings.iter(), self.store.routes().mode);
        for ended in reported {
            // Attempts without an outcome were not reported.
            let standing = ended.outcome.as_ref().and_then(|_| standings.next());
            self.record_end(ended, standing.and_then(|standing| ended.kept(*standing, mode)));
        }
    }
}

/// Whether the store recorded part of the reports and refuses the rest for good: one by one, each has a result of its
/// own.
fn is_refused_in_part(error: &MessagingError) -> bool {
    let MessagingError::OutcomeUnknown { source: Some(source), .. } = error else { return false };
    source.downcast_ref().is_some_and(is_lasting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_go_one_by_one_if_part_of_them_would_be_refused_again() {
        let unknown = |source: MessagingError| MessagingError::OutcomeUnknown {
            operation: "finish",
            ids: Vec::new(),
            source: Some(Arc::new(source)),
        };
        assert!(is_refused_in_part(&unknown(MessagingError::invalid("result", "it is too long"))));
        assert!(!is_refused_in_part(&unknown(MessagingError::DeadlineExceeded { operation: "finish" })));
    }
}
