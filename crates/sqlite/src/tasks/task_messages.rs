//! The messages of task transitions, sent in the transition's own transaction: the message that delivers a task, and
//! the event of a death.
//!
//! The caller has changed rows already, so a refusal is not enough here: a message that cannot be sent rolls back the
//! whole call.

use std::borrow::Cow;

use postrider_core::service::check_sendable;
use postrider_core::task::{DeadReason, DeadTaskEvent, PayloadRef, Post, TaskId, TaskMessage, TaskType};
use postrider_core::{Json, Message, Priority, QueueName, Timestamp};

use super::record::TaskRow;
use super::step::TaskStep;
use crate::error::Failure;
use crate::rows::content_type_column;
use crate::sql;

/// Upper bound of a stored error text, as with messages.
const LONGEST_ERROR: usize = 8 * 1024;

/// An error text as it is stored: shortened, and without NUL, which not every store can hold.
pub(super) fn kept(error: &str) -> Cow<'_, str> {
    let text = if error.contains('\0') { Cow::Owned(error.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(error) };
    if text.len() <= LONGEST_ERROR {
        return text;
    }
    Cow::Owned(text[..text.floor_char_boundary(LONGEST_ERROR)].to_owned())
}

impl TaskStep<'_, '_> {
    /// Sends the message that delivers a task at `due`.
    pub(super) fn send_task(
        &mut self,
        id: TaskId,
        task_type: &TaskType,
        priority: Priority,
        due: Timestamp,
    ) -> rusqlite::Result<()> {
        let queue = self.queue(task_type).map_err(|error| Failure::take_back(error.into()))?;
        let message = TaskMessage::message(id, priority).map_err(|error| Failure::take_back(error.into()))?;
        self.post(&queue, message, due)
    }

    /// Sends the event of a death, if the routes name a queue for it.
    pub(super) fn send_dead_event(&mut self, task: &TaskRow, reason: DeadReason, error: &str) -> rusqlite::Result<()> {
        let Some(queue) = self.routes.dead_events.clone() else { return Ok(()) };
        // A character may take six bytes in JSON.
        let max = self.session.rules.capabilities.limits.max_body_bytes.saturating_sub(1024) / 6;
        let error = &error[..error.floor_char_boundary(max)];
        let event = DeadTaskEvent {
            task_id: task.id,
            task_type: task.task_type.clone(),
            worker_id: task.worker.clone(),
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            reason,
            error: error.to_owned(),
            dead_at: self.now(),
            payload: PayloadRef { revision: task.revision, bytes: task.payload_bytes },
        };
        let message = Message::encode(&Json(event)).map_err(|error| Failure::take_back(error.into()))?;
        self.post(&queue, message, self.now())
    }

    fn post(&mut self, queue: &QueueName, mut message: Message, due: Timestamp) -> rusqlite::Result<()> {
        match self.routes.post {
            Post::Here => {
                // A longer delay is cut: the message arrives early, and the claim answers that the task is not due.
                message.delay = due.since(self.now()).min(self.session.rules.capabilities.limits.max_delay);
                self.session.make_queue(queue)?;
                check_sendable(&self.session.rules.capabilities, queue, &message)
                    .map_err(|error| Failure::take_back(error.into()))?;
                self.session.accept(queue, &message).map(|_| ()).map_err(Failure::take_back)
            }
            Post::Outbox => {
                let statement = self.session.hot.outbox_put.get(self.session.connection, sql::OUTBOX_PUT)?;
                statement.execute((
                    queue.as_str(),
                    message.id.as_uuid().as_bytes(),
                    message.priority.get(),
                    due.as_micros(),
                    content_type_column(&message.content_type),
                    self.session.now.as_micros(),
                    message.body.as_ref(),
                ))?;
                self.wake_enqueuer(due);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_stored_as_far_as_every_store_allows() {
        assert_eq!(kept("no route"), "no route");
        assert_eq!(kept("a\0b"), "a\u{fffd}b");
        let long = kept(&"ä".repeat(LONGEST_ERROR)).into_owned();
        assert!(long.len() == LONGEST_ERROR && long.ends_with('ä'));
    }
}
