//! Polling mode: one loop claims what there is room for and tells what has ended, both in one transaction.

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
use crate::worker::{Desk, TaskStopCause};

/// How long the store has for the last ends, after handlers have had their time to stop.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(5);

/// So many ends share a transaction with a claim.
const MOST_TOGETHER: usize = 1000;

/// The loop, and what it knows.
pub(crate) struct Polling<S> {
    desk: Arc<Desk<S>>,
    types: Vec<TaskType>,
    /// A task for each attempt that is under way. They end with this.
    attempts: JoinSet<EndedAttempt>,
    must_stop: CancellationToken,
    /// Ended, and not yet told to the store.
    untold: Vec<EndedAttempt>,
    /// When to look for due tasks.
    look_at: Instant,
    /// How many of the next ends are told one by one, because one of them spoiled a batch.
    apart: usize,
    /// Whether the next ends are told without a claim beside them, which may have been at fault.
    alone: bool,
    backoff: Backoff,
}

impl<S: TaskStore + Clone> Polling<S> {
    pub(crate) fn new(desk: Arc<Desk<S>>) -> Self {
        Self {
            types: desk.runner.handlers.types(),
            desk,
            attempts: JoinSet::new(),
            must_stop: CancellationToken::new(),
            untold: Vec::new(),
            look_at: Instant::now(),
            apart: 0,
            alone: false,
            backoff: Backoff::default(),
        }
    }

