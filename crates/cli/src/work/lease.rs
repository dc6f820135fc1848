//! The lease of a message whose command runs.

use std::time::Duration;

use postrider::{Deadline, MessagingError, MessagingService, QueueName, ReceiptHandle};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Renews a lease for as long as this lives.
#[derive(Debug)]
pub(super) struct Lease {
    lost: watch::Receiver<Option<String>>,
    // A task of its own, so that nothing the job does can hold a renewal up.
    renewals: JoinHandle<()>,
}

impl Lease {
    pub(super) fn keep(
        provider: impl MessagingService + Clone,
        queue: QueueName,
        receipt: ReceiptHandle,
        visibility: Duration,
        leased_at: Instant,
    ) -> Self {
        let (tell, lost) = watch::channel(None);
        let renewals = tokio::spawn(async move {
            let why = renew(&provider, &queue, &receipt, visibility, leased_at).await;
            tell.send_replace(Some(why));
        });
        Self { lost, renewals }
    }

    /// Completes when the lease is lost, and says why.
    pub(super) async fn lost(&self) -> String {
        match self.lost.clone().wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "its renewals ended".into(),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

/// Renews after each third of the lease; answers why it could not be kept.
async fn renew(
    provider: &impl MessagingService,
    queue: &QueueName,
    receipt: &ReceiptHandle,
    visibility: Duration,
    leased_at: Instant,
) -> String {
    let mut ends = leased_at + visibility;
    let mut next = leased_at + visibility / 3;
    loop {
        sleep_until(next).await;
        let asked = Instant::now();
        let patience = ends.saturating_duration_since(asked).max(visibility / 3);
        match provider.extend_visibility(queue, receipt, visibility, Deadline::after(patience)).await {
            Ok(()) => {
                ends = asked + visibility;
                next = asked + visibility / 3;
            }
            // The store has the last word; only when it does not answer does our own clock say that the lease is over.
            Err(error) if may_pass(&error) && Instant::now() < ends => {
                next = (Instant::now() + visibility / 10).min(ends);
            }
            Err(error) => return error.to_string(),
        }
    }
}

fn may_pass(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

#[cfg(test)]
mod tests {
    use postrider::{Message, ReceiveOptions};

    use super::*;

    const VISIBILITY: Duration = Duration::from_millis(300);

    async fn leased() -> (postrider::MessagingProvider, QueueName, ReceiptHandle) {
        let provider = postrider::connect("memory:").await.unwrap();
        let queue = QueueName::new("orders").unwrap();
        provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
        let options = ReceiveOptions::batch(1).visibility(VISIBILITY);
        let mut messages = provider.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
        (provider, queue, messages.remove(0).into_receipt())
    }

    #[tokio::test(start_paused = true)]
    async fn it_outlives_its_length_and_ends_with_the_message() {
        let (provider, queue, receipt) = leased().await;
        let lease = Lease::keep(provider.clone(), queue.clone(), receipt.clone(), VISIBILITY, Instant::now());
        tokio::select! {
            why = lease.lost() => panic!("{why}"),
            () = tokio::time::sleep(3 * VISIBILITY) => {}
        }
        provider.ack_message(&queue, receipt, Deadline::default()).await.unwrap();
        assert!(lease.lost().await.contains("is over"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_closed_keeps_no_lease() {
        let (provider, queue, receipt) = leased().await;
        let lease = Lease::keep(provider.clone(), queue, receipt, VISIBILITY, Instant::now());
        provider.close(Deadline::default()).await.unwrap();
        assert!(lease.lost().await.contains("closed"));
    }
}
