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
use crate::transport::{Ask, MOST_ROWS};
use crate::url;

/// So many dead letters are read by their ids at the same time.
const AT_ONCE: usize = 8;

impl HttpProvider {
    /// Reads those of these dead letters that are there, and cuts the page out of them. The server lists by reason or all;
    /// whoever names ids has few.
    async fn list_by_id(
        &self,
        queue: &QueueName,
        ids: &[MessageId],
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        let after = query.after.as_ref().map(read_place).transpose()?;
        let read = |id: MessageId| async move {
            match self.get_dead_letter(queue, id, deadline).await {
                Ok(letter) => Ok(Some(letter)),
                Err(MessagingError::MessageNotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found: Vec<Option<DeadLetter>> =
            stream::iter(ids.to_vec()).map(read).buffered(AT_ONCE).try_collect().await?;
        let mut letters: Vec<DeadLetter> = found.into_iter().flatten().collect();
        letters.sort_by_key(place);
        letters.dedup_by_key(|letter| letter.id);
        letters.retain(|letter| after.is_none_or(|after| place(letter) > after));
        let is_last = letters.len() <= query.limit;
        letters.truncate(query.limit);
        let next = letters.last().filter(|_| !is_last).map(|last| write_place(place(last)));
        Ok(DeadLetterPage { letters, next })
    }
}

/// Where a dead letter stands in a list by ids: by its death, then by its id.
fn place(letter: &DeadLetter) -> (Timestamp, MessageId) {
    (letter.dead_at, letter.id)
}

fn write_place((dead_at, id): (Timestamp, MessageId)) -> DeadLetterCursor {
    DeadLetterCursor(format!("{}.{id}", dead_at.as_micros()))
}

fn read_place(DeadLetterCursor(text): &DeadLetterCursor) -> Result<(Timestamp, MessageId), MessagingError> {
    let place = text
        .split_once('.')
        .and_then(|(micros, id)| Some((Timestamp::from_micros(micros.parse().ok()?), id.parse().ok()?)));
    place.ok_or_else(|| MessagingError::invalid("cursor", "it is of another list; begin again without one"))
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
        // A shorter page than was asked for has a cursor to the rest.
        let limit = query.limit.min(MOST_ROWS).to_string();
        let mut pairs = vec![("limit", limit.as_str())];
        match &query.selection {
            DeadLetterSelection::Ids(ids) => return self.list_by_id(queue, ids, query, deadline).await,
            DeadLetterSelection::Reason(reason) => pairs.push(("reason", reason.as_str())),
            DeadLetterSelection::All => {}
        }
        if let Some(DeadLetterCursor(after)) = &query.after {
            pairs.push(("after", after));
        }
        let ask = Ask::get(path(queue, &format!("/dead-letters?{}", url::query(pairs))));
        let page: DeadPage = self.look(LIST, ask, deadline).await?;
        page.try_into().map_err(self.garbled(LIST))
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const GET: &str = "get dead letter";
        let dead: Dead = self.look(GET, Ask::get(path(queue, &format!("/dead-letters/{id}"))), deadline).await?;
        dead.try_into().map_err(self.garbled(GET))
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const EDIT: &str = "edit dead letter";
        let at = path(queue, &format!("/dead-letters/{id}"));
        let ask = Ask::json(Method::PATCH, at, &EditRequest::from(edit))?;
        let dead: Dead = self.change(EDIT, vec![id], ask, deadline).await?;
        dead.try_into().map_err(self.garbled(EDIT))
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let ask = Ask::post(path(queue, "/dead-letters/redrive"), &RedriveRequest::from(redrive))?;
        let redriven: Redriven = self.change("redrive", named(&redrive.selection), ask, deadline).await?;
        Ok(redriven.into())
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let ask = Ask::post(path(queue, "/dead-letters/purge"), &PurgeRequest::from(selection))?;
        let Purged { purged } = self.change("purge dead letters", named(selection), ask, deadline).await?;
        Ok(purged)
    }
}

/// The messages that a selection names.
fn named(selection: &DeadLetterSelection) -> Vec<MessageId> {
    match selection {
        DeadLetterSelection::Ids(ids) => ids.clone(),
        DeadLetterSelection::All | DeadLetterSelection::Reason(_) => Vec::new(),
    }
}
