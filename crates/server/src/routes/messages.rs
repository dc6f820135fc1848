//! Sending, and looking at what was sent.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{Deadline, Message, MessageId, MessagingError, MessagingService, PeekedMessage, QueueAdmin, QueueName};
use postrider_http::wire::message::{
    MessageAttempts, NewMessage, Peeked, PeekedMessages, SendBatchRequest, Sent, SentBatch, SentRow,
};

use super::{PRODUCE, READ};
use crate::api::schemas::{limit, list, named, only};
use crate::api::{ApiError, Content, JsonBody, MessagePath, Params, QueuePath, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::meter::Happened;
use crate::portions::{Room, readable};
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
            "Looks at messages without leasing them, in send order.",
            peek,
        )
        .parameter(
            "limit",
            limit(MOST_PEEKED),
            "At most so many, and fewer where messages are or may be large; 50 unless told otherwise",
        )
        .answers(200, "The messages", Content::Json(only("messages", list(named("PeekedMessage"))))),
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

async fn peek(State(app): State<Arc<App>>, QueuePath(queue): QueuePath, params: Params) -> Result<Response, ApiError> {
    let limit = params.limit(50, MOST_PEEKED)?;
    // One question: a peek begins at the head, so another would show the same again, and some brokers count each look as
    // a delivery.
    let most = limit.min(readable(app.most_bytes()));
    let mut messages = app.provider.peek(&queue, most, Deadline::default()).await?;
    Room::default().take(&mut messages, |message: &PeekedMessage| message.body.len() + message.headers.byte_len());
    let shown = |message| Peeked::new(QueueName::clone(&queue), message);
    answer(&PeekedMessages { messages: messages.into_iter().map(shown).collect() })
}

async fn attempts(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    let attempts = app.provider.message_attempts(&queue, id, Deadline::default()).await?;
    answer(&MessageAttempts { attempts: attempts.into_iter().map(Into::into).collect() })
}
