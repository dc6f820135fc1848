//! A queue's dead letters.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::Method;
use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters,
    Deadline, MessageId, MessagingError, QueueName, Redrive, RedriveReport, Timestamp, async_trait,
};
use postrider_wire::dead_letter::{Dead, DeadPage, EditRequest, PurgeRequest, RedriveRequest, Redriven};
use postrider_wire::queue::Purged;

use crate::admin::path;
use crate::provider::HttpProvider;
use crate::transport::{MAX_ROWS, Request};
use crate::url;

/// Number of dead letters read by id concurrently.
const CONCURRENCY: usize = 8;

impl HttpProvider {
    /// Lists dead letters by id. The API cannot, so this reads each of them and makes the page here.
    async fn list_by_id(
        &self,
        queue: &QueueName,
        ids: &[MessageId],
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        let after = query.after.as_ref().map(read_cursor).transpose()?;
        let read = |id: MessageId| async move {
            match self.get_dead_letter(queue, id, deadline).await {
                Ok(letter) => Ok(Some(letter)),
                Err(MessagingError::MessageNotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found: Vec<Option<DeadLetter>> =
            stream::iter(ids.to_vec()).map(read).buffered(CONCURRENCY).try_collect().await?;
        let mut letters: Vec<DeadLetter> = found.into_iter().flatten().collect();
        letters.sort_by_key(sort_key);
        letters.dedup_by_key(|letter| letter.id);
        letters.retain(|letter| after.is_none_or(|after| sort_key(letter) > after));
        let is_last = letters.len() <= query.limit;
        letters.truncate(query.limit);
        let next = letters.last().filter(|_| !is_last).map(|last| write_cursor(sort_key(last)));
        Ok(DeadLetterPage { letters, next })
    }
}

/// Sort key of a list by ids.
fn sort_key(letter: &DeadLetter) -> (Timestamp, MessageId) {
    (letter.dead_at, letter.id)
}

fn write_cursor((dead_at, id): (Timestamp, MessageId)) -> DeadLetterCursor {
    DeadLetterCursor(format!("{}.{id}", dead_at.as_micros()))
}

fn read_cursor(DeadLetterCursor(text): &DeadLetterCursor) -> Result<(Timestamp, MessageId), MessagingError> {
    let key = text
        .split_once('.')
        .and_then(|(micros, id)| Some((Timestamp::from_micros(micros.parse().ok()?), id.parse().ok()?)));
    key.ok_or_else(|| MessagingError::invalid_cursor(text))
}

#[async_trait]
impl DeadLetters for HttpProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        const LIST: &str = "list dead letters";
        self.begin(LIST, deadline)?;
        query.check()?;
        // A page that is shorter than requested has a cursor to the rest.
        let limit = query.limit.min(MAX_ROWS).to_string();
        let mut pairs = vec![("limit", limit.as_str())];
        match &query.selection {
            DeadLetterSelection::Ids(ids) => return self.list_by_id(queue, ids, query, deadline).await,
            DeadLetterSelection::Reason(reason) => pairs.push(("reason", reason.as_str())),
            DeadLetterSelection::All => {}
        }
        if let Some(DeadLetterCursor(after)) = &query.after {
            pairs.push(("after", after));
        }
        let request = Request::get(path(queue, &format!("/dead-letters?{}", url::query(pairs))));
        let page: DeadPage = self.call(LIST, request, deadline).await?;
        page.try_into().map_err(self.malformed_answer(LIST))
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const GET: &str = "get dead letter";
        let dead: Dead = self.call(GET, Request::get(path(queue, &format!("/dead-letters/{id}"))), deadline).await?;
        dead.try_into().map_err(self.malformed_answer(GET))
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const EDIT: &str = "edit dead letter";
        let path = path(queue, &format!("/dead-letters/{id}"));
        let request = Request::json(Method::PATCH, path, &EditRequest::from(edit))?;
        let dead: Dead = self.call_once(EDIT, vec![id], request, deadline).await?;
        dead.try_into().map_err(self.malformed_answer(EDIT))
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let request = Request::post(path(queue, "/dead-letters/redrive"), &RedriveRequest::from(redrive))?;
        let redriven: Redriven = self.call_once("redrive", selected_ids(&redrive.selection), request, deadline).await?;
        Ok(redriven.into())
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let request = Request::post(path(queue, "/dead-letters/purge"), &PurgeRequest::from(selection))?;
        let Purged { purged, .. } =
            self.call_once("purge dead letters", selected_ids(selection), request, deadline).await?;
        Ok(purged)
    }
}

/// The ids of a selection.
fn selected_ids(selection: &DeadLetterSelection) -> Vec<MessageId> {
    match selection {
        DeadLetterSelection::Ids(ids) => ids.clone(),
        DeadLetterSelection::All | DeadLetterSelection::Reason(_) => Vec::new(),
    }
}
