//! Archived messages: search, and send again.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{
    ArchiveCursor, ArchivePage, ArchiveQuery, ArchivedMessage, Deadline, MessageId, MessagingService, QueueAdmin,
    QueueName, archive,
};
use postrider_wire::archive::{Archived, ArchivedMessages, filter};
use postrider_wire::message::Sent;

use super::{PRODUCE, READ};
use crate::access::Caller;
use crate::api::schemas::{limit, named, one_of, page, text, time, uuid};
use crate::api::{ApiError, Content, MessagePath, Params, QueuePath, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::idempotency::IdempotencyKey;
use crate::in_flight::InFlight;
use crate::metrics::MessageEvent;
use crate::row_sizes::{AnswerSpace, READ_AND_ENCODED};

/// Upper bound of the rows of a page.
const MAX_LISTED: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Archive";
    vec![
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/archive"),
            (GROUP, "searchArchive"),
            READ,
            "The archived messages of a queue, newest end first. A search by header, key or state reads a bounded part of \
             the archive for each page.",
            list,
        )
        .parameter("id", uuid(), "Only the messages with this id")
        .parameter("key", text(), "Only those with this ordering key")
        .parameter("header", text(), "Only those with this header, as name=value")
        .parameter("since", time(), "Only those that ended at this time or later")
        .parameter("until", time(), "Only those that ended before this time")
        .parameter("state", one_of(&["COMPLETED", "FAILED"]), "Only acknowledged ones, or only purged dead letters")
        .parameter("limit", limit(MAX_LISTED), "Rows of the page; default 100")
        .parameter("after", text(), "'next' of the previous page")
        .answers(
            200,
            "A page; it can be short or empty and still have a 'next'",
            Content::Json(page("messages", named("ArchivedMessage"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/archive/{id}"),
            (GROUP, "getArchivedMessage"),
            READ,
            "One archived message; of several with the id, the one that ended last.",
            get,
        )
        .answers(200, "The message", Content::Json(named("ArchivedMessage"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/archive/{id}/send-again"),
            (GROUP, "sendArchivedMessageAgain"),
            PRODUCE,
            "Sends an archived message to its queue again, as a new message with the same body, content type, headers, \
             ordering key and priority; its header 'sent-again-from' is the id of the archived one.",
            send_again,
        )
        .repeatable()
        .answers(201, "The new message is durable", Content::Json(named("Sent"))),
    ]
}

async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    // A store's cursor may count the messages of all queues.
    let listing = name(&queue);
    let after = app.seal.store_cursor(&caller, &listing, params.text("after")?)?;
    let query = ArchiveQuery {
        filter: filter(|name| params.text(name))?,
        limit: params.limit(100, MAX_LISTED)?,
        after: after.map(ArchiveCursor),
    };
    let mut page = page_of(&app, &queue, query, &in_flight).await?;
    page.next = page.next.map(|ArchiveCursor(next)| ArchiveCursor(app.seal.visible_cursor(&caller, &listing, next)));
    answer(&ArchivedMessages::from(page))
}

/// Name under which the sizes of a queue's archived messages are remembered.
fn name(queue: &QueueName) -> String {
    format!("archive of {}", queue.origin())
}

fn bytes(message: &ArchivedMessage) -> usize {
    message.body.len() + message.headers.byte_len()
}

/// Returns the requested number of messages, or as many as fit into an answer.
async fn page_of(
    app: &App,
    queue: &QueueName,
    wanted: ArchiveQuery,
    in_flight: &InFlight,
) -> Result<ArchivePage, ApiError> {
    let name = name(queue);
    let read_page = async |limit: usize, after: Option<ArchiveCursor>| {
        let expected = limit.saturating_mul(app.message_sizes.size([name.as_str()], app.most_bytes()));
        in_flight.grow(expected).await?;
        let query = ArchiveQuery { limit, after, ..wanted.clone() };
        let page = app.provider.archived(queue, &query, Deadline::default()).await?;
        in_flight.correct(expected, page.messages.iter().map(bytes).sum());
        app.message_sizes.record(page.messages.iter().map(|message| (name.as_str(), bytes(message))));
        Ok::<_, ApiError>(page)
    };
    let (mut messages, mut space, mut after) = (Vec::new(), AnswerSpace::default(), wanted.after.clone());
    loop {
        let chunk = app.message_sizes.rows_to_read(&name, wanted.limit - messages.len(), app.most_bytes());
        let mut page = read_page(chunk, after.clone()).await?;
        let is_short = page.messages.len() < chunk;
        if !space.take(&mut page.messages, bytes).is_empty() {
            // A cursor points to the end of a page, so the page is read again up to the end of the answer.
            match page.messages.len() {
                0 => return Ok(ArchivePage { messages, next: after }),
                fits => page = read_page(fits, after).await?,
            }
            messages.append(&mut page.messages);
            return Ok(ArchivePage { messages, next: page.next });
        }
        messages.append(&mut page.messages);
        // A short page has used up the bound of one search.
        if page.next.is_none() || is_short || messages.len() >= wanted.limit || space.is_full() {
            return Ok(ArchivePage { messages, next: page.next });
        }
        after = page.next;
    }
}

/// Reads one archived message, within the byte budget.
async fn read_one(
    app: &App,
    queue: &QueueName,
    id: MessageId,
    in_flight: &InFlight,
) -> Result<ArchivedMessage, ApiError> {
    let name = name(queue);
    // Reserved until the actual answer is counted.
    let expected = app.message_sizes.size([name.as_str()], app.most_bytes());
    in_flight.grow(expected.saturating_mul(READ_AND_ENCODED)).await?;
    let found = archive::find(&*app.provider, queue, id, Deadline::default()).await?;
    in_flight.correct(expected, expected.max(bytes(&found)));
    app.message_sizes.record([(name.as_str(), bytes(&found))]);
    Ok(found)
}

async fn get(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    in_flight: InFlight,
) -> Result<Response, ApiError> {
    answer(&Archived::from(read_one(&app, &queue, id, &in_flight).await?))
}

async fn send_again(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    key: Option<Extension<IdempotencyKey>>,
    in_flight: InFlight,
) -> Result<Response, ApiError> {
    let mut message = read_one(&app, &queue, id, &in_flight).await?.again()?;
    if let Some(Extension(key)) = key {
        message.id = MessageId::from_uuid(key.id(0));
    }
    let queue = queue.origin();
    let id = app.provider.send_message(&queue, message, Deadline::default()).await?;
    app.metrics.count(&queue, MessageEvent::Sent, 1);
    answer_with(StatusCode::CREATED, &Sent { id, queue })
}
