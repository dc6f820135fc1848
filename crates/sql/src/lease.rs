//! What a receipt says of a lease, where a message is a row of a table.

use postrider_core::{MessagingError, ReceiptHandle};

use crate::stripes::read_token;

/// A receipt that can be a provider's.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The message's row.
    pub row: i64,
    /// What the row holds as long as the lease is valid.
    pub token: i64,
    /// The stripe of the message's key, where keys are ordered.
    pub stripe: Option<i32>,
    /// The receipt.
    pub receipt: ReceiptHandle,
}

impl Lease {
    /// Reads a receipt, unless it cannot be this provider's.
    pub fn read(receipt: &ReceiptHandle, provider: &'static str) -> Result<Self, MessagingError> {
        receipt.check_provider(provider)?;
        let row = i64::try_from(receipt.row()?).map_err(|_| receipt.expired())?;
        let (token, stripe) = read_token(receipt.token(), row).ok_or_else(|| receipt.expired())?;
        Ok(Self { row, token, stripe, receipt: receipt.clone() })
    }

    /// Those of the receipts that can be, in the order of the rows, so that two batches never lock each other's rows
    /// crosswise.
    pub fn read_all<'r>(receipts: impl Iterator<Item = &'r ReceiptHandle>, provider: &'static str) -> Vec<Self> {
        let mut chosen: Vec<Self> = receipts.filter_map(|receipt| Self::read(receipt, provider).ok()).collect();
        chosen.sort_by_key(|lease| lease.row);
        chosen
    }
}
