//! Where a lease ends or is extended: nothing happens without the token that is valid now.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::disposition::{Disposition, Nack, Settlement};
use crate::error::MessagingError;
use crate::lifecycle::{Life, Processing, Waiting};
use crate::receipt::ReceiptHandle;

use super::PROVIDER;
use super::queue::{Phase, Queue, RowId};
use super::store::State;

impl State {
    pub(super) fn settle(&mut self, settlement: Settlement, now: Timestamp) -> Result<(), MessagingError> {
        let Settlement { receipt, disposition } = settlement;
        let (queue, row) = self.held(&receipt, now)?;
        match disposition {
            Disposition::Ack => {
                queue.remove(row, now);
            }
            Disposition::Nack(Nack::Retry { after, error }) => {
                queue.reschedule(row, now, |phase| {
                    end_lease(phase, |life| Waiting::Retryable(life.retry(after, error, now)))
                });
            }
            Disposition::Nack(Nack::Release) => {
                queue.reschedule(row, now, |phase| end_lease(phase, |life| Waiting::Pending(life.release(now))));
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                if queue.name.holds_dead_letters() {
                    return Err(MessagingError::invalid(
                        "disposition",
                        format!("'{}' has no dead letters of its own; redrive the message or purge it", queue.name),
                    ));
                }
                let name = queue.name.clone();
                if let Some(removed) = queue.remove(row, now)
                    && let Phase::Leased(life) = removed.phase
                {
                    self.bury(&name, removed.message, removed.expires_at, life.reject(reason, error, now), now);
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
        let (queue, row) = self.held(receipt, now)?;
        queue.reschedule(row, now, |phase| match phase {
            Phase::Leased(mut life) => {
                life.extend(extension, now);
                Phase::Leased(life)
            }
            waiting @ Phase::Waiting(_) => waiting,
        });
        Ok(())
    }

    /// A message was dropped unsettled: its lease ends now, its delivery stays counted.
    pub(super) fn give_up(&mut self, receipt: &ReceiptHandle, now: Timestamp) {
        if let Ok((queue, row)) = self.held(receipt, now) {
            queue.reschedule(row, now, |phase| {
                end_lease(phase, |mut life| {
                    life.extend(Duration::ZERO, now);
                    Waiting::Pending(life.expire())
                })
            });
        }
    }

    /// The row that a receipt holds, if its lease is valid now.
    fn held(&mut self, receipt: &ReceiptHandle, now: Timestamp) -> Result<(&mut Queue, RowId), MessagingError> {
        receipt.check_provider(PROVIDER)?;
        if !self.issued(receipt.token()) {
            return Err(MessagingError::invalid_receipt("it was issued by another store in memory"));
        }
        let row = receipt.row()?;
        let held = self.queues.get_mut(receipt.queue()).filter(|queue| {
            queue.rows.get(&row).is_some_and(|row| {
                row.message.id == receipt.message_id()
                    && matches!(&row.phase, Phase::Leased(life) if life.is_held_by(receipt.token(), now))
            })
        });
        held.map(|queue| (queue, row)).ok_or_else(|| receipt.expired())
    }
}

fn end_lease(phase: Phase, end: impl FnOnce(Life<Processing>) -> Waiting) -> Phase {
    match phase {
        Phase::Leased(life) => Phase::Waiting(end(life)),
        waiting @ Phase::Waiting(_) => waiting,
    }
}
