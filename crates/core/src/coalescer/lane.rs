//! The queue of one kind of rows, between callers and the driver.

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

/// What a caller gets in the end. The outer error means that no row was carried out, unless it says that nobody knows.
type Answer<R> = Result<RowResults<<R as Row>::Answer>, MessagingError>;

/// One caller's rows, on their way through a lane.
pub(super) struct Operation<R: Row> {
    /// Its place in the order of arrival.
    ticket: u64,
    /// The rows that are in no batch yet.
    pub(super) rows: vec::IntoIter<R>,
    /// The bytes of those rows.
    pub(super) bytes: usize,
    /// What became of the rows that are answered, in their order.
    results: RowResults<R::Answer>,
    row_count: usize,
    caller: oneshot::Sender<Answer<R>>,
}

impl<R: Row> Operation<R> {
    /// Whether none of its rows is in a batch yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.rows.len() == self.row_count
    }

    /// Notes what became of the next row. Answers whether it was the last one.
    pub(super) fn note(&mut self, result: Result<R::Answer, MessagingError>) -> bool {
        if self.results.is_empty() {
            self.results.reserve_exact(self.row_count);
        }
        self.results.push(result);
        self.results.len() == self.row_count
    }

    /// Whether that many results are all that it waits for.
    pub(super) fn awaits_exactly(&self, results: usize) -> bool {
        self.results.is_empty() && self.row_count == results
    }

    /// Tells the caller what became of the rows.
    pub(super) fn finish_with(self, results: RowResults<R::Answer>) {
        // A caller that has gone does not want to know.
        let _ = self.caller.send(Ok(results));
    }

    /// Tells the caller what was noted of the rows.
    pub(super) fn finish(mut self) {
        let results = std::mem::take(&mut self.results);
        self.finish_with(results);
    }

    /// Ends it early: the rows that have no result yet were not carried out, and will not be.
    pub(super) fn give_up(mut self, error: &MessagingError) {
        if self.results.is_empty() {
            let _ = self.caller.send(Err(error.clone()));
            return;
        }
        self.results.resize_with(self.row_count, || Err(error.clone()));
        self.finish();
    }
}

/// What a driver without work finds in a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Rows have come in.
    Work,
    /// Nothing; the driver will be woken.
    Asleep,
    /// Nothing, and nothing will come.
    Ended,
}

/// A queue of operations, bounded by their rows and bytes.
pub(super) struct Lane<R: Row> {
    pub(super) config: Arc<CoalescerConfig>,
    /// Held for a few pointer moves: rows are counted, moved into batches and dropped outside of it.
    state: Mutex<State<R>>,
}

struct State<R: Row> {
    /// In the order of arrival. The first `admitted` are queued, the others wait for room.
    ///
    /// An operation that waits for room is here and not with its caller, so that it is admitted without the caller's
    /// help: a permit that is handed to a caller who is not polled would block everybody behind it.
    operations: VecDeque<Operation<R>>,
    admitted: usize,
    /// The rows of the admitted operations.
    rows: usize,
    /// The bytes of those rows.
    bytes: usize,
    next_ticket: u64,
    /// Whom to wake when rows come in. Set only while the driver has nothing to do, so that a busy one is not woken
    /// for nothing.
    driver: Option<Waker>,
    closed: bool,
}

impl<R: Row> State<R> {
    /// Lets those in that there is room for. An empty lane has room for any operation, so the driver can only run out
    /// of work when nobody waits.
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

    /// Queues the rows and waits for what becomes of them.
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
            // The answer may have come at the same moment as the deadline.
            None => answer.try_recv().map_err(|_| NoAnswer::DeadlinePassed),
        };
        waiting.ticket = None;
        answered.unwrap_or_else(|lost| Err(R::unknown(ids, lost.into_source())))
    }

    fn push(&self, rows: Vec<R>, caller: oneshot::Sender<Answer<R>>) -> Result<WaitingForRoom<'_, R>, MessagingError> {
        let row_count = rows.len();
        let bytes = rows.iter().map(R::bytes).fold(0, usize::saturating_add);
        let rows = rows.into_iter();
        let mut operation = Operation { ticket: 0, rows, bytes, results: Vec::new(), row_count, caller };

        let mut state = self.state.lock();
        if state.closed {
            // The rows are dropped outside of the lock.
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
        Ok(WaitingForRoom { lane: self, ticket: (!queued).then_some(ticket) })
    }

    /// Takes an operation back, if it has not been admitted.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.state.lock();
        let found = state.operations.binary_search_by_key(&ticket, |operation| operation.ticket);
        let Some(index) = found.ok().filter(|index| *index >= state.admitted) else {
            return false;
        };
        let withdrawn = state.operations.remove(index);
        // It may have been a large one, with smaller ones behind it. The driver has work already: somebody fills the
        // lane, or nobody would have had to wait.
        state.admit(&self.config);
        drop(state);
        drop(withdrawn);
        true
    }

    /// Moves operations over to the driver, until it has enough for a batch.
    pub(super) fn begin(&self, begun: &mut VecDeque<Operation<R>>) {
        let mut rows: usize = begun.iter().map(|operation| operation.rows.len()).sum();
        let mut bytes = begun.iter().map(|operation| operation.bytes).fold(0, usize::saturating_add);
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
            begun.push_back(operation);
        }
    }

    /// Has the driver woken when rows come in, unless they are here already.
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

    /// Refuses new operations and those that wait for room. The queued ones are still carried out.
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

    /// Refuses everything, because nobody will carry it out.
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
            .field("callers_waiting_for_room", &waiting)
            .field("closed", &closed)
            .finish_non_exhaustive()
    }
}

/// Takes the operation of a caller who has gone back, as long as it waits for room.
struct WaitingForRoom<'a, R: Row> {
    lane: &'a Lane<R>,
    /// `None` when it was queued at once, or has been answered.
    ticket: Option<u64>,
}

impl<R: Row> WaitingForRoom<'_, R> {
    fn withdraw(&mut self) -> bool {
        self.ticket.take().is_some_and(|ticket| self.lane.withdraw(ticket))
    }
}

impl<R: Row> Drop for WaitingForRoom<'_, R> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
