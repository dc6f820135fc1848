//! Sending, and looking at what was sent.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{
    Deadline, Feature, Message, MessageId, MessagingError, MessagingService, PeekCursor, PeekPage, PeekQuery,
    PeekedMessage, QueueAdmin, QueueName, WaitingFilter,
};
use postrider_wire::message::{
    MessageAttempts, NewMessage, Peeked, PeekedMessages, SendBatchRequest, Sent, SentBatch, SentRow, waiting_filter,
};

use super::{PRODUCE, READ, find_waiting};
use crate::access::Caller;
use crate::api::schemas::{limit, list, named, one_of, only, page, text, time};
use crate::api::{ApiError, Content, JsonBody, MessagePath, Params, QueuePath, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::in_flight::InFlight;
use crate::meter::Happened;
use crate::portions::Room;
use crate::repeat::RepeatKey;
use crate::traces::RequestTrace;

/// So many messages are sent with one request.
const MOST_SENT: usize = 10_000;

/// So many are looked at.
const MOST_PEEKED: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Messages";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages"),
            (GROUP, "sendMessage"),
            PRODUCE,
            "Sends a message. It is durable when its id is answered.",
            send,
        )
        .repeatable()
        .takes(named("NewMessage"))
        .answers(201, "It is kept", Content::Json(named("Sent"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/batch"),
            (GROUP, "sendMessages"),
            PRODUCE,
            "Sends messages, in their order. Each has an answer of its own.",
            send_batch,
        )
        .repeatable()
        .takes(crate::api::schemas::asks_only("messages", list(named("NewMessage"))))
        .answers(200, "What became of each", Content::Json(only("results", list(named("SentRow"))))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/messages"),
            (GROUP, "peekMessages"),
            READ,
            "Looks at messages without leasing them, in send order. A store without actions on waiting messages shows the \
             head of the queue alone, and takes 'limit' only.",
            peek,
        )
        .parameter("state", one_of(&["ready", "delayed", "in_flight"]), "Only messages in this state")
        .parameter("key", text(), "Only those with this ordering key")
        .parameter("header", text(), "Only those with this header, as name=value")
        .parameter("since", time(), "Only those that were accepted at this time or later")
        .parameter("before", time(), "Only those that were accepted before this time")
        .parameter(
            "limit",
            limit(MOST_PEEKED),
            "At most so many, and fewer where messages are or may be large; 50 unless told otherwise",
        )
        .parameter("after", text(), "The 'next' of the page before")
        .answers(
            200,
            "A page of messages; with large ones, or few that match, it is short and still not the last",
            Content::Json(page("messages", named("PeekedMessage"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/messages/{id}/attempts"),
            (GROUP, "listMessageAttempts"),
            READ,
            "The failed attempts at a message that are kept, oldest first; of living and of dead messages.",
            attempts,
        )
        .answers(200, "The attempts", Content::Json(only("attempts", list(named("MessageAttempt"))))),
    ]
}

/// Who a message is from, and what its id is made from.
#[derive(Debug)]
struct Sender<'a> {
    app: &'a App,
    trace: Option<&'a RequestTrace>,
    key: Option<&'a RepeatKey>,
}

impl Sender<'_> {
    /// The message of a row.
    fn message(&self, new: NewMessage, row: usize) -> Result<Message, MessagingError> {
        let has_id = new.id.is_some();
        let mut message = Message::try_from(new)?;
        if let Some(key) = self.key.filter(|_| !has_id) {
            message.id = MessageId::from_uuid(key.id(row));
        }
        if let Some(trace) = self.trace {
            trace.inject(&mut message.headers, self.app.traces.is_some())?;
        }
        Ok(message)
    }
}

async fn send(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    trace: Option<Extension<RequestTrace>>,
    key: Option<Extension<RepeatKey>>,
    JsonBody(new): JsonBody<NewMessage>,
) -> Result<Response, ApiError> {
    let sender = Sender { app: &app, trace: trace.as_deref(), key: key.as_deref() };
    let message = sender.message(new, 0)?;
    let id = app.provider.send_message(&queue, message, Deadline::default()).await?;
    app.meter.count(&queue, Happened::Sent, 1);
    answer_with(StatusCode::CREATED, &Sent { id, queue })
}

async fn send_batch(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    trace: Option<Extension<RequestTrace>>,
    key: Option<Extension<RepeatKey>>,
    JsonBody(SendBatchRequest { messages }): JsonBody<SendBatchRequest>,
) -> Result<Response, ApiError> {
    if messages.len() > MOST_SENT {
        return Err(ApiError::malformed(format!("at most {MOST_SENT} messages are sent at once; send the rest apart")));
    }
    let sender = Sender { app: &app, trace: trace.as_deref(), key: key.as_deref() };
    let mut rows: Vec<Option<Result<MessageId, MessagingError>>> = Vec::with_capacity(messages.len());
    let mut fine = Vec::with_capacity(messages.len());
    for (row, new) in messages.into_iter().enumerate() {
        if let Some(SentRow { id: Some(id), .. }) = sender.key.and_then(|key| key.done(row)) {
            rows.push(Some(Ok(id)));
            continue;
        }
        match sender.message(new, row) {
            Ok(message) => {
                fine.push(message);
                rows.push(None);
            }
            // What cannot be meant is refused alone.
            Err(error) => rows.push(Some(Err(error))),
        }
    }
    let sent = match fine.is_empty() {
        true => Vec::new(),
        false => app.provider.send_batch(&queue, fine, Deadline::default()).await?,
    };
    app.meter.count(&queue, Happened::Sent, sent.iter().filter(|row| row.is_ok()).count() as u64);
    let mut sent = sent.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None };
    let results = rows.into_iter().map(|row| row.or_else(|| sent.next()).unwrap_or_else(|| Err(lost())));
    answer(&SentBatch { results: results.map(SentRow::from).collect() })
}

