//! Polling mode: one loop claims what there is room for and tells what has ended, both in one transaction.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{ClaimTasks, FinishedAndClaimed, TaskNotice, TaskStanding, TaskStore, TaskType};
use postrider_core::{Deadline, MessagingError, WakeUps};
use postrider_subscriber::{CancellationToken, Shutdown};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::attempt::EndedAttempt;
use crate::backoff::Backoff;
use crate::delivered::is_lasting;
use crate::worker::{Desk, TaskStopCause};

/// So many ends share a transaction with a claim.
const MOST_TOGETHER: usize = 1000;

/// The loop, and what it knows.
pub(crate) struct Polling<S> {
    desk: Arc<Desk<S>>,
    types: Vec<TaskType>,
    ended: mpsc::UnboundedReceiver<EndedAttempt>,
    // Unbounded, because it holds at most one end for each handler that runs.
    to_loop: mpsc::UnboundedSender<EndedAttempt>,
    must_stop: CancellationToken,
    in_flight: usize,
    /// Ended, and not yet told to the store.
    untold: Vec<EndedAttempt>,
    /// When to look for due tasks.
    look_at: Instant,
    /// How many of the next ends are told one by one, because one of them spoiled a batch.
    apart: usize,
    backoff: Backoff,
}

impl<S: TaskStore + Clone> Polling<S> {
    pub(crate) fn new(desk: Arc<Desk<S>>) -> Self {
        let (to_loop, ended) = mpsc::unbounded_channel();
        Self {
            types: desk.runner.handlers.types(),
            desk,
            ended,
            to_loop,
            must_stop: CancellationToken::new(),
            in_flight: 0,
            untold: Vec::new(),
            look_at: Instant::now(),
            apart: 0,
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
        self.desk.options.max_workers.saturating_sub(self.in_flight)
    }

    fn is_time_to_look(&self) -> bool {
        self.room() > 0 && self.look_at <= Instant::now()
    }

    /// Waits until an attempt has ended, or it is time to look for due tasks and there is room for some.
    async fn something_to_do(&mut self, hints: &mut Option<WakeUps>) {
        while self.untold.is_empty() && !self.is_time_to_look() {
            let (room, look_at) = (self.room(), self.look_at);
            tokio::select! {
                Some(ended) = self.ended.recv() => self.take(ended),
                hinted = next_hint(hints) => match hinted {
                    Some(()) => self.look_at = Instant::now(),
                    None => *hints = None,
                },
                () = tokio::time::sleep_until(look_at), if room > 0 => {}
            }
        }
        // Handlers that are about to end are let to: their ends go with this one.
        tokio::task::yield_now().await;
        while let Ok(ended) = self.ended.try_recv() {
            self.take(ended);
        }
    }

    fn take(&mut self, ended: EndedAttempt) {
        self.in_flight -= 1;
        self.untold.push(ended);
    }

    /// Tells the store what has ended and, if it is time to, claims what is due.
    async fn exchange(&mut self, may_claim: bool) -> Result<Exchanged, MessagingError> {
        let together = if self.apart > 0 { 1 } else { MOST_TOGETHER };
        let told: Vec<EndedAttempt> = self.untold.drain(..together.min(self.untold.len())).collect();
        let room = self.room();
        let claim = (may_claim && self.is_time_to_look()).then(|| ClaimTasks {
            types: self.types.clone(),
            max: room,
            lease: self.desk.options.lease,
            worker: self.desk.runner.worker.to_string(),
        });
        let has_claimed = claim.is_some();
        let finished = told.iter().filter_map(EndedAttempt::finish).collect();
        let done = self.desk.store.finish_and_claim(finished, claim, Deadline::default()).await;
        match done {
            Ok(done) => {
                self.backoff.reset();
                self.apart = self.apart.saturating_sub(1);
                self.desk.ended(&told, &done.finished);
                Ok(if has_claimed { self.begin(done, room) } else { Exchanged::GoOn })
            }
            Err(error) => self.put_back(told, error),
        }
    }

    /// Nothing was done, or nobody knows. What is told again changes nothing the second time.
    fn put_back(&mut self, told: Vec<EndedAttempt>, error: MessagingError) -> Result<Exchanged, MessagingError> {
        match told.len() {
            1 if is_lasting(&error) => {
                // The store will never take it. Its lease runs out, and the task is tried again.
                tracing::error!(%error, task = %told[0].lease.id, "the end of an attempt cannot be kept");
                self.apart = self.apart.saturating_sub(1);
                return Ok(Exchanged::GoOn);
            }
            many if is_lasting(&error) && many > 1 => self.apart = many,
            _ => {}
        }
        self.untold.splice(0..0, told);
        Err(error)
    }

    /// Starts what was claimed, and says when to look again.
    fn begin(&mut self, done: FinishedAndClaimed, room: usize) -> Exchanged {
        let claimed = done.claimed.len();
        let now = Instant::now();
        let wait = done.next_due.unwrap_or(Duration::MAX).min(self.desk.options.poll_interval);
        // What was claimed may not have been all.
        self.look_at = if claimed > 0 { now } else { now + wait };
        debug_assert!(claimed <= room);
        for task in done.claimed {
            self.in_flight += 1;
            let (desk, must_stop, to_loop) = (self.desk.clone(), self.must_stop.clone(), self.to_loop.clone());
            // A task for each attempt: the handlers of a worker run side by side.
            tokio::spawn(async move {
                let ended = desk.runner.run(task, &must_stop).await;
                // A loop that has gone does not want to know.
                let _ = to_loop.send(ended);
            });
        }
        if claimed == 0 && self.in_flight == 0 && self.untold.is_empty() && self.desk.options.stop_when_empty {
            return Exchanged::NothingLeft;
        }
        Exchanged::GoOn
    }

    /// Lets what runs come to its end, for a while, and tells the store.
    async fn finish(mut self, shutdown: &Shutdown) {
        let patience = Instant::now() + self.desk.options.graceful_timeout;
        let must_stop = self.must_stop.clone();
        let last_call = async {
            tokio::select! {
                () = tokio::time::sleep_until(patience) => {}
                () = shutdown.requested_at_once() => {}
            }
            must_stop.cancel();
            std::future::pending::<()>().await;
        };
        let finish = async {
            // After the last call a handler has the cancel time-out, and the store a moment.
            let give_up = patience + self.desk.options.cancel_timeout + Duration::from_secs(5);
            while self.in_flight > 0 || !self.untold.is_empty() {
                if self.untold.is_empty()
                    && let Some(ended) = self.ended.recv().await
                {
                    self.take(ended);
                }
                while let Ok(ended) = self.ended.try_recv() {
                    self.take(ended);
                }
                if let Err(error) = self.exchange(false).await {
                    self.desk.trouble(&error);
                    if Instant::now() >= give_up || matches!(error, MessagingError::Closed { .. }) {
                        return;
                    }
                    self.backoff.pause().await;
                }
            }
        };
        tokio::select! {
            () = finish => {}
            () = last_call => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Exchanged {
    GoOn,
    NothingLeft,
}

async fn next_hint(hints: &mut Option<WakeUps>) -> Option<()> {
    match hints {
        Some(hints) => hints.next().await,
        None => std::future::pending().await,
    }
}

impl<S> Desk<S> {
    /// Counts attempts whose ends the store was told, and tells of them.
    pub(crate) fn ended(&self, told: &[EndedAttempt], standings: &[TaskStanding]) {
        let mut standings = standings.iter();
        for ended in told {
            let is_kept = ended.outcome.is_some() && standings.next() == Some(&TaskStanding::Held);
            self.tell(ended, is_kept);
        }
    }
}
