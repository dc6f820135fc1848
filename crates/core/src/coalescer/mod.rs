//! One batch for everybody who is waiting.
//!
//! **The idea.** What a durable store charges for is the round trip and the fsync, not the row. So the sends, settles
//! and extends that wait at the same moment go out together. A batch is whatever has gathered while the previous one
//! was under way: a lone caller goes at once, and under load the batches grow by themselves. There is no timer and no
//! linger, because a timer would charge the lone caller for company that does not come.
//!
//! **The invariant.** A row that was queued is carried out exactly once, or its caller is told that it was not, or
//! that nobody knows. Rows of one lane go out in the order in which they were queued. [`OutcomeUnknown`] is said only
//! of rows that may have been carried out. Callers who leave change nothing for the others.
//!
//! **Why drivers.** The caller never carries a batch out itself, although that would save a task switch. A future can
//! be held without being polled (`select!` on `&mut call`, then an await in another branch), and a batch in the hands
//! of such a caller would stop everybody else's, for ever if that other await waits for one of them. For the same
//! reason an operation that waits for room is admitted by the driver and not by its caller. So [`Coalescer::new`]
//! answers [`Drivers`], which belong to nobody's call.
//!
//! **What was rejected.** A channel per lane: its permits are handed to callers, who may not be polled, and a batch
//! could not be bounded by bytes without holding a row back. Completing callers one by one as rows are done inside the
//! executor: the provider would have to know of callers.
//!
//! [`OutcomeUnknown`]: MessagingError::OutcomeUnknown

mod batch;
mod config;
mod driver;
mod intake;
mod lane;
mod no_answer;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use batch::{Batch, BatchExecutor, BatchFailure, BatchReply, ExtendRow, SendRow, with_same_receipts};
pub use config::{CoalescerConfig, Lanes};
pub use driver::Drivers;

use crate::deadline::Deadline;
use crate::disposition::Settlement;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::receipt::ReceiptHandle;
use crate::service::{RowResults, only_row};
use driver::Driver;
use lane::Lane;

/// Gathers concurrent operations into batches. Clones share the lanes.
///
/// When the last clone is dropped, the drivers finish what is queued and end.
#[derive(Debug, Clone)]
pub struct Coalescer(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    extends: Arc<Lane<ExtendRow>>,
    settles: Arc<Lane<Settlement>>,
    sends: Arc<Lane<SendRow>>,
    /// Ends when every driver has.
    running: watch::Receiver<()>,
}

impl Coalescer {
    /// A coalescer in front of `executor`, and the drivers that somebody must run.
    pub fn new<E: BatchExecutor>(executor: E, config: CoalescerConfig) -> Result<(Self, Drivers), MessagingError> {
        config.check()?;
        let config = Arc::new(config);
        let executor: Arc<dyn BatchExecutor> = Arc::new(executor);
        let extends = Arc::new(Lane::new(config.clone()));
        let settles = Arc::new(Lane::new(config.clone()));
        let sends = Arc::new(Lane::new(config.clone()));
        let (alive, running) = watch::channel(());
        let driver = |extends, settles, sends| Driver::new(executor.clone(), extends, settles, sends, alive.clone());
        let drivers = match config.lanes {
            Lanes::Separate => Drivers::new([
                driver(Some(extends.clone()), None, None),
                driver(None, Some(settles.clone()), None),
                driver(None, None, Some(sends.clone())),
            ]),
            Lanes::Merged => Drivers::new([driver(Some(extends.clone()), Some(settles.clone()), Some(sends.clone()))]),
        };
        Ok((Self(Arc::new(Handle { extends, settles, sends, running })), drivers))
    }

    /// Sends messages, in their order. The operation is not withdrawn when the caller leaves once it is queued.
    ///
    /// The outer error means that no message was sent, unless it is `OutcomeUnknown`.
    pub async fn send(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        let row = |message| SendRow { queue: queue.clone(), message };
        self.0.sends.submit(messages.into_iter().map(row).collect(), deadline).await
    }

    /// Ends leases. Otherwise like [`Coalescer::send`].
    pub async fn settle(
        &self,
        settlements: Vec<Settlement>,
        deadline: Deadline,
    ) -> Result<RowResults<()>, MessagingError> {
        self.0.settles.submit(settlements, deadline).await
    }

    /// Extends a lease and answers the receipt by which it goes on. Otherwise like [`Coalescer::send`].
    pub async fn extend(
        &self,
        receipt: ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let row = ExtendRow { receipt, extension };
        only_row(self.0.extends.submit(vec![row], deadline).await?, "extend")
    }

    /// Refuses new operations and those that wait for room, has the queued ones carried out, and waits for the
    /// drivers' end.
    ///
    /// When the deadline passes first, it answers `OutcomeUnknown` and the drivers go on until they are done.
    pub async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.0.close();
        let mut running = self.0.running.clone();
        let ended = async { while running.changed().await.is_ok() {} };
        deadline.limit(ended).await.ok_or_else(|| MessagingError::OutcomeUnknown {
            operation: "close",
            ids: Vec::new(),
            source: Some(no_answer::NoAnswer::DeadlinePassed.into_source()),
        })
    }
}

impl Handle {
    fn close(&self) {
        self.extends.close();
        self.settles.close();
        self.sends.close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}
