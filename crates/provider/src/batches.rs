//! Batches of stores that carry out each kind of row by itself.

use std::sync::Arc;

use postrider_core::coalescer::{
    Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, ExtendRow, SendRow,
};
use postrider_core::{
    MessageId, MessagingError, Nack, ReceiptHandle, ReturnLease, Returns, RowResults, Settlement, async_trait,
};

/// A store that sends, settles and extends rows of one kind at a time.
pub trait Batches: Clone + Send + Sync + 'static {
    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, BatchFailure>> + Send;

    /// Ends leases.
    fn settle(&self, rows: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, BatchFailure>> + Send;

    /// Extends leases, and answers the receipt by which each goes on.
    fn extend(
        &self,
        rows: &[ExtendRow],
    ) -> impl Future<Output = Result<RowResults<ReceiptHandle>, BatchFailure>> + Send;

    /// Gives leases back whose messages were dropped.
    fn give_up(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// [`Store::returns`](crate::Store::returns).
    fn return_leases(&self) -> Arc<dyn ReturnLease> {
        let store = self.clone();
        Returns::new(move |receipts| {
            let store = store.clone();
            async move { store.give_up(receipts).await }
        })
    }

    /// [`Store::release`](crate::Store::release), best effort: what cannot be released runs out.
    fn release_leases(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = ()> + Send {
        async move {
            let releases: Vec<_> =
                receipts.into_iter().map(|receipt| Settlement::nack(receipt, Nack::Release)).collect();
            if let Err(error) = self.settle(&releases).await {
                tracing::debug!(?error, "leases without a caller were not released; they run out");
            }
        }
    }
}

/// One coalescer in front of a store, run by tasks of its own: callers who are not polled hold up no other.
pub fn batched<S: Batches>(store: S, config: CoalescerConfig) -> Result<Coalescer, MessagingError> {
    let (coalescer, drivers) = Coalescer::new(Executor { store }, config)?;
    drivers.spawn();
    Ok(coalescer)
}

/// Carries the coalescer's batches out.
struct Executor<S> {
    store: S,
}

#[async_trait]
impl<S: Batches> BatchExecutor for Executor<S> {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        let mut reply = BatchReply::default();
        if !batch.extends.is_empty() {
            reply.extends = self.store.extend(&batch.extends).await?;
        }
        if !batch.settles.is_empty() {
            reply.settles = self.store.settle(&batch.settles).await?;
        }
        if !batch.sends.is_empty() {
            reply.sends = self.store.send(&batch.sends).await?;
        }
        Ok(reply)
    }
}
