//! Actions of an operator on one message that is not leased.

use mysql_async::Row;
use postrider_core::{DeadLetterReason, Deadline, MessageId, MessagingError, QueueName, ReceiveOptions};
use postrider_provider::{Undone, persist};

use crate::claim::{Claim, DeadOnClaim};
use crate::connection::Session;
use crate::literal::{self, fill};
use crate::rows;
use crate::store::Shared;

impl Shared {
    /// Locks the oldest row of a message in a new transaction. If it is leased or missing, the transaction is rolled
    /// back.
    async fn lock_waiting(
        &self,
        session: &mut Session<'_>,
        queue: &QueueName,
        id: MessageId,
        found: &[Row],
    ) -> Result<Row, Undone> {
        let (name, message_id) = (literal::bytes(queue.as_str().as_bytes()), literal::id(id));
        let ids = literal::list(found.iter().map(|row| rows::number(row, "id")));
        let values = [("ids", ids.as_str()), ("queue", name.as_str()), ("message_id", message_id.as_str())];
        let locked = session.begin(fill(&session.sql().waiting, &values)).await?.concat();
        let error = match locked.into_iter().next() {
            Some(row) if !rows::flag(&row, "is_leased") => return Ok(row),
            Some(_) => MessagingError::MessageLeased { queue: queue.clone(), id },
            None => MessagingError::MessageNotFound { queue: queue.clone(), id },
        };
        session.rollback().await?;
        Err(error.into())
    }

    /// Returns the rows of a message in a queue.
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
            let number = rows::number(&row, "id").to_string();
            session.commit(fill(&session.sql().deliver_now, &[("id", &number)])).await.map(drop)
        })
        .await?;
        self.histories.lift(queue);
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
        const DEAD_LETTER: &str = "dead-letter";
        let found = self.find_waiting(DEAD_LETTER, queue, id, deadline).await?;
        // Leased first, as in a claim: if the move fails, the lease expires and the message becomes due again.
        let claim = Claim::new(self, queue, 1, &ReceiveOptions::default());
        let dead = persist(|| async {
            let mut session = self.database.session(DEAD_LETTER, deadline).await?;
            let row = self.lock_waiting(&mut session, queue, id, &found).await?;
            let lease = claim.lease_dead(session.sql(), rows::number(&row, "id"), rows::time(&row, "server_time"));
            session.commit(lease).await?;
            let key = rows::optional_text(&row, "ordering_key");
            Ok(DeadOnClaim::new(rows::number(&row, "id"), key, reason.clone(), error.clone()))
        })
        .await?;
        self.dead_letter_claimed(&claim, &[dead]).await
    }
}