pub(super) fn bytes(message: &PeekedMessage) -> usize {
    message.body.len() + message.headers.byte_len()
}

/// Looks at so many messages from the head of a queue, once there is room for them.
async fn look(app: &App, queue: &QueueName, rows: usize, in_flight: &InFlight) -> Result<Vec<PeekedMessage>, ApiError> {
    let expected = rows.saturating_mul(app.portions.size([queue.as_str()], app.most_bytes()));
    in_flight.grow(expected).await?;
    let messages = app.provider.peek(queue, rows, Deadline::default()).await?;
    in_flight.correct(expected, messages.iter().map(bytes).sum());
    app.portions.saw(messages.iter().map(|message| (queue.as_str(), bytes(message))));
    Ok(messages)
}

async fn peek(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    let limit = params.limit(50, MOST_PEEKED)?;
    let (filter, after) = (waiting_filter(|name| params.text(name))?, params.text("after")?);
    let is_paged = app.provider.capabilities().offers(Feature::WaitingMessages) && !queue.holds_dead_letters();
    if is_paged || after.is_some() || filter != WaitingFilter::default() {
        // A store may number the messages of all queues together.
        let listing = caller.queues.is_some().then(|| format!("messages of {queue}"));
        let after = match (&listing, after) {
            (Some(listing), Some(after)) => Some(app.seal.read_cursor(listing, after)?),
            (_, after) => after.map(str::to_owned),
        };
        let query = PeekQuery { limit, after: after.map(PeekCursor) };
        let PeekPage { messages, next } = find_waiting::find(&app, &queue, &filter, query, &in_flight).await?;
        let next = next.map(|PeekCursor(next)| match &listing {
            Some(listing) => app.seal.hide_cursor(listing, &next),
            None => next,
        });
        let shown = |message| Peeked::new(QueueName::clone(&queue), message);
        return answer(&PeekedMessages { messages: messages.into_iter().map(shown).collect(), next });
    }
    let rows = || app.portions.rows_to_look_at(queue.as_str(), limit, app.most_bytes());
    let first = rows();
    let mut messages = look(&app, &queue, first, &in_flight).await?;
    // A peek begins at the head, so another shows the same again, and more. Some brokers count each look as a delivery.
    let again = rows();
    if messages.len() == first && again > first && app.portions.is_free() {
        in_flight.correct(messages.iter().map(bytes).sum(), 0);
        drop(messages);
        messages = look(&app, &queue, again, &in_flight).await?;
    }
    Room::default().take(&mut messages, bytes);
    let shown = |message| Peeked::new(QueueName::clone(&queue), message);
    answer(&PeekedMessages { messages: messages.into_iter().map(shown).collect(), next: None })
}

async fn attempts(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    let attempts = app.provider.message_attempts(&queue, id, Deadline::default()).await?;
    answer(&MessageAttempts { attempts: attempts.into_iter().map(Into::into).collect() })
}
