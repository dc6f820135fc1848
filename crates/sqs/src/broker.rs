//! `impl Broker`: says where each operation is.

use futures_util::stream;
use postrider_broker::{Broker, Hold, Stored};
use postrider_core::coalescer::{BatchFailure, ExtendRow, SendRow};
use postrider_core::{
    Capabilities, Deadline, MessageId, MessagingError, QueueName, QueueStats, ReceiptHandle, ReceiveOptions,
    RowResults, Settlement, WakeUps,
};
use postrider_provider::{Claimed, Patience};

use crate::hold::SqsHold;
use crate::names::Side;
use crate::store::SqsStore;
use crate::{PROVIDER, lease};

impl Broker for SqsStore {
    const PROVIDER: &'static str = PROVIDER;

    type Hold = SqsHold;

    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn creates_queues(&self) -> bool {
        self.shared.options.create_queues
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.shared.check_answers(deadline).await
    }

    async fn ensure_queue(&self, queue: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.shared.ensure(queue).await
    }

    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        Ok(self.shared.send_rows(rows).await)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        Ok(self.shared.settle_rows(settlements).await)
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        Ok(self.shared.extend_rows(rows).await)
    }

    async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), MessagingError> {
        self.shared.release(receipts).await.into_iter().collect()
    }

    async fn receive(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        patience: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        self.claim(queue, options, deadline, patience).await
    }

    async fn wake_ups(&self, _: &QueueName, _: Deadline) -> Result<WakeUps, MessagingError> {
        // Never called: the capability is refused.
        Ok(WakeUps::new(stream::empty()))
    }

    async fn list_queues(&self, _: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        Ok(self.shared.list().await?.into_iter().collect())
    }

    async fn is_usable(&self, queue: &QueueName, _: Deadline) -> Result<Option<Result<(), String>>, MessagingError> {
        for side in [Side::Standard, Side::Fifo] {
            match self.shared.find(queue, side).await {
                Ok(Some(_)) => return Ok(Some(Ok(()))),
                Ok(None) => {}
                Err(error @ (MessagingError::Provider { .. } | MessagingError::InvalidInput { .. })) => {
                    return Ok(Some(Err(error.to_string())));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn stats(&self, queue: &QueueName, _: Deadline) -> Result<QueueStats, MessagingError> {
        self.shared.stats(queue).await
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, _: Deadline) -> Result<(), MessagingError> {
        self.shared.pause(&queue.origin(), is_paused).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        let mut hold = self.hold(queue, deadline).await?;
        let purged = empty(&mut hold).await;
        let back = hold.put_back().await;
        purged.and_then(|purged| back.map(|()| purged))
    }

    async fn delete_queue(&self, queue: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        self.shared.delete(queue).await
    }

    async fn hold(&self, queue: &QueueName, _: Deadline) -> Result<SqsHold, MessagingError> {
        SqsHold::new(self, queue).await
    }

    fn leased(&self, queue: &QueueName) -> Vec<Stored> {
        self.shared.urls.known(queue, Side::Standard).map_or_else(Vec::new, |url| lease::leased(&url))
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }
}

/// Removes all messages that can be held, and returns how many there were.
async fn empty(hold: &mut SqsHold) -> Result<u64, MessagingError> {
    let mut removed = 0;
    loop {
        let some: Vec<_> = hold.take(usize::MAX).await?.iter().map(|held| held.place).collect();
        if some.is_empty() {
            return Ok(removed);
        }
        hold.remove(&some).await?;
        removed += some.len() as u64;
    }
}
