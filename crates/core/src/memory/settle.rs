//! Settles and extends, each fenced by the token of a valid lease.

use std::time::Duration;

use super::lifecycle::{Lifecycle, Processing, Waiting};
use crate::archive::ArchivedState;
use crate::clock::Timestamp;
use crate::disposition::{Disposition, Nack, Settlement};
use crate::error::MessagingError;
use crate::receipt::ReceiptHandle;

use super::PROVIDER;
use super::queue::{Phase, Queue, Row, RowId};
use super::store::State;

impl State {
    pub(super) fn settle(&mut self, settlement: Settlement, now: Timestamp) -> Result<(), MessagingError> {
        let Settlement { receipt, disposition, worker } = settlement;
        let token = receipt.token();
        let (queue, row) = self.held(&receipt, now)?;
        match disposition {
            Disposition::Ack => {
                let name = queue.name.clone();
                if let Some(Row { message, phase: Phase::Leased(lifecycle), .. }) = queue.remove(row, now)
                    && let Ok(completed) = lifecycle.ack(token, now)
                {
                    self.keep(&name, message, completed.record(), ArchivedState::Completed, now);
                }
            }
            Disposition::Nack(Nack::Retry { after, error }) => {
                queue.record_failure(row, worker.as_deref(), error.as_deref(), now);
                queue.reschedule(row, now, |phase| {
                    transition_leased(phase, |lifecycle| {
                        Ok(waiting(Waiting::Retryable(lifecycle.retry(token, after, error, now)?)))
                    })
                });
            }
            Disposition::Nack(Nack::Release) => {
                queue.reschedule(row, now, |phase| {
                    transition_leased(phase, |lifecycle| Ok(waiting(Waiting::Pending(lifecycle.release(token, now)?))))
                });
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                if queue.name.holds_dead_letters() {
                    return Err(MessagingError::invalid(
                        "disposition",
                        format!("'{}' has no dead letters of its own; redrive the message or purge it", queue.name),
                    ));
                }
                let name = queue.name.clone();
                queue.record_failure(row, worker.as_deref(), error.as_deref(), now);
                if let Some(Row { message, expires_at, phase: Phase::Leased(lifecycle), failures, .. }) =
                    queue.remove(row, now)
                    && let Ok(failed) = lifecycle.reject(token, reason, error, now)
                {
                    self.dead_letter(&name, message, expires_at, failures, failed, now);
                }
            }
        }
        Ok(())
    }

    pub(super) fn extend(
        &mut self,
        receipt: &ReceiptHandle,
        extension: Duration,
        now: Timestamp,
    ) -> Result<(), MessagingError> {
        let token = receipt.token();
        let (queue, row) = self.held(receipt, now)?;
        queue.reschedule(row, now, |phase| {
            transition_leased(phase, |lifecycle| Ok(Phase::Leased(lifecycle.extend(token, extension, now)?)))
        });
        Ok(())
    }

    /// Ends the lease of a dropped message; its delivery stays counted.
    pub(super) fn give_up(&mut self, receipt: &ReceiptHandle, now: Timestamp) {
        let token = receipt.token();
        if let Ok((queue, row)) = self.held(receipt, now) {
            queue.reschedule(row, now, |phase| {
                transition_leased(phase, |lifecycle| Ok(waiting(Waiting::Pending(lifecycle.give_up(token, now)?))))
            });
        }
    }

    /// The row that a receipt names, if its lease is valid now.
    fn held(&mut self, receipt: &ReceiptHandle, now: Timestamp) -> Result<(&mut Queue, RowId), MessagingError> {
        receipt.check_provider(PROVIDER)?;
        if !self.issued(receipt.token()) {
            return Err(MessagingError::invalid_receipt("it was issued by another store in memory"));
        }
        let row = receipt.row()?;
        let held = self.queues.get_mut(receipt.queue()).filter(|queue| {
            queue.rows.get(&row).is_some_and(|row| {
                row.message.id == receipt.message_id()
                    && matches!(&row.phase, Phase::Leased(lifecycle) if lifecycle.is_held_by(receipt.token(), now))
            })
        });
        held.map(|queue| (queue, row)).ok_or_else(|| receipt.expired())
    }
}

fn waiting(waiting: Waiting) -> Phase {
    Phase::Waiting(waiting)
}

/// Applies a transition to a leased row. `held` has checked the lease, so the transition is not refused.
fn transition_leased(
    phase: Phase,
    transition: impl FnOnce(Lifecycle<Processing>) -> Result<Phase, Lifecycle<Processing>>,
) -> Phase {
    match phase {
        Phase::Leased(lifecycle) => transition(lifecycle).unwrap_or_else(Phase::Leased),
        waiting @ Phase::Waiting(_) => waiting,
    }
}
