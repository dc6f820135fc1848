//! Settles, extends and gives up leases.
//!
//! The broker cannot change a message that it holds. So a message that is to return changed is stored as a copy, the copy
//! is confirmed, and only then is the original acknowledged: a crash between the two leaves a duplicate, never a loss.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use postrider_core::coalescer::{BatchFailure, ExtendRow};
use postrider_core::{
    DEAD_LETTER_SUFFIX, Deadline, Disposition, MessagingError, Nack, NativeRef, ReceiptHandle, RowResults, Settlement,
    Timestamp,
};

use crate::PROVIDER;
use crate::broker::RabbitmqBroker;
use crate::connection::ANSWER_TIMEOUT;
use crate::consumer_channel::{ConsumerChannel, wait_until_ready};
use crate::leases::{Lease, Location};
use crate::partitions::ActivePartition;
use crate::publish::Published;
use crate::send::{Target, accepted};
use crate::wire;

/// The last step for a message whose lease was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastStep {
    /// Acknowledge it: it was handled, or its copy is stored.
    Ack,
    /// Requeue it.
    Requeue,
    /// Keep it unacknowledged for this time, so that its key stays blocked, then requeue it.
    RequeueAfter(std::time::Duration),
}

/// A row whose lease was taken out.
struct Settling {
    row: usize,
    lease: Lease,
    last_step: LastStep,
}

