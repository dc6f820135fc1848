//! Actions on one waiting message.

use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::queue_name::QueueName;
use crate::waiting::{check_death, check_queue};

use super::queue::{Phase, Queue, RowId};
use super::store::State;

impl State {
    /// The oldest message with the id, if it waits.
    fn waiting(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        now: Timestamp,
    ) -> Result<(&mut Queue, RowId), MessagingError> {
        check_queue(queue)?;
        let missing = || MessagingError::MessageNotFound { queue: queue.clone(), id };
        let found = self.queues.get_mut(queue).ok_or_else(missing)?;
        let row = found.rows_of(id).next().ok_or_else(missing)?;
        if found.rows.get(&row).is_some_and(|row| row.is_leased(now)) {
            return Err(MessagingError::MessageLeased { queue: queue.clone(), id });
        }
        Ok((found, row))
    }

    pub(super) fn deliver_now(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        now: Timestamp,
    ) -> Result<(), MessagingError> {
        let (queue, row) = self.waiting(queue, id, now)?;
        queue.change(row, now, |phase| match phase.expire(now) {
            Phase::Waiting(waiting) => Phase::Waiting(waiting.make_due(now)),
            leased @ Phase::Leased(_) => leased,
        });
        Ok(())
    }

    pub(super) fn dead_letter_waiting(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        now: Timestamp,
    ) -> Result<(), MessagingError> {
        let (reason, error) = check_death(reason, error)?;
        let (found, row) = self.waiting(queue, id, now)?;
        if let Some(row) = found.remove(row, now)
            && let Phase::Waiting(waiting) = row.phase.expire(now)
        {
            let lifecycle = waiting.dead_letter(reason, error, now);
            self.dead_letter(queue, row.message, row.expires_at, row.failures, lifecycle, now);
        }
        Ok(())
    }
}
