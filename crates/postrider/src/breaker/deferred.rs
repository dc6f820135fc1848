//! Settles and extensions, which wait for the breaker instead of being refused.

use std::time::Duration;

use postrider_core::{
    Deadline, MessagingError, MessagingService, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, RowResults,
    SettledAndReceived, Settlement,
};
use tokio::time::Instant;

use super::guarded::{Guarded, counted};
use super::{BreakerState, Permit};

/// Why a deferred call is not made.
pub(super) enum NotAdmitted {
    /// All its leases are over. The breaker's last error is the answer to a receive in the same call.
    LeasesOver(MessagingError),
    /// The caller's deadline has passed, or a retry would not help.
    Refused(MessagingError),
}

impl<P: MessagingService> Guarded<P> {
    /// Admits a settle or an extension. While the breaker is open it waits until the breaker closes, its deadline passes, or
    /// the last of its leases is over.
    pub(super) async fn admit_deferred<'r>(
        &self,
        receipts: impl Iterator<Item = &'r ReceiptHandle>,
        deadline: Deadline,
    ) -> Result<Permit<'_>, NotAdmitted> {
        let mut receipts = receipts.peekable();
        // The usual case needs no lookup of lease ends.
        let refused = match self.admit(deadline).await {
            Ok(permit) => return Ok(permit),
            // Without leases there is nothing to defer.
            Err(error) if receipts.peek().is_none() => return Err(NotAdmitted::Refused(error)),
            Err(error) => error,
        };
        let over_at = self.lease_ends().last(receipts);
        let until = over_at.map_or(deadline, |at| deadline.at_most(at.saturating_duration_since(Instant::now())));
        let mut last = refused;
        loop {
            // For example a closed connection: waiting would not help.
            if !last.is_retryable() {
                return Err(NotAdmitted::Refused(last));
            }
            if over_at.is_some_and(|at| at <= Instant::now()) {
                return Err(NotAdmitted::LeasesOver(last));
            }
            if deadline.has_passed() {
                return Err(NotAdmitted::Refused(last));
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

    /// Waits for the next try.
    async fn next_try(&self, until: Deadline) {
        let mut probed = std::pin::pin!(self.breaker().probed.notified());
        // Registered before the check of the state, or a probe that ends in between would be missed.
        probed.as_mut().enable();
        let wait = until.at_most(self.breaker().retry_wait());
        if !matches!(self.breaker().state(), BreakerState::Closed { .. }) {
            wait.limit(probed).await;
        }
    }

    /// Settles once the breaker admits it.
    pub(super) async fn settle_deferred(
        &self,
        settlements: Vec<Settlement>,
        deadline: Deadline,
    ) -> Result<RowResults<()>, MessagingError> {
        let receipts = receipts_of(&settlements);
        let permit = match self.admit_deferred(receipts.iter(), deadline).await {
            Ok(permit) => permit,
            Err(NotAdmitted::LeasesOver(_)) => return Ok(over(&receipts)),
            Err(NotAdmitted::Refused(error)) => return Err(error),
        };
        let answer = counted(permit, self.inner().settle(settlements, deadline)).await;
        if let Ok(rows) = &answer {
            self.note_settled(&receipts, rows);
        }
        answer
    }

    /// Settles and receives once the breaker admits it. Without settlements it is refused like a receive.
    pub(super) async fn settle_and_receive_deferred(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let receipts = receipts_of(&settlements);
        let permit = match self.admit_deferred(receipts.iter(), deadline).await {
            Ok(permit) => permit,
            Err(NotAdmitted::LeasesOver(error)) => {
                return Ok(SettledAndReceived { settled: over(&receipts), received: Err(error) });
            }
            Err(NotAdmitted::Refused(error)) => return Err(error),
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

    /// Extends a lease once the breaker admits it.
    pub(super) async fn extend_deferred(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        let permit = match self.admit_deferred(std::iter::once(receipt), deadline).await {
            Ok(permit) => permit,
            Err(NotAdmitted::LeasesOver(_)) => return Err(receipt.expired()),
            Err(NotAdmitted::Refused(error)) => return Err(error),
        };
        let one = || std::iter::once(receipt);
        // From here on it may be carried out also when no answer comes, so the end of the lease is not known.
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

    /// Records the leases of received messages.
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

    /// Upper bound of the length of a lease that was requested with this length.
    fn lasting(&self, visibility: Duration) -> Duration {
        visibility.saturating_add(self.inner().capabilities().limits.time_resolution)
    }
}

fn receipts_of(settlements: &[Settlement]) -> Vec<ReceiptHandle> {
    settlements.iter().map(|settlement| settlement.receipt.clone()).collect()
}

/// The answer for leases that are over.
fn over(receipts: &[ReceiptHandle]) -> RowResults<()> {
    receipts.iter().map(|receipt| Err(receipt.expired())).collect()
}

#[cfg(test)]
mod tests;