    /// Works until a stop is asked for, the store is closed, or nothing is left and that ends it.
    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> TaskStopCause {
        let mut hints = self.subscribe().await;
        let cause = loop {
            tokio::select! {
                () = self.something_to_do(&mut hints) => {}
                () = shutdown.requested() => break TaskStopCause::Requested,
            }
            match self.exchange(true).await {
                Ok(Exchanged::GoOn) => {}
                Ok(Exchanged::NothingLeft) => break TaskStopCause::NothingLeft,
                Err(MessagingError::Closed { .. }) => break TaskStopCause::StoreClosed,
                Err(error) => {
                    self.desk.trouble(&error);
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

    /// A hint stream that cannot be had is done without: the loop looks by itself, once a poll interval.
    async fn subscribe(&self) -> Option<WakeUps> {
        let notice = TaskNotice::Claimable(self.types.clone());
        let hints = self.desk.store.subscribe_tasks(notice, Deadline::default()).await;
        hints.inspect_err(|error| tracing::warn!(%error, "no hints of new tasks; looking for them instead")).ok()
    }

    fn room(&self) -> usize {
        self.desk.options.max_workers.saturating_sub(self.attempts.len())
    }

    fn is_time_to_look(&self) -> bool {
        self.room() > 0 && self.look_at <= Instant::now()
    }

    /// Waits until an attempt has ended, or it is time to look for due tasks and there is room for some.
    async fn something_to_do(&mut self, hints: &mut Option<WakeUps>) {
        while self.untold.is_empty() && !self.is_time_to_look() {
            let (room, look_at) = (self.room(), self.look_at);
            tokio::select! {
                Some(ended) = self.attempts.join_next() => self.take(ended),
                hinted = next_hint(hints) => match hinted {
                    Some(()) => self.look_at = Instant::now(),
                    None => *hints = None,
                },
                () = tokio::time::sleep_until(look_at), if room > 0 => {}
            }
        }
        // Handlers that are about to end are let to: their ends go with this one.
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
            Ok(ended) => self.untold.push(ended),
            // Handlers are caught where they run; this was their error's text, or what they left behind. The lease runs
            // out, and the task is tried again.
            Err(error) => tracing::error!(%error, "an attempt ended without an answer"),
        }
    }

    /// Tells the store what has ended and, if it is time to, claims what is due.
    async fn exchange(&mut self, may_claim: bool) -> Result<Exchanged, MessagingError> {
        let together = if self.apart > 0 { 1 } else { MOST_TOGETHER };
        let told: Vec<EndedAttempt> = self.untold.drain(..together.min(self.untold.len())).collect();
        let room = self.room();
        let claim = (may_claim && !self.alone && self.is_time_to_look()).then(|| ClaimTasks {
            types: self.types.clone(),
            max: room,
            lease: self.desk.options.lease,
            worker: self.desk.runner.worker.to_string(),
        });
        let has_claimed = claim.is_some();
        let finished = told.iter().filter_map(EndedAttempt::finish).collect();
        let asked = Moment::now();
        let done = self.desk.store.finish_and_claim(finished, claim, Deadline::default()).await;
        match done {
            Ok(done) => {
                self.backoff.reset();
                self.desk.answered();
                self.apart = self.apart.saturating_sub(1);
                self.alone = false;
                self.desk.ended(&told, &done.finished);
                Ok(if has_claimed { self.begin(done, room, asked) } else { Exchanged::GoOn })
            }
            Err(error) => self.put_back(told, has_claimed, error),
        }
    }

    /// Nothing was done, or nobody knows. What is told again changes nothing the second time.
    fn put_back(
        &mut self,
        mut told: Vec<EndedAttempt>,
        has_claimed: bool,
        error: MessagingError,
    ) -> Result<Exchanged, MessagingError> {
        let is_unknown = matches!(error, MessagingError::OutcomeUnknown { .. });
        told.iter_mut().for_each(|ended| ended.may_be_kept |= is_unknown);
        if (is_lasting(&error) || is_refused_in_part(&error)) && !told.is_empty() {
            if !has_claimed && told.len() == 1 && is_lasting(&error) {
                // The store will never take it. Its lease runs out, and the task is tried again.
                tracing::error!(%error, task = %told[0].lease.id, "the end of an attempt cannot be kept");
                self.desk.tell(&told[0], None);
                self.apart = self.apart.saturating_sub(1);
                return Ok(Exchanged::GoOn);
            }
            self.alone = true;
            if told.len() > 1 {
                self.apart = told.len();
            }
        }
        self.untold.splice(0..0, told);
        Err(error)
    }

    /// Starts what was claimed, and says when to look again.
    fn begin(&mut self, done: FinishedAndClaimed, room: usize, asked: Moment) -> Exchanged {
        let claimed = done.claimed.len();
        let now = Instant::now();
        let wait = done.next_due.unwrap_or(Duration::MAX).min(self.desk.options.poll_interval);
        // What was claimed may not have been all.
        self.look_at = if claimed > 0 { now } else { now + wait };
        debug_assert!(claimed <= room);
        for task in done.claimed {
            let (desk, must_stop) = (self.desk.clone(), self.must_stop.clone());
            // A task for each attempt: the handlers of a worker run side by side.
            self.attempts.spawn(async move { desk.runner.run(task, asked, &must_stop).await });
        }
        if claimed == 0 && self.attempts.is_empty() && self.untold.is_empty() && self.desk.options.stop_when_empty {
            return Exchanged::NothingLeft;
        }
        Exchanged::GoOn
    }

    /// Lets what runs come to its end, for a while, and tells the store.
    async fn finish(mut self, shutdown: &Shutdown) {
        let (patience, afterwards) = (self.desk.options.graceful_timeout, self.desk.options.cancel_timeout + LAST_WORD);
        let must_stop = self.must_stop.clone();
        let out_of_patience = async {
            tokio::select! {
                () = tokio::time::sleep(patience) => {}
                () = shutdown.requested_at_once() => {}
            }
            must_stop.cancel();
            // A handler that blocks its thread, or a store that does not answer, is not waited for.
            tokio::time::sleep(afterwards).await;
        };
        let finish = async {
            while !self.attempts.is_empty() || !self.untold.is_empty() {
                if self.untold.is_empty()
                    && let Some(ended) = self.attempts.join_next().await
                {
                    self.take(ended);
                }
                self.take_all();
                match self.exchange(false).await {
                    Ok(_) => {}
                    Err(MessagingError::Closed { .. }) => return,
                    Err(error) => {
                        self.desk.trouble(&error);
                        self.backoff.pause().await;
                    }
                }
            }
        };
        tokio::select! {
            () = finish => {}
            () = out_of_patience => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Exchanged {
    GoOn,
    NothingLeft,
}

impl<S: TaskStore> Desk<S> {
    /// Counts attempts whose ends the store was told, and tells of them.
    pub(crate) fn ended(&self, told: &[EndedAttempt], standings: &[TaskStanding]) {
        let (mut standings, mode) = (standings.iter(), self.store.routes().mode);
        for ended in told {
            // Only those that had something to say were told.
            let standing = ended.outcome.as_ref().and_then(|_| standings.next());
            self.tell(ended, standing.and_then(|standing| ended.kept(*standing, mode)));
        }
    }
}

/// Whether some of it was kept and the rest refused, as it would be again: told apart, each has an answer of its own.
fn is_refused_in_part(error: &MessagingError) -> bool {
    let MessagingError::OutcomeUnknown { source: Some(source), .. } = error else { return false };
    source.downcast_ref().is_some_and(is_lasting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart_if_the_rest_of_them_would_be_refused_again() {
        let unknown = |source: MessagingError| MessagingError::OutcomeUnknown {
            operation: "finish",
            ids: Vec::new(),
            source: Some(Arc::new(source)),
        };
        assert!(is_refused_in_part(&unknown(MessagingError::invalid("result", "it is too long"))));
        assert!(!is_refused_in_part(&unknown(MessagingError::DeadlineExceeded { operation: "finish" })));
    }
}
