//! Calls about leases, which wait for the breaker instead of being refused.

use std::time::Duration;

use postrider_core::{
    Deadline, MessagingError, MessagingService, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, RowResults,
    SettledAndReceived, Settlement,
};
use tokio::time::Instant;

use super::guarded::{Guarded, counted};
use super::{BreakerState, Permit};

/// Why a call that was kept is not made.
pub(super) enum NotMade {
    /// All its leases are over. The breaker's last word is there for what the call wanted besides.
    LeasesOver(MessagingError),
    /// The caller's deadline has passed, or the store will never answer.
    Refused(MessagingError),
}

impl<P: MessagingService> Guarded<P> {
    /// Lets a call about leases through. While the breaker holds calls back it waits: until the breaker closes, its
    /// deadline passes, or the last of its leases is over.
    pub(super) async fn admit_kept<'r>(
        &self,
        receipts: impl Iterator<Item = &'r ReceiptHandle>,
        deadline: Deadline,
    ) -> Result<Permit<'_>, NotMade> {
        let mut receipts = receipts.peekable();
        // The usual case, in which no end is looked up.
        let refused = match self.admit(deadline).await {
            Ok(permit) => return Ok(permit),
            // There is nothing to keep.
            Err(error) if receipts.peek().is_none() => return Err(NotMade::Refused(error)),
            Err(error) => error,
        };
        let over_at = self.lease_ends().last(receipts);
        let until = over_at.map_or(deadline, |at| deadline.at_most(at.saturating_duration_since(Instant::now())));
        let mut last = refused;
        loop {
            // Such as that the connection is closed: waiting would not help.
            if !last.is_retryable() {
                return Err(NotMade::Refused(last));
            }
            if over_at.is_some_and(|at| at <= Instant::now()) {
                return Err(NotMade::LeasesOver(last));
            }
            if deadline.has_passed() {
                return Err(NotMade::Refused(last));
            }
            self.next_try(until).await;
            if until.has_passed() {
                continue;
            }
            match self.admit(until).await {
                Ok(permit) => return Ok(permit),
                Err(MessagingError::DeadlineExceeded { .. }) if until.has_passed() => {}
                Err(error) => last = error,
            }
        }
    }

    /// Waits until it is worth while to ask the breaker again.
    async fn next_try(&self, until: Deadline) {
        let mut probed = std::pin::pin!(self.breaker().probed.notified());
        // Registered before the look, or a probe that ends between the two would be missed.
        probed.as_mut().enable();
        let wait = until.at_most(self.breaker().patience());
        if !matches!(self.breaker().state(), BreakerState::Closed { .. }) {
            wait.limit(probed).await;
        }
    }

    /// Settles, when the breaker allows.
    pub(super) async fn settle_kept(
        &self,
        settlements: Vec<Settlement>,
        deadline: Deadline,
    ) -> Result<RowResults<()>, MessagingError> {
        let receipts = receipts_of(&settlements);
        let permit = match self.admit_kept(receipts.iter(), deadline).await {
            Ok(permit) => permit,
            Err(NotMade::LeasesOver(_)) => return Ok(over(&receipts)),
            Err(NotMade::Refused(error)) => return Err(error),
        };
        let answer = counted(permit, self.inner().settle(settlements, deadline)).await;
        if let Ok(rows) = &answer {
            self.note_settled(&receipts, rows);
        }
        answer
    }

    /// Settles and receives, when the breaker allows. Without settlements it is a receive, and refused like one.
    pub(super) async fn settle_and_receive_kept(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let receipts = receipts_of(&settlements);
        let permit = match self.admit_kept(receipts.iter(), deadline).await {
            Ok(permit) => permit,
            Err(NotMade::LeasesOver(error)) => {
                return Ok(SettledAndReceived { settled: over(&receipts), received: Err(error) });
            }
            Err(NotMade::Refused(error)) => return Err(error),
        };
        let answer = counted(permit, self.inner().settle_and_receive(settlements, queues, options, deadline)).await;
        if let Ok(both) = &answer {
            self.note_settled(&receipts, &both.settled);
            if let Ok(messages) = &both.received {
                self.note_granted(messages, options.visibility);
            }
        }
        answer
    }

    /// Extends a lease, when the breaker allows.
    pub(super) async fn extend_kept(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let permit = match self.admit_kept(std::iter::once(receipt), deadline).await {
            Ok(permit) => permit,
            Err(NotMade::LeasesOver(_)) => return Err(receipt.expired()),
            Err(NotMade::Refused(error)) => return Err(error),
        };
        let one = || std::iter::once(receipt);
        // From here on it may be carried out, also when no answer comes or nobody waits for it: the end is not known.
        let before = self.lease_ends().last(one());
        self.lease_ends().ended(one());
        let answer = counted(permit, self.inner().extend_visibility(queue, receipt, extension, deadline)).await;
        match (&answer, before) {
            (Ok(next), _) => self.lease_ends().granted(std::iter::once(next), self.lasting(extension)),
            (Err(MessagingError::OutcomeUnknown { .. } | MessagingError::VisibilityExpired { .. }), _) => {}
            (Err(_), Some(end)) => {
                self.lease_ends().granted(one(), end.saturating_duration_since(Instant::now()));
            }
            (Err(_), None) => {}
        }
        answer
    }

    /// Notes the leases of what was received.
    pub(super) fn note_granted(&self, messages: &[QueuedMessage], visibility: Duration) {
        let receipts = messages.iter().map(QueuedMessage::receipt);
        self.lease_ends().granted(receipts, self.lasting(visibility));
    }

    fn note_settled(&self, receipts: &[ReceiptHandle], rows: &RowResults<()>) {
        let has_ended =
            |row: &Result<(), MessagingError>| matches!(row, Ok(()) | Err(MessagingError::VisibilityExpired { .. }));
        let ended = receipts.iter().zip(rows).filter(|(_, row)| has_ended(row)).map(|(receipt, _)| receipt);
        self.lease_ends().ended(ended);
    }

    /// How long a lease lasts at most that was asked for with this length.
    fn lasting(&self, visibility: Duration) -> Duration {
        visibility.saturating_add(self.inner().capabilities().limits.time_resolution)
    }
}

fn receipts_of(settlements: &[Settlement]) -> Vec<ReceiptHandle> {
    settlements.iter().map(|settlement| settlement.receipt.clone()).collect()
}

/// What is answered about leases that are over.
fn over(receipts: &[ReceiptHandle]) -> RowResults<()> {
    receipts.iter().map(|receipt| Err(receipt.expired())).collect()
}

#[cfg(test)]
mod tests;
