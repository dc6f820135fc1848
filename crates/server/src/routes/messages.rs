//! Messages: send, peek, attempts.

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
use crate::idempotency::IdempotencyKey;
use crate::in_flight::InFlight;
use crate::metrics::MessageEvent;
use crate::row_sizes::AnswerSpace;
use crate::traces::RequestTrace;

/// Upper bound of the messages of one request.
const MAX_SENT: usize = 10_000;

/// Upper bound of the messages of one peek.
const MAX_PEEKED: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Messages";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages"),
            (GROUP, "sendMessage"),
            PRODUCE,
            "Sends a message. The answer means that it is durable.",
            send,
        )
        .repeatable()
        .takes(named("NewMessage"))
        .answers(201, "The message is durable", Content::Json(named("Sent"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/batch"),
            (GROUP, "sendMessages"),
            PRODUCE,
            "Sends messages, in their order. Each has its own result.",
            send_batch,
        )
        .repeatable()
        .takes(crate::api::schemas::request_only("messages", list(named("NewMessage"))))
        .answers(200, "The result of each", Content::Json(only("results", list(named("SentRow"))))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/messages"),
            (GROUP, "peekMessages"),
            READ,
            "Peeks at messages in send order, without leasing them. A store without actions on waiting messages shows only \
             the head of the queue, and accepts only 'limit'.",
            peek,
        )
        .parameter("state", one_of(&["ready", "delayed", "in_flight"]), "Only messages in this state")
        .parameter("key", text(), "Only those with this ordering key")
        .parameter("header", text(), "Only those with this header, as name=value")
        .parameter("since", time(), "Only those that were accepted at this time or later")
        .parameter("before", time(), "Only those that were accepted before this time")
        .parameter(
            "limit",
            limit(MAX_PEEKED),
            "Rows of the page, fewer if messages are or may be large; default 50",
        )
        .parameter("after", text(), "'next' of the previous page")
        .answers(
            200,
            "A page of messages; if they are large or few match, it can be short and not the last",
            Content::Json(page("messages", named("PeekedMessage"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/messages/{id}/attempts"),
            (GROUP, "listMessageAttempts"),
            READ,
            "The recorded failed attempts of a message, oldest first; also of dead letters.",
            attempts,
        )
        .answers(200, "The attempts", Content::Json(only("attempts", list(named("MessageAttempt"))))),
    ]
}

/// What a request adds to its messages: trace context and derived ids.
#[derive(Debug)]
struct Sender<'a> {
    app: &'a App,
    trace: Option<&'a RequestTrace>,
    key: Option<&'a IdempotencyKey>,
}

impl Sender<'_> {
    /// Returns the message of a row.
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
    key: Option<Extension<IdempotencyKey>>,
    JsonBody(new): JsonBody<NewMessage>,
) -> Result<Response, ApiError> {
    let sender = Sender { app: &app, trace: trace.as_deref(), key: key.as_deref() };
    let message = sender.message(new, 0)?;
    let id = app.provider.send_message(&queue, message, Deadline::default()).await?;
    app.metrics.count(&queue, MessageEvent::Sent, 1);
    answer_with(StatusCode::CREATED, &Sent { id, queue })
}

async fn send_batch(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    trace: Option<Extension<RequestTrace>>,
    key: Option<Extension<IdempotencyKey>>,
    JsonBody(SendBatchRequest { messages }): JsonBody<SendBatchRequest>,
) -> Result<Response, ApiError> {
    if messages.len() > MAX_SENT {
        return Err(ApiError::malformed(format!("too many messages; send at most {MAX_SENT} with one request")));
    }
    let sender = Sender { app: &app, trace: trace.as_deref(), key: key.as_deref() };
    let mut rows: Vec<Option<Result<MessageId, MessagingError>>> = Vec::with_capacity(messages.len());
    let mut valid = Vec::with_capacity(messages.len());
    for (row, new) in messages.into_iter().enumerate() {
        if let Some(SentRow { id: Some(id), .. }) = sender.key.and_then(|key| key.done(row)) {
            rows.push(Some(Ok(id)));
            continue;
        }
        match sender.message(new, row) {
            Ok(message) => {
                valid.push(message);
                rows.push(None);
            }
            // An invalid row fails alone.
            Err(error) => rows.push(Some(Err(error))),
        }
    }
    let sent = match valid.is_empty() {
        true => Vec::new(),
        false => app.provider.send_batch(&queue, valid, Deadline::default()).await?,
    };
    app.metrics.count(&queue, MessageEvent::Sent, sent.iter().filter(|row| row.is_ok()).count() as u64);
    let mut sent = sent.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None };
    let results = rows.into_iter().map(|row| row.or_else(|| sent.next()).unwrap_or_else(|| Err(lost())));
    answer(&SentBatch { results: results.map(SentRow::from).collect() })
}

pub(super) fn bytes(message: &PeekedMessage) -> usize {
    message.body.len() + message.headers.byte_len()
}

/// Peeks at the head of a queue, within the byte budget.
async fn peek_rows(
    app: &App,
    queue: &QueueName,
    rows: usize,
    in_flight: &InFlight,
) -> Result<Vec<PeekedMessage>, ApiError> {
    let expected = rows.saturating_mul(app.message_sizes.size([queue.as_str()], app.most_bytes()));
    in_flight.grow(expected).await?;
    let messages = app.provider.peek(queue, rows, Deadline::default()).await?;
    in_flight.correct(expected, messages.iter().map(bytes).sum());
    app.message_sizes.record(messages.iter().map(|message| (queue.as_str(), bytes(message))));
    Ok(messages)
}

async fn peek(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    let limit = params.limit(50, MAX_PEEKED)?;
    let (filter, after) = (waiting_filter(|name| params.text(name))?, params.text("after")?);
    let is_paged = app.provider.capabilities().offers(Feature::WaitingMessages) && !queue.holds_dead_letters();
    if is_paged || after.is_some() || filter != WaitingFilter::default() {
        // A store's cursor may count the messages of all queues.
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
    let rows = || app.message_sizes.rows_to_read(queue.as_str(), limit, app.most_bytes());
    let first = rows();
    let mut messages = peek_rows(&app, &queue, first, &in_flight).await?;
    // Now that sizes are known, a second peek may return more. Not where a broker counts each peek as a delivery.
    let again = rows();
    if messages.len() == first && again > first && app.message_sizes.releases_free() {
        in_flight.correct(messages.iter().map(bytes).sum(), 0);
        drop(messages);
        messages = peek_rows(&app, &queue, again, &in_flight).await?;
    }
    AnswerSpace::default().take(&mut messages, bytes);
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
