//! The driver's side of a lane.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::batch::Row;
use super::lane::{Idle, Lane, Operation};
use super::no_answer::{NoAnswer, NotSent};
use crate::error::{ErrorSource, MessagingError};
use crate::service::RowResults;

/// Takes operations out of a lane, lays their rows into batches, and brings the results back to the callers.
///
/// Batches and results keep the order of the rows, so the next result always belongs to the first row that has none:
/// nothing has to be looked up.
pub(super) struct Intake<R: Row> {
    /// `None` when another driver serves the lane.
    lane: Option<Arc<Lane<R>>>,
    /// The operations that are not answered. Only the last one can have rows that are in no batch yet.
    begun: VecDeque<Operation<R>>,
}

impl<R: Row> Intake<R> {
    pub(super) fn new(lane: Option<Arc<Lane<R>>>) -> Self {
        Self { lane, begun: VecDeque::new() }
    }

    /// Adds rows to an empty part of a batch, up to the bounds.
    pub(super) fn fill(&mut self, part: &mut Vec<R>) {
        let Some(lane) = &self.lane else { return };
        lane.begin(&mut self.begun);
        let mut bytes: usize = 0;
        for operation in &mut self.begun {
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

    /// Brings back what became of the rows of a part that was carried out.
    pub(super) fn answer(&mut self, part: &[R], results: RowResults<R::Answer>) {
        if results.len() != part.len() {
            let fault = NoAnswer::WrongRowCount { asked: part.len(), answered: results.len() };
            return self.unknown(part, &fault.into_source());
        }
        // A lone caller's results are passed on as they are.
        let awaits_exactly = |operation: &mut Operation<R>| operation.awaits_exactly(results.len());
        if let Some(operation) = self.begun.pop_front_if(awaits_exactly) {
            return operation.finish_with(results);
        }
        for result in results {
            self.note(result);
        }
    }

    /// The store refuses the rows of a part.
    pub(super) fn reject(&mut self, part: &[R], error: &MessagingError) {
        for _ in part {
            self.note(Err(error.clone()));
        }
    }

    /// Nobody knows what became of the rows of a part.
    pub(super) fn unknown(&mut self, part: &[R], source: &ErrorSource) {
        for row in part {
            self.note(Err(R::unknown(vec![row.id()], source.clone())));
        }
    }

    /// The batch failed: what has no result was not carried out, and will not be. That is the rows of the parts that
    /// were not tried, and the rows that an operation has beyond the batch: to send those after all would break the
    /// caller's order when the caller repeats the failed ones.
    pub(super) fn give_up(&mut self, error: &MessagingError) {
        let next = self.begun.pop_back_if(|operation| operation.is_untouched());
        self.end_begun(error);
        self.begun.extend(next);
    }

    /// [`Intake::give_up`], because of an earlier part whose outcome is unknown.
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

    /// There will be no driver: what has no result was not carried out, and nothing more is taken.
    pub(super) fn end(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.end_begun(&lane.closed());
            lane.end();
        }
    }

    fn end_begun(&mut self, error: &MessagingError) {
        for operation in self.begun.drain(..) {
            operation.give_up(error);
        }
    }

    fn note(&mut self, result: Result<R::Answer, MessagingError>) {
        if self.begun.front_mut().is_some_and(|operation| operation.note(result))
            && let Some(answered) = self.begun.pop_front()
        {
            answered.finish();
        }
    }
}
