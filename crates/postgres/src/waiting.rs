//! Actions of an operator on one message that is not leased.

use std::time::Instant;

use postrider_core::{DeadLetterReason, Deadline, MessageId, MessagingError, QueueName};
use postrider_provider::{Undone, persist};

use crate::store::Shared;

impl Shared {
    /// Returns the rows of a message in a queue.
    pub(crate) async fn find_waiting(
        &self,
        operation: &'static str,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<i64>, Undone> {
        let name = queue.as_str();
        let found = self.ask(operation, deadline, &self.database.sql.find_by_id, vec![&name, id.as_uuid()]).await?;
        Ok(found.iter().map(|row| row.get("id")).collect())
    }

    pub(crate) async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), Undone> {
        const DELIVER: &str = "deliver now";
        let (began, name) = (Instant::now(), queue.as_str());
        let rows = self.find_waiting(DELIVER, queue, id, deadline).await?;
        let statement = &self.database.sql.deliver_now;
        let change = || self.ask(DELIVER, deadline, statement, vec![&rows, &name, id.as_uuid()]);
        match persist(change).await?.first() {
            None => Err(MessagingError::MessageNotFound { queue: queue.clone(), id }.into()),
            Some(row) if row.get("is_leased") => Err(MessagingError::MessageLeased { queue: queue.clone(), id }.into()),
            Some(_) => {
                self.touch([queue], began);
                Ok(())
            }
        }
    }

    pub(crate) async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        let rows = self.find_waiting("dead-letter", queue, id, deadline).await?;
        self.lease_and_dead_letter(queue, id, &rows, reason, error).await
    }
}