impl RabbitmqBroker {
    /// Settles a batch.
    pub(crate) async fn settle_rows(&self, settlements: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        let mut results: RowResults<()> = Vec::with_capacity(settlements.len());
        let (mut settling, mut copies) = (Vec::new(), Vec::new());
        for (row, settlement) in settlements.iter().enumerate() {
            match self.take_out(row, settlement) {
                Ok((taken, copy)) => {
                    copies.extend(copy.map(|copy| (settling.len(), copy)));
                    settling.push(Some(taken));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        self.store_copies(settlements, copies, &mut settling, &mut results).await;
        let receipt = |row: usize| &settlements[row].receipt;
        self.finish(settling.into_iter().flatten().collect(), receipt, &mut results).await;
        Ok(results)
    }

    /// Takes a lease out, and returns the message's last step and the copy to store before it.
    fn take_out(&self, row: usize, settlement: &Settlement) -> Result<(Settling, Option<Target>), MessagingError> {
        let settlement = settlement.clone().checked(&self.known_capabilities().limits)?;
        let receipt = &settlement.receipt;
        self.check_receipt(receipt)?;
        if receipt.queue().holds_dead_letters()
            && matches!(settlement.disposition, Disposition::Nack(Nack::DeadLetter { .. }))
        {
            return Err(MessagingError::invalid(
                "disposition",
                format!("'{}' has no dead letters of its own; redrive the message or purge it", receipt.queue()),
            ));
        }
        let lease = self.leases().take(receipt).ok_or_else(|| receipt.expired())?;
        let (queue, stored) = (lease.queue.clone(), &lease.stored);
        let (last_step, copy) = match &settlement.disposition {
            Disposition::Ack => (LastStep::Ack, None),
            Disposition::Nack(Nack::Release) => (LastStep::Requeue, None),
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                let letter = stored.clone().buried(reason, error.as_deref(), Timestamp::now());
                (LastStep::Ack, Some((queue.dead_letters(), wire::fit_into_frame(letter))))
            }
            Disposition::Nack(Nack::Retry { after, error }) => match &lease.location {
                Location::Channel { .. } => (
                    LastStep::Ack,
                    Some((queue, wire::fit_into_frame(stored.clone().retried(*after, error.as_deref())))),
                ),
                Location::Partition(_) => {
                    // The broker's consumer_timeout counts from the delivery.
                    let left = self.options().longest_hold().saturating_sub(lease.since.elapsed());
                    let longest = left.min(self.options().longest_park());
                    if *after > longest {
                        self.leases().restore(receipt, lease);
                        return Err(MessagingError::invalid(
                            "retry delay",
                            format!(
                                "a message with a key stays unacknowledged at its worker until its retry, for at most {} s \
                                 now; retry sooner, or dead-letter it and redrive it later",
                                longest.as_secs()
                            ),
                        ));
                    }
                    (LastStep::RequeueAfter(*after), None)
                }
            },
        };
        Ok((Settling { row, lease, last_step }, copy))
    }

    /// Refuses a receipt of another connection: on AMQP only the receiving connection can settle a message.
    fn check_receipt(&self, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
        receipt.check_provider(PROVIDER)?;
        match receipt.native() {
            NativeRef::Row(instance) if *instance == self.instance() => Ok(()),
            _ => Err(MessagingError::invalid_receipt(format!(
                "it was received on another connection, and {}",
                crate::capabilities::NOT_PORTABLE
            ))),
        }
    }

    /// Stores the copies. A message whose copy is not stored stays leased.
    async fn store_copies(
        &self,
        settlements: &[Settlement],
        copies: Vec<(usize, Target)>,
        settling: &mut [Option<Settling>],
        results: &mut RowResults<()>,
    ) {
        if copies.is_empty() {
            return;
        }
        let (indexes, targets): (Vec<_>, Vec<_>) = copies.into_iter().unzip();
        let outcomes = match self.connection().live(Deadline::after(ANSWER_TIMEOUT)).await {
            Ok(live) => self.put_copies(&live, &targets).await,
            Err(error) => targets.iter().map(|_| Published::NotSent(error.clone())).collect(),
        };
        for ((index, outcome), (queue, stored)) in indexes.into_iter().zip(outcomes).zip(&targets) {
            let Err(error) = accepted("settle", queue, stored.id, outcome) else { continue };
            if let Some(Settling { row, lease, .. }) = settling[index].take() {
                self.leases().restore(&settlements[row].receipt, lease);
                results[row] = Err(error);
            }
        }
    }

    /// Does the last step of each message, channel by channel.
    async fn finish<'a>(
        &self,
        settling: Vec<Settling>,
        receipt: impl Fn(usize) -> &'a ReceiptHandle,
        results: &mut RowResults<()>,
    ) {
        let mut channels: HashMap<usize, ChannelSettlements> = HashMap::new();
        let mut partitions = Vec::new();
        for Settling { row, lease, last_step } in settling {
            match lease.location {
                Location::Channel { channel, tag } => {
                    let on_channel = channels
                        .entry(Arc::as_ptr(&channel).addr())
                        .or_insert_with(|| ChannelSettlements::new(channel));
                    on_channel.rows.push(row);
                    match last_step {
                        LastStep::Ack => on_channel.ack.push(tag),
                        LastStep::Requeue | LastStep::RequeueAfter(_) => on_channel.requeue.push(tag),
                    }
                }
                Location::Partition(partition) => partitions.push((row, partition, last_step)),
            }
        }
        let channels = join_all(channels.into_values().map(ChannelSettlements::settle));
        let partitions = join_all(
            partitions
                .into_iter()
                .map(|(row, partition, last_step)| async move { (row, settle_partition(partition, last_step).await) }),
        );
        let (channels, partitions) = tokio::join!(channels, partitions);
        let partitions = partitions.into_iter().map(|(row, done)| (vec![row], done));
        for (rows, done) in channels.into_iter().chain(partitions) {
            let Err(error) = done else { continue };
            for row in rows {
                results[row] = Err(MessagingError::OutcomeUnknown {
                    operation: "settle",
                    ids: vec![receipt(row).message_id()],
                    source: Some(Arc::new(error.clone())),
                });
            }
        }
    }

    /// Extends a batch of leases.
    pub(crate) fn extend_leases(&self, rows: &[ExtendRow]) -> RowResults<()> {
        let longest = self.options().longest_hold();
        let extend = |row: &ExtendRow| {
            self.check_receipt(&row.receipt)?;
            self.leases().extend(&row.receipt, row.extension, longest)
        };
        rows.iter().map(extend).collect()
    }

    /// Requeues the messages of leases that no caller will use.
    pub(crate) async fn requeue_leases(&self, leases: Vec<Lease>) -> Result<(), MessagingError> {
        let settling = leases.into_iter().filter(Lease::is_held).map(|lease| Settling {
            row: 0,
            lease,
            last_step: LastStep::Requeue,
        });
        let settling: Vec<_> = settling.collect();
        let Some(first) = settling.first() else { return Ok(()) };
        // All leases share one result: a message that is not requeued now is requeued when the connection ends.
        let receipt = ReceiptHandle::new(
            PROVIDER,
            first.lease.queue.clone(),
            first.lease.stored.id,
            postrider_core::LeaseToken(0),
            NativeRef::Row(self.instance()),
        );
        let mut results = vec![Ok(())];
        self.finish(settling, |_| &receipt, &mut results).await;
        results.pop().unwrap_or(Ok(()))
    }
}

/// The settlements of one channel.
struct ChannelSettlements {
    channel: Arc<ConsumerChannel>,
    rows: Vec<usize>,
    ack: Vec<u64>,
    requeue: Vec<u64>,
}

impl ChannelSettlements {
    fn new(channel: Arc<ConsumerChannel>) -> Self {
        Self { channel, rows: Vec::new(), ack: Vec::new(), requeue: Vec::new() }
    }

    async fn settle(self) -> (Vec<usize>, Result<(), MessagingError>) {
        let done = async {
            let returned = self.requeue.len();
            self.channel.ack(self.ack).await?;
            self.channel.requeue(self.requeue).await?;
            self.channel.catch_up().await?;
            match self.channel.queue().ends_with(DEAD_LETTER_SUFFIX) {
                true => wait_until_ready(returned, || async { self.channel.catch_up().await.map(Some) }).await,
                false => Ok(()),
            }
        };
        let done = done.await;
        (self.rows, done)
    }
}

/// Does the last step of the first message of a partition.
async fn settle_partition(partition: ActivePartition, last_step: LastStep) -> Result<(), MessagingError> {
    match last_step {
        LastStep::Ack => partition.ack().await,
        LastStep::Requeue => partition.requeue().await,
        LastStep::RequeueAfter(after) if after.is_zero() => partition.requeue().await,
        LastStep::RequeueAfter(after) => {
            partition.requeue_after(after);
            Ok(())
        }
    }
}
