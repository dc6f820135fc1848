//! The batches of a store, one kind of row at a time.

use std::sync::Arc;

use postrider_core::coalescer::{
    Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig, ExtendRow, SendRow,
};
use postrider_core::{
    MessageId, MessagingError, Nack, ReceiptHandle, ReturnLease, Returns, RowResults, Settlement, async_trait,
};

/// A store with one batch operation for each kind of row.
pub trait Batches: Clone + Send + Sync + 'static {
    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, BatchFailure>> + Send;

    /// Ends leases.
    fn settle(&self, rows: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, BatchFailure>> + Send;

    /// Extends leases, and returns the receipt that is valid from now on.
    fn extend(
        &self,
        rows: &[ExtendRow],
    ) -> impl Future<Output = Result<RowResults<ReceiptHandle>, BatchFailure>> + Send;

    /// Gives back the leases of dropped messages.
    fn give_up(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// [`Store::returns`](crate::Store::returns).
    fn return_leases(&self) -> Arc<dyn ReturnLease> {
        let store = self.clone();
        Returns::new(move |receipts| {
            let store = store.clone();
            async move { store.give_up(receipts).await }
        })
    }

    /// [`Store::release`](crate::Store::release), best effort: a lease that cannot be released expires.
    fn release_leases(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = ()> + Send {
        async move {
            let releases: Vec<_> =
                receipts.into_iter().map(|receipt| Settlement::nack(receipt, Nack::Release)).collect();
            if let Err(error) = self.settle(&releases).await {
                tracing::debug!(?error, "leases without a caller were not released; they will expire");
            }
        }
    }
}

/// Puts one coalescer in front of a store. Its drivers run in their own tasks, so a caller that is not polled delays no
/// other caller.
pub fn batched<S: Batches>(store: S, config: CoalescerConfig) -> Result<Coalescer, MessagingError> {
    let (coalescer, drivers) = Coalescer::new(Executor { store }, config)?;
    drivers.spawn();
    Ok(coalescer)
}

/// Executes the batches of the coalescer on the store.
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
