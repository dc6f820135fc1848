//! A queue of rows of one kind, between callers and the driver.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::vec;

use tokio::sync::oneshot;

use super::batch::Row;
use super::config::CoalescerConfig;
use super::no_answer::NoAnswer;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::service::RowResults;
use crate::sync::Mutex;

/// The answer to a caller. The outer error means that no row was executed, unless it is `OutcomeUnknown`.
type Answer<R> = Result<RowResults<<R as Row>::Answer>, MessagingError>;

/// The rows of one call.
pub(super) struct Operation<R: Row> {
    /// The position in the order of arrival.
    ticket: u64,
    /// The rows that are in no batch yet.
    pub(super) rows: vec::IntoIter<R>,
    /// The bytes of those rows.
    pub(super) bytes: usize,
    /// The results so far, in the order of the rows.
    results: RowResults<R::Answer>,
    row_count: usize,
    caller: oneshot::Sender<Answer<R>>,
}

impl<R: Row> Operation<R> {
    /// Whether none of its rows is in a batch yet.
    pub(super) fn is_unstarted(&self) -> bool {
        self.rows.len() == self.row_count
    }

    /// Records the result of the next row. Returns whether it was the last one.
    pub(super) fn record(&mut self, result: Result<R::Answer, MessagingError>) -> bool {
        if self.results.is_empty() {
            self.results.reserve_exact(self.row_count);
        }
        self.results.push(result);
        self.results.len() == self.row_count
    }

    /// Whether it waits for exactly this number of results.
    pub(super) fn awaits_exactly(&self, results: usize) -> bool {
        self.results.is_empty() && self.row_count == results
    }

    /// Sends these results to the caller.
    pub(super) fn finish_with(self, results: RowResults<R::Answer>) {
        // The caller may have left.
        let _ = self.caller.send(Ok(results));
    }

    /// Sends the recorded results to the caller.
    pub(super) fn finish(mut self) {
        let results = std::mem::take(&mut self.results);
        self.finish_with(results);
    }

    /// Ends the operation early: rows without a result were not executed, and will not be.
    pub(super) fn give_up(mut self, error: &MessagingError) {
        if self.results.is_empty() {
            let _ = self.caller.send(Err(error.clone()));
            return;
        }
        self.results.resize_with(self.row_count, || Err(error.clone()));
        self.finish();
    }
}

/// What an idle driver finds in a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Rows are queued.
    Work,
    /// No rows; the driver will be woken.
    Asleep,
    /// No rows, and there will be none.
    Ended,
}

/// A queue of operations, bounded by their rows and bytes.
pub(super) struct Lane<R: Row> {
    pub(super) config: Arc<CoalescerConfig>,
    /// Held for a few pointer moves: rows are counted, moved into batches and dropped without the lock.
    state: Mutex<State<R>>,
}

struct State<R: Row> {
    /// In the order of arrival. The first `admitted` operations are queued; the others wait for capacity.
    ///
    /// A waiting operation is stored here and not with its caller, so that it is admitted without the caller's help: a
    /// permit that is handed to a caller who is not polled would block every later caller.
    operations: VecDeque<Operation<R>>,
    admitted: usize,
    /// The rows of the admitted operations.
    rows: usize,
    /// The bytes of those rows.
    bytes: usize,
    next_ticket: u64,
    /// The driver's waker. Set only while the driver is idle, so that a busy one is not woken.
    driver: Option<Waker>,
    closed: bool,
}

impl<R: Row> State<R> {
    /// Admits operations while there is capacity. An empty lane admits any operation, so the driver runs out of work
    /// only when no operation waits.
    fn admit(&mut self, config: &CoalescerConfig) {
        while let Some(next) = self.operations.get(self.admitted) {
            let rows = self.rows.saturating_add(next.row_count);
            let bytes = self.bytes.saturating_add(next.bytes);
            if self.admitted > 0 && (rows > config.queue_rows || bytes > config.queue_bytes) {
                break;
            }
            self.admitted += 1;
            self.rows = rows;
            self.bytes = bytes;
        }
    }
}

impl<R: Row> Lane<R> {
    pub(super) fn new(config: Arc<CoalescerConfig>) -> Self {
        let state = State {
            operations: VecDeque::new(),
            admitted: 0,
            rows: 0,
            bytes: 0,
            next_ticket: 0,
            driver: None,
            closed: false,
        };
        Self { config, state: Mutex::new(state) }
    }

