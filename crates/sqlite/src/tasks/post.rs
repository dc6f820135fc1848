//! What is told of a transition, in the transition's own transaction: the message that delivers a task, the event of a
//! death.
//!
//! Whoever calls here has changed rows already, so nothing here may merely refuse: what cannot be sent takes the whole
//! piece of work back.

use std::borrow::Cow;

use postrider_core::service::check_sendable;
use postrider_core::task::{DeadReason, DeadTaskEvent, PayloadRef, Post, TaskId, TaskMessage, TaskType};
use postrider_core::{Json, Message, Priority, QueueName, Timestamp};

use super::record::Life;
use super::step::TaskStep;
use crate::error::Failure;
use crate::rows::content_type_column;
use crate::sql;

/// The longest text of an error that is kept, as with messages.
const LONGEST_ERROR: usize = 8 * 1024;

/// An error's text as it is kept: not too long, and without the one character that not every store can hold.
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

    /// Tells of a death, where that is wanted.
    pub(super) fn tell_of_death(&mut self, life: &Life, reason: DeadReason, error: &str) -> rusqlite::Result<()> {
        let Some(queue) = self.routes.dead_events.clone() else { return Ok(()) };
        // Every character of a text may take six in JSON.
        let room = self.session.rules.capabilities.limits.max_body_bytes.saturating_sub(1024) / 6;
        let error = &error[..error.floor_char_boundary(room)];
        let event = DeadTaskEvent {
            task_id: life.id,
            task_type: life.task_type.clone(),
            worker_id: life.worker.clone(),
            attempt_count: life.attempt_count,
            max_attempts: life.max_attempts,
            reason,
            error: error.to_owned(),
            dead_at: self.now(),
            payload: PayloadRef { revision: life.revision, bytes: life.payload_bytes },
        };
        let message = Message::encode(&Json(event)).map_err(|error| Failure::take_back(error.into()))?;
        self.post(&queue, message, self.now())
    }

    fn post(&mut self, queue: &QueueName, mut message: Message, due: Timestamp) -> rusqlite::Result<()> {
        match self.routes.post {
            Post::Here => {
                // A task that is due later than a message can be is delivered early, and its claim says so.
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
                self.tell_of_sending(due);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_kept_as_far_as_every_store_can() {
        assert_eq!(kept("no route"), "no route");
        assert_eq!(kept("a\0b"), "a\u{fffd}b");
        let long = kept(&"ä".repeat(LONGEST_ERROR)).into_owned();
        assert!(long.len() == LONGEST_ERROR && long.ends_with('ä'));
    }
}
