//! The driver's side of a lane.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::batch::Row;
use super::lane::{Idle, Lane, Operation};
use super::no_answer::{NoAnswer, NotSent};
use crate::error::{ErrorSource, MessagingError};
use crate::service::RowResults;

/// Takes operations out of a lane, puts their rows into batches, and returns the results to the callers.
///
/// Batches and results keep the order of the rows, so the next result always belongs to the first row without one.
pub(super) struct Intake<R: Row> {
    /// `None` if another driver serves the lane.
    lane: Option<Arc<Lane<R>>>,
    /// The unanswered operations. Only the last one can have rows that are in no batch yet.
    started: VecDeque<Operation<R>>,
}

impl<R: Row> Intake<R> {
    pub(super) fn new(lane: Option<Arc<Lane<R>>>) -> Self {
        Self { lane, started: VecDeque::new() }
    }

    /// Adds rows to an empty part of a batch, up to the bounds.
    pub(super) fn fill(&mut self, part: &mut Vec<R>) {
        let Some(lane) = &self.lane else { return };
        lane.begin(&mut self.started);
        let mut bytes: usize = 0;
        for operation in &mut self.started {
            while let Some(row) = operation.rows.as_slice().first() {
                let more = row.bytes();
                bytes = bytes.saturating_add(more);
                let fits = part.len() < lane.config.max_rows && bytes <= lane.config.max_bytes;
                if !(fits || part.is_empty()) {
                    return;
                }
                operation.bytes = operation.bytes.saturating_sub(more);
                part.extend(operation.rows.next());
            }
        }
    }

    pub(super) fn sleep(&self, driver: &Waker) -> Idle {
        self.lane.as_ref().map_or(Idle::Ended, |lane| lane.sleep(driver))
    }

    /// Records the results of an executed part.
    pub(super) fn answer(&mut self, part: &[R], results: RowResults<R::Answer>) {
        if results.len() != part.len() {
            let fault = NoAnswer::WrongRowCount { asked: part.len(), answered: results.len() };
            return self.unknown(part, &fault.into_source());
        }
        // The results of a single caller are passed on unchanged.
        let awaits_exactly = |operation: &mut Operation<R>| operation.awaits_exactly(results.len());
        if let Some(operation) = self.started.pop_front_if(awaits_exactly) {
            return operation.finish_with(results);
        }
        for result in results {
            self.record(result);
        }
    }

    /// Records that the store rejected the rows of a part.
    pub(super) fn reject(&mut self, part: &[R], error: &MessagingError) {
        for _ in part {
            self.record(Err(error.clone()));
        }
    }

    /// Records that the outcome of a part is unknown.
    pub(super) fn unknown(&mut self, part: &[R], source: &ErrorSource) {
        for row in part {
            self.record(Err(R::unknown(vec![row.id()], source.clone())));
        }
    }

    /// The batch failed: rows without a result were not executed, and will not be. These are the rows of the remaining
    /// parts, and the rows that the last operation has beyond the batch. Sending the latter would break the order of
    /// the caller, who repeats the failed ones.
    pub(super) fn give_up(&mut self, error: &MessagingError) {
        let next = self.started.pop_back_if(|operation| operation.is_unstarted());
        self.end_started(error);
        self.started.extend(next);
    }

    /// [`Intake::give_up`] after an earlier part whose outcome is unknown.
    pub(super) fn give_up_after(&mut self, cause: &ErrorSource) {
        if let Some(lane) = &self.lane {
            self.give_up(&MessagingError::Provider {
                provider: lane.config.provider,
                operation: R::OPERATION,
                source: Arc::new(NotSent(cause.clone())),
                retryable: true,
            });
        }
    }

    /// The driver ends: rows without a result were not executed, and no more are taken.
    pub(super) fn end(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.end_started(&lane.closed());
            lane.end();
        }
    }

    fn end_started(&mut self, error: &MessagingError) {
        for operation in self.started.drain(..) {
            operation.give_up(error);
        }
    }

    fn record(&mut self, result: Result<R::Answer, MessagingError>) {
        if self.started.front_mut().is_some_and(|operation| operation.record(result))
            && let Some(answered) = self.started.pop_front()
        {
            answered.finish();
        }
    }
}
