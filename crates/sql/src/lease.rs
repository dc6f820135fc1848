//! The lease that a receipt names, where a message is a row of a table.

use postrider_core::{MessagingError, ReceiptHandle};

use crate::stripes::read_token;

/// A decoded receipt of this provider.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The message's row.
    pub row: i64,
    /// The token in the row while the lease is valid.
    pub token: i64,
    /// The stripe of the message's key, where keys are ordered.
    pub stripe: Option<i32>,
    /// The receipt.
    pub receipt: ReceiptHandle,
}

impl Lease {
    /// Decodes a receipt; fails if this provider cannot have issued it.
    pub fn read(receipt: &ReceiptHandle, provider: &'static str) -> Result<Self, MessagingError> {
        receipt.check_provider(provider)?;
        let row = i64::try_from(receipt.row()?).map_err(|_| receipt.expired())?;
        let (token, stripe) = read_token(receipt.token(), row).ok_or_else(|| receipt.expired())?;
        Ok(Self { row, token, stripe, receipt: receipt.clone() })
    }

    /// Decodes the receipts that this provider can have issued, sorted by row, so that two batches lock rows in the
    /// same order.
    pub fn read_all<'r>(receipts: impl Iterator<Item = &'r ReceiptHandle>, provider: &'static str) -> Vec<Self> {
        let mut chosen: Vec<Self> = receipts.filter_map(|receipt| Self::read(receipt, provider).ok()).collect();
        chosen.sort_by_key(|lease| lease.row);
        chosen
    }
}
