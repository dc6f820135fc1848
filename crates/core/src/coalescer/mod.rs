//! Batches of concurrent calls.
//!
//! **The idea.** The cost of a durable store is the round trip and the fsync, not the row. So sends, settles and
//! extends that wait at the same moment share one batch. A batch is what has gathered while the previous one was in
//! flight: a single caller is served at once, and batches grow under load. There is no timer, because it would delay
//! the single caller.
//!
//! **The invariant.** A queued row is executed exactly once, or its caller gets an error that says that it was not, or
//! that the outcome is unknown. Rows of one lane are executed in the order in which they were queued.
//! [`OutcomeUnknown`] is reported only for rows that may have been executed. A caller that leaves does not affect the
//! others.
//!
//! **Why drivers.** A caller never executes a batch itself, although that would save a task switch. A future can be
//! held without being polled (`select!` on `&mut call`, then an await in another branch), and a batch in such a future
//! would block all other callers, for ever if that other await waits for one of them. For the same reason the driver,
//! not the caller, admits an operation that waits for capacity. So [`Coalescer::new`] returns [`Drivers`], which are
//! independent of any call.
//!
//! **What was rejected.** A channel for each lane: its permits are handed to callers, who may not be polled, and
//! batches could not be bounded by bytes. Results for each row as the executor completes it: the provider would have to
//! handle callers.
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

/// Combines concurrent operations into batches. Clones share the lanes.
///
/// When the last clone is dropped, the drivers execute what is queued and end.
#[derive(Debug, Clone)]
pub struct Coalescer(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    extends: Arc<Lane<ExtendRow>>,
    settles: Arc<Lane<Settlement>>,
    sends: Arc<Lane<SendRow>>,
    /// Closed when every driver has ended.
    running: watch::Receiver<()>,
}

impl Coalescer {
    /// Creates a coalescer in front of `executor`, and the drivers that must be run.
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

    /// Sends messages, in order. Once it is queued, the operation runs even if the caller leaves.
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

    /// Extends a lease, and returns the receipt that is valid from now on. Otherwise like [`Coalescer::send`].
    pub async fn extend(
        &self,
        receipt: ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let row = ExtendRow { receipt, extension };
        only_row(self.0.extends.submit(vec![row], deadline).await?, "extend")
    }

    /// Refuses new operations and those that wait for capacity, executes the queued ones, and waits for the end of the
    /// drivers.
    ///
    /// If the deadline passes first, returns `OutcomeUnknown`; the drivers go on until they are done.
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
