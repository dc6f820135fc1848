//! A running coalescer with a store that records its batches.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, Lanes};
use postrider_core::{
    Deadline, LeaseToken, Message, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle, RowResults,
    Settlement, async_trait,
};
use shuttle::future::{JoinHandle, spawn, yield_now};
use shuttle::sync::{Mutex, MutexGuard};
use uuid::Uuid;

pub(super) const NEVER: Deadline = Deadline::never();

/// The records of the store.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The executed rows by lane, in order.
    pub(super) extends: Vec<u128>,
    pub(super) settles: Vec<u128>,
    pub(super) sends: Vec<u128>,
    pub(super) batches: usize,
    /// Batches in flight: with extends, with settles, with sends, in total.
    in_flight: [usize; 4],
    pub(super) most_in_flight: [usize; 4],
}

/// Executes all rows, except for the failures of the test.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) seen: Arc<Mutex<Seen>>,
    /// The number of the batch after whose execution the store panics.
    pub(super) panics_in: Option<usize>,
    /// The row that the store rejects.
    pub(super) rejects: Option<u128>,
}

impl Store {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no test panics with the lock")
    }

    /// Returns the number of the batch.
    fn begin(&self, lanes: [bool; 4]) -> usize {
        let mut seen = self.seen();
        for lane in (0..4).filter(|lane| lanes[*lane]) {
            seen.in_flight[lane] += 1;
            seen.most_in_flight[lane] = seen.most_in_flight[lane].max(seen.in_flight[lane]);
        }
        seen.batches += 1;
        seen.batches
    }

    fn end(&self, lanes: [bool; 4]) {
        let mut seen = self.seen();
        for lane in (0..4).filter(|lane| lanes[*lane]) {
            seen.in_flight[lane] -= 1;
        }
    }
}

#[async_trait]
impl BatchExecutor for Store {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let lanes = [!batch.extends.is_empty(), !batch.settles.is_empty(), !batch.sends.is_empty(), true];
        let number = self.begin(lanes);
        yield_now().await;
        let extends: Vec<_> = batch.extends.iter().map(|row| number_of(row.receipt.message_id())).collect();
        let settles: Vec<_> = batch.settles.iter().map(|row| number_of(row.receipt.message_id())).collect();
        let sends: Vec<_> = batch.sends.iter().map(|row| number_of(row.message.id)).collect();
        let mut rows = extends.iter().chain(&settles).chain(&sends);
        if self.rejects.is_some_and(|bad| rows.any(|row| *row == bad)) {
            self.end(lanes);
            return Err(BatchFailure::Rejected(MessagingError::invalid("row", "bad")));
        }
        {
            let mut seen = self.seen();
            seen.extends.extend(extends);
            seen.settles.extend(settles);
            seen.sends.extend(sends);
        }
        yield_now().await;
        self.end(lanes);
        if self.panics_in == Some(number) {
            // Without the panic hook, which is shuttle's and would report the panic.
            std::panic::resume_unwind(Box::new("the test says so"));
        }
        Ok(BatchReply {
            extends: batch.extends.iter().map(|row| Ok(row.receipt.clone())).collect(),
            settles: batch.settles.iter().map(|_| Ok(())).collect(),
            sends: batch.sends.iter().map(|row| Ok(row.message.id)).collect(),
        })
    }
}

pub(super) struct Running {
    pub(super) store: Store,
    pub(super) coalescer: Coalescer,
    pub(super) drivers: Vec<JoinHandle<()>>,
}

/// Small bounds, so that operations take several batches and callers wait for capacity.
pub(super) fn start(store: Store, lanes: Lanes) -> Running {
    let config = CoalescerConfig { max_rows: 2, queue_rows: 3, lanes, ..CoalescerConfig::new("fake") };
    let (coalescer, drivers) = Coalescer::new(store.clone(), config).expect("the bounds are valid");
    let drivers = drivers.into_futures().into_iter().map(spawn).collect();
    Running { store, coalescer, drivers }
}

impl Running {
    pub(super) fn send(&self, ids: impl IntoIterator<Item = u128>) -> JoinHandle<Sent> {
        let coalescer = self.coalescer.clone();
        let ids: Vec<u128> = ids.into_iter().collect();
        spawn(async move { send(&coalescer, &ids).await })
    }

    pub(super) fn settle(&self, id: u128) -> JoinHandle<Result<RowResults<()>, MessagingError>> {
        let coalescer = self.coalescer.clone();
        spawn(async move { coalescer.settle(vec![Settlement::ack(receipt(id))], NEVER).await })
    }

    pub(super) fn extend(&self, id: u128) -> JoinHandle<Result<(), MessagingError>> {
        let coalescer = self.coalescer.clone();
        spawn(async move { coalescer.extend(receipt(id), Duration::ZERO, NEVER).await.map(drop) })
    }

    /// Closes, waits for the drivers, and returns the records of the store.
    pub(super) async fn finish(self) -> Seen {
        self.coalescer.close(NEVER).await.expect("close has no deadline");
        for driver in self.drivers {
            driver.await.expect("not aborted");
        }
        std::mem::take(&mut self.store.seen())
    }
}

/// The rows of an operation, and the results of its caller.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) ids: Vec<u128>,
    pub(super) answer: Result<RowResults<MessageId>, MessagingError>,
}

impl Sent {
    /// Asserts that the results agree with the records of the store.
    pub(super) fn check(&self, seen: &Seen) {
        let times = |id: &u128| seen.sends.iter().filter(|sent| *sent == id).count();
        match &self.answer {
            Err(MessagingError::Closed { .. }) => {
                assert!(self.ids.iter().all(|id| times(id) == 0), "{self:?}")
            }
            Err(error) => panic!("{error:?}"),
            Ok(rows) => {
                assert_eq!(rows.len(), self.ids.len());
                for (id, row) in self.ids.iter().zip(rows) {
                    match row {
                        Ok(answered) => assert_eq!((number_of(*answered), times(id)), (*id, 1)),
                        Err(MessagingError::OutcomeUnknown { ids, .. }) => {
                            assert_eq!(*ids, [message_id(*id)]);
                            assert!(times(id) <= 1, "{self:?}");
                        }
                        Err(_) => assert_eq!(times(id), 0, "{self:?}"),
                    }
                }
            }
        }
    }

    pub(super) fn count(&self, which: fn(&MessagingError) -> bool) -> usize {
        let rows = self.answer.iter().flatten();
        rows.filter(|row| row.as_ref().is_err_and(which)).count()
    }

    pub(super) fn all_done(&self) -> bool {
        self.answer.as_ref().is_ok_and(|rows| rows.iter().all(Result::is_ok))
    }
}

pub(super) async fn send(coalescer: &Coalescer, ids: &[u128]) -> Sent {
    let queue = QueueName::new("orders").expect("a good name");
    let messages = ids.iter().map(|n| Message::new("m").id(message_id(*n))).collect();
    Sent { ids: ids.to_vec(), answer: coalescer.send(&queue, messages, NEVER).await }
}

pub(super) async fn join<T>(callers: Vec<JoinHandle<T>>) -> Vec<T> {
    join_all(callers).await.into_iter().map(|caller| caller.expect("not aborted")).collect()
}

fn message_id(n: u128) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(n))
}

fn number_of(id: MessageId) -> u128 {
    id.as_uuid().as_u128()
}

fn receipt(n: u128) -> ReceiptHandle {
    let queue = QueueName::new("orders").expect("a good name");
    ReceiptHandle::new("fake", queue, message_id(n), LeaseToken(n), NativeRef::Row(1))
}
