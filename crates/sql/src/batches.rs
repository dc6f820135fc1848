//! Batches of rows on a database.

use std::sync::Arc;

use postrider_core::coalescer::{BatchFailure, Coalescer, CoalescerConfig, ExtendRow, SendRow, with_same_receipts};
use postrider_core::{MessageId, MessagingError, ReceiptHandle, ReturnLease, RowResults, Settlement};
use postrider_provider::{Batches, Undone, batched};

use crate::rounds::{Receipt, in_rounds};
use crate::store::SqlStore;

#[derive(Clone)]
struct Rows<S>(S);

impl<S: SqlStore> Batches for Rows<S> {
    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        self.0.send(rows).await.map_err(Undone::into_batch_failure)
    }

    async fn settle(&self, rows: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        let receipt: Receipt<Settlement> = |row| &row.receipt;
        let settled = in_rounds("settle", rows, receipt, |rows| async move { self.0.settle(&rows).await });
        settled.await.map_err(Undone::into_batch_failure)
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        let receipt: Receipt<ExtendRow> = |row| &row.receipt;
        let extended = in_rounds("extend", rows, receipt, |rows| async move { self.0.extend(&rows).await });
        Ok(with_same_receipts(rows, extended.await.map_err(Undone::into_batch_failure)?))
    }

    async fn give_up(&self, receipts: Vec<ReceiptHandle>) -> Result<(), MessagingError> {
        self.0.give_up(&receipts).await.map_err(Undone::into_harmless)
    }
}

/// [`Store::batches`](postrider_provider::Store::batches) of a database.
pub fn batches<S: SqlStore>(store: &S) -> Result<Vec<Coalescer>, MessagingError> {
    Ok(vec![batched(Rows(store.clone()), CoalescerConfig::new(S::PROVIDER))?])
}

/// [`Store::returns`](postrider_provider::Store::returns) of a database.
pub fn returns<S: SqlStore>(store: &S) -> Arc<dyn ReturnLease> {
    Rows(store.clone()).return_leases()
}

/// [`Store::release`](postrider_provider::Store::release) of a database.
pub async fn release<S: SqlStore>(store: &S, receipts: Vec<ReceiptHandle>) {
    Rows(store.clone()).release_leases(receipts).await;
}