    /// Queues the rows and waits for their results.
    pub(super) async fn submit(&self, rows: Vec<R>, deadline: Deadline) -> Answer<R> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        deadline.check(R::OPERATION)?;
        let ids = rows.iter().map(R::id).collect();
        let (caller, mut answer) = oneshot::channel();
        let mut waiting = self.push(rows, caller)?;
        let answered = match deadline.limit(&mut answer).await {
            Some(answered) => answered.map_err(|_| NoAnswer::DriverGone),
            None if waiting.withdraw() => {
                return Err(MessagingError::DeadlineExceeded { operation: R::OPERATION });
            }
            // The answer may have come together with the deadline.
            None => answer.try_recv().map_err(|_| NoAnswer::DeadlinePassed),
        };
        waiting.ticket = None;
        answered.unwrap_or_else(|lost| Err(R::unknown(ids, lost.into_source())))
    }

    fn push(
        &self,
        rows: Vec<R>,
        caller: oneshot::Sender<Answer<R>>,
    ) -> Result<WaitingForCapacity<'_, R>, MessagingError> {
        let row_count = rows.len();
        let bytes = rows.iter().map(R::bytes).fold(0, usize::saturating_add);
        let rows = rows.into_iter();
        let mut operation = Operation { ticket: 0, rows, bytes, results: Vec::new(), row_count, caller };

        let mut state = self.state.lock();
        if state.closed {
            // The rows are dropped after the lock is released.
            drop(state);
            return Err(self.closed());
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        operation.ticket = ticket;
        state.operations.push_back(operation);
        state.admit(&self.config);
        let queued = state.admitted == state.operations.len();
        let driver = state.driver.take();
        drop(state);

        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(WaitingForCapacity { lane: self, ticket: (!queued).then_some(ticket) })
    }

    /// Removes an operation that has not been admitted; returns whether it was removed.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.state.lock();
        let found = state.operations.binary_search_by_key(&ticket, |operation| operation.ticket);
        let Some(index) = found.ok().filter(|index| *index >= state.admitted) else {
            return false;
        };
        let withdrawn = state.operations.remove(index);
        // The removed operation may have been larger than those after it, so they may fit now. The driver need not be
        // woken: it has work, because the lane was full.
        state.admit(&self.config);
        drop(state);
        drop(withdrawn);
        true
    }

    /// Moves operations to the driver, until they fill a batch.
    pub(super) fn begin(&self, started: &mut VecDeque<Operation<R>>) {
        let mut rows: usize = started.iter().map(|operation| operation.rows.len()).sum();
        let mut bytes = started.iter().map(|operation| operation.bytes).fold(0, usize::saturating_add);
        let mut state = self.state.lock();
        state.driver = None;
        while state.admitted > 0 && rows < self.config.max_rows && bytes < self.config.max_bytes {
            let Some(operation) = state.operations.pop_front() else {
                break;
            };
            state.admitted -= 1;
            state.rows = state.rows.saturating_sub(operation.row_count);
            state.bytes = state.bytes.saturating_sub(operation.bytes);
            state.admit(&self.config);
            rows = rows.saturating_add(operation.row_count);
            bytes = bytes.saturating_add(operation.bytes);
            started.push_back(operation);
        }
    }

    /// Registers the driver's waker, unless rows are queued already.
    pub(super) fn sleep(&self, driver: &Waker) -> Idle {
        let mut state = self.state.lock();
        if state.admitted > 0 {
            return Idle::Work;
        }
        if state.closed {
            return Idle::Ended;
        }
        state.driver = Some(driver.clone());
        Idle::Asleep
    }

    /// Refuses new operations and those that wait for capacity. The queued ones are still executed.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let admitted = state.admitted;
        let refused = state.operations.split_off(admitted);
        let driver = state.driver.take();
        drop(state);
        self.refuse(refused);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Refuses all operations, because the driver has ended.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.admitted = 0;
        state.rows = 0;
        state.bytes = 0;
        let driver = state.driver.take();
        let refused = std::mem::take(&mut state.operations);
        drop(state);
        drop(driver);
        self.refuse(refused);
    }

    fn refuse(&self, operations: VecDeque<Operation<R>>) {
        for operation in operations {
            operation.give_up(&self.closed());
        }
    }

    pub(super) fn closed(&self) -> MessagingError {
        MessagingError::Closed { provider: self.config.provider }
    }
}

impl<R: Row> fmt::Debug for Lane<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, waiting, closed) = {
            let state = self.state.lock();
            (state.rows, state.operations.len() - state.admitted, state.closed)
        };
        f.debug_struct("Lane")
            .field("operation", &R::OPERATION)
            .field("queued_rows", &rows)
            .field("callers_waiting_for_capacity", &waiting)
            .field("closed", &closed)
            .finish_non_exhaustive()
    }
}

/// Removes the operation of a caller that left, while it waits for capacity.
struct WaitingForCapacity<'a, R: Row> {
    lane: &'a Lane<R>,
    /// `None` if the operation was queued at once or has been answered.
    ticket: Option<u64>,
}

impl<R: Row> WaitingForCapacity<'_, R> {
    fn withdraw(&mut self) -> bool {
        self.ticket.take().is_some_and(|ticket| self.lane.withdraw(ticket))
    }
}

impl<R: Row> Drop for WaitingForCapacity<'_, R> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
