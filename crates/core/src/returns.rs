//! The return of leases whose messages were dropped.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::MessagingError;
use crate::queued_message::ReturnLease;
use crate::receipt::ReceiptHandle;
use crate::spawn::spawn;

/// Upper bound of the leases that are returned together.
const MAX_BATCH: usize = 1000;

/// Takes back the leases of dropped messages in the background. For providers.
pub struct Returns {
    /// Unbounded, because a drop cannot wait; its contents were leased, and leases are bounded.
    returned: mpsc::UnboundedSender<ReceiptHandle>,
}

impl Returns {
    /// Gives dropped leases back by `give_up`, in a task that ends with the last message and the provider.
    pub fn new<F, Fut>(give_up: F) -> Arc<Self>
    where
        F: Fn(Vec<ReceiptHandle>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), MessagingError>> + Send,
    {
        let (returned, mut inbox) = mpsc::unbounded_channel();
        spawn(async move {
            let mut receipts = Vec::new();
            while inbox.recv_many(&mut receipts, MAX_BATCH).await > 0 {
                if let Err(error) = give_up(std::mem::take(&mut receipts)).await {
                    tracing::debug!(?error, "dropped messages were not given back; their leases will expire");
                }
            }
        });
        Arc::new(Self { returned })
    }
}

impl ReturnLease for Returns {
    fn return_lease(&self, receipt: ReceiptHandle) {
        // If the task has ended, the lease expires.
        let _ = self.returned.send(receipt);
    }
}

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Returns")
    }
}
