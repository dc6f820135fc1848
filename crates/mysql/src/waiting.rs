//! What a person does with one message that waits.

use mysql_async::Row;
use postrider_core::{DeadLetterReason, Deadline, MessageId, MessagingError, QueueName, ReceiveOptions};
use postrider_provider::{Undone, persist};

use crate::claim::{Claim, Doomed};
use crate::connection::Session;
use crate::literal::{self, fill};
use crate::rows;
use crate::store::Shared;

impl Shared {
    /// Locks the oldest row of a message in a transaction, if no worker has it. Otherwise the transaction is over.
    async fn lock_waiting(
        &self,
        session: &mut Session<'_>,
        queue: &QueueName,
        id: MessageId,
        found: &[Row],
    ) -> Result<Row, Undone> {
        let (name, message_id) = (literal::bytes(queue.as_str().as_bytes()), literal::id(id));
        let ids = literal::list(found.iter().map(|row| rows::number(row, 0)));
        let values = [("ids", ids.as_str()), ("queue", name.as_str()), ("message_id", message_id.as_str())];
        let locked = session.begin(fill(&session.sql().waiting, &values)).await?.concat();
        let error = match locked.into_iter().next() {
            Some(row) if !rows::flag(&row, 2) => return Ok(row),
            Some(_) => MessagingError::MessageLeased { queue: queue.clone(), id },
            None => MessagingError::MessageNotFound { queue: queue.clone(), id },
        };
        session.rollback().await?;
        Err(error.into())
    }

    /// The rows of a message in a queue.
    async fn find_waiting(
        &self,
        operation: &'static str,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<Row>, Undone> {
        let (name, message_id) = (literal::bytes(queue.as_str().as_bytes()), literal::id(id));
        let find = fill(&self.database.sql.find_by_id, &[("queue", &name), ("message_id", &message_id)]);
        self.ask(operation, deadline, find).await
    }

    pub(crate) async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), Undone> {
        const DELIVER: &str = "deliver now";
        let found = self.find_waiting(DELIVER, queue, id, deadline).await?;
        persist(|| async {
            let mut session = self.database.session(DELIVER, deadline).await?;
            let row = self.lock_waiting(&mut session, queue, id, &found).await?;
            let number = rows::number(&row, 0).to_string();
            session.commit(fill(&session.sql().deliver_now, &[("id", &number)])).await.map(drop)
        })
        .await?;
        self.turns.lift(queue);
        self.touch([queue]);
        Ok(())
    }

    pub(crate) async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        const BURY: &str = "dead-letter";
        let found = self.find_waiting(BURY, queue, id, deadline).await?;
        // Leased for that first, as what a claim buries is: if the burial fails, the lease runs out and the message waits
        // again.
        let claim = Claim::new(self, queue, 1, &ReceiveOptions::default());
        let doomed = persist(|| async {
            let mut session = self.database.session(BURY, deadline).await?;
            let row = self.lock_waiting(&mut session, queue, id, &found).await?;
            let lease = claim.lease_doomed(session.sql(), rows::number(&row, 0), rows::time(&row, 3));
            session.commit(lease).await?;
            Ok(Doomed::new(rows::number(&row, 0), rows::optional_text(&row, 1), reason.clone(), error.clone()))
        })
        .await?;
        self.bury(&claim, &[doomed]).await
    }
}
