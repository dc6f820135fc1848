//! Queue administration over HTTP.

use http::Method;
use postrider_core::{
    ArchivePage, ArchiveQuery, DeadLetterReason, DeadLetterSelection, DeadLetters, Deadline, Feature, MessageAttempt,
    MessageId, MessagingError, PeekCursor, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueHealthReport,
    QueueName, QueueStats, async_trait, waiting,
};
use postrider_wire::archive::{ArchivedMessages, parameters};
use postrider_wire::message::{DeathRequest, MessageAttempts, PeekedMessages, Sent};
use postrider_wire::queue::{Paused, Purged, QueueNames, Stats, Verified, VerifyRequest};
use serde::de::IgnoredAny;

use crate::failure::AnswerError;
use crate::provider::HttpProvider;
use crate::transport::{MAX_ROWS, Request};
use crate::url;

/// The path of a queue, followed by `rest`.
pub(crate) fn path(queue: &QueueName, rest: &str) -> String {
    format!("/v1/queues/{queue}{rest}")
}

impl HttpProvider {
    /// The error for an answer with an invalid value.
    pub(crate) fn malformed_answer(
        &self,
        operation: &'static str,
    ) -> impl Fn(MessagingError) -> MessagingError + Send + use<> {
        let server = self.transport().server().to_string();
        move |error| AnswerError::Malformed { server: server.clone(), cause: error.to_string() }.into_error(operation)
    }
}

impl HttpProvider {
    /// Changes one waiting message.
    async fn change_waiting(
        &self,
        operation: &'static str,
        id: MessageId,
        request: Request,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin(operation, deadline)?;
        self.table().require(Feature::WaitingMessages)?;
        let IgnoredAny = self.call_once(operation, vec![id], request, deadline).await?;
        Ok(())
    }
}

#[async_trait]
impl QueueAdmin for HttpProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let QueueNames { queues } = self.call("list queues", Request::get("/v1/queue-names"), deadline).await?;
        Ok(queues)
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let stats: Stats = self.call("stats", Request::get(path(queue, "")), deadline).await?;
        Ok(stats.into())
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        const VERIFY: &str = "verify queues";
        self.begin(VERIFY, deadline)?;
        let mut report = QueueHealthReport::default();
        for queues in queues.chunks(MAX_ROWS) {
            let request = Request::post("/v1/queues/verify", &VerifyRequest { queues: queues.to_vec() })?;
            let verified: Verified = self.call(VERIFY, request, deadline).await?;
            let part = QueueHealthReport::from(verified);
            report.healthy.extend(part.healthy);
            report.missing.extend(part.missing);
            report.errors.extend(part.errors);
        }
        Ok(report)
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.begin("peek", deadline)?;
        self.table().require(Feature::Peek)?;
        let limit = limit.min(MAX_ROWS);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let request = Request::get(path(queue, &format!("/messages?limit={limit}")));
        let PeekedMessages { messages, next: _ } = self.call("peek", request, deadline).await?;
        messages
            .into_iter()
            .map(PeekedMessage::try_from)
            .collect::<Result<_, _>>()
            .map_err(self.malformed_answer("peek"))
    }

    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError> {
        const PEEK: &str = "peek";
        self.begin(PEEK, deadline)?;
        self.table().require(Feature::WaitingMessages)?;
        waiting::check_queue(queue)?;
        query.check()?;
        // A page that is shorter than requested has a cursor to the rest.
        let limit = query.limit.min(MAX_ROWS).to_string();
        let after = query.after.as_ref().map(|PeekCursor(cursor)| ("after", cursor.as_str()));
        let pairs = [("limit", limit.as_str())].into_iter().chain(after);
        let request = Request::get(path(queue, &format!("/messages?{}", url::query(pairs))));
        let PeekedMessages { messages, next } = self.call(PEEK, request, deadline).await?;
        let messages = messages.into_iter().map(PeekedMessage::try_from).collect::<Result<_, _>>();
        Ok(PeekPage { messages: messages.map_err(self.malformed_answer(PEEK))?, next: next.map(PeekCursor) })
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("attempts", deadline)?;
        self.table().require(Feature::AttemptHistory)?;
        let request = Request::get(path(queue, &format!("/messages/{id}/attempts")));
        let MessageAttempts { attempts } = self.call("attempts", request, deadline).await?;
        Ok(attempts.into_iter().map(MessageAttempt::from).collect())
    }

    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError> {
        const SEARCH: &str = "search the archive";
        self.begin(SEARCH, deadline)?;
        self.table().require(Feature::Archive)?;
        query.check()?;
        // A page that is shorter than requested has a cursor to the rest.
        let query = ArchiveQuery { limit: query.limit.min(MAX_ROWS), ..query.clone() };
        let parameters = parameters(&query);
        let pairs = parameters.iter().map(|(name, value)| (*name, value.as_str()));
        let request = Request::get(path(queue, &format!("/archive?{}", url::query(pairs))));
        let page: ArchivedMessages = self.call(SEARCH, request, deadline).await?;
        page.try_into().map_err(self.malformed_answer(SEARCH))
    }

    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        const SEND: &str = "send again";
        self.begin(SEND, deadline)?;
        self.table().require(Feature::Archive)?;
        let request = Request::bare(Method::POST, path(queue, &format!("/archive/{id}/send-again")));
        let Sent { id, .. } = self.call_once(SEND, vec![id], request, deadline).await?;
        Ok(id)
    }

    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        let request = Request::bare(Method::POST, path(queue, &format!("/messages/{id}/deliver-now")));
        self.change_waiting("deliver now", id, request, deadline).await
    }

    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        let death = DeathRequest { reason: reason.as_str().to_owned(), error };
        let request = Request::post(path(queue, &format!("/messages/{id}/dead-letter")), &death)?;
        self.change_waiting("dead-letter", id, request, deadline).await
    }

    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError> {
        let request = Request::bare(Method::DELETE, path(queue, &format!("/messages/{id}")));
        self.change_waiting("delete", id, request, deadline).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        if queue.holds_dead_letters() {
            return self.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await;
        }
        let request = Request::bare(Method::POST, path(queue, "/purge"));
        let Purged { purged, .. } = self.call_once("purge", Vec::new(), request, deadline).await?;
        Ok(purged)
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("pause", deadline)?;
        self.table().require(Feature::Pause)?;
        let Paused { .. } = self.call("pause", Request::bare(Method::POST, path(queue, "/pause")), deadline).await?;
        Ok(())
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("resume", deadline)?;
        self.table().require(Feature::Pause)?;
        let Paused { .. } = self.call("resume", Request::bare(Method::POST, path(queue, "/resume")), deadline).await?;
        Ok(())
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        // Not repeated: it could delete a queue that was created under this name in between.
        let request = Request::bare(Method::DELETE, path(queue, ""));
        let IgnoredAny = self.call_once("delete queue", Vec::new(), request, deadline).await?;
        Ok(())
    }
}
