//! Receiving: leases for clients, with a long poll.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use postrider::{
    Deadline, MessagingError, MessagingService, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions, Timestamp,
};
use postrider_http::wire::Problem;
use postrider_http::wire::receive::{ReceiveRequest, Received, SettleAndReceiveRequest};
use postrider_http::wire::settle::Row;
use tokio::time::Instant;

use super::CONSUME;
use super::settle::{rows, split};
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Content, JsonBody, QueuePath, Route, Verb};
use crate::app::App;
use crate::edge::Peer;
use crate::leases::{self, Handover};
use crate::meter::Happened;

/// A client waits no longer with one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// So many messages are received with one request.
const MOST_RECEIVED: usize = 1000;

/// So many queues are looked at with one request.
const MOST_QUEUES: usize = 100;

const LONGEST_NAME: usize = 128;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Receiving";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/receive"),
            (GROUP, "receiveMessages"),
            CONSUME,
            "Leases messages that are due, and waits for the first one if asked to. With an id, that message or none.",
            receive,
        )
        .takes(named("Receive"))
        .answers(
            200,
            "The messages; none when there is nothing",
            Content::Json(only("messages", list(named("ReceivedMessage")))),
        ),
        Route::new(
            (Verb::Post, "/v1/receive"),
            (GROUP, "settleAndReceive"),
            CONSUME,
            "Ends leases, then leases what is next of one or several queues: a worker's whole round in one request.",
            settle_and_receive,
        )
        .takes(named("ReceiveSeveral"))
        .answers(
            200,
            "What became of the leases, and the new messages",
            Content::Json(named("SettledAndReceived")),
        ),
    ]
}

/// Whoever asks for messages.
#[derive(Debug)]
struct Asking<'a> {
    app: &'a Arc<App>,
    peer: &'a Peer,
    name: String,
}

impl<'a> Asking<'a> {
    fn new(app: &'a Arc<App>, caller: &Caller, peer: &'a Peer, name: Option<String>) -> Result<Self, ApiError> {
        let name = name.unwrap_or_else(|| caller.name.to_string());
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(ApiError::malformed(format!("worker: use 1 to {LONGEST_NAME} bytes of text in one line")));
        }
        Ok(Self { app, peer, name })
    }

    /// Receives, standing in line while there is nothing.
    async fn receive(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        id: Option<postrider::MessageId>,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let app = self.app;
        let waiting = app.workers.asks(&self.name, &self.peer.address, queues);
        let until = Instant::now() + options.wait;
        let messages = match id {
            Some(id) => {
                let options = ReceiveOptions { wait: Duration::ZERO, ..options.clone() };
                app.provider.receive_by_id(&queues[0], id, &options, Deadline::default()).await?.into_iter().collect()
            }
            None if options.wait.is_zero() => self.ask(queues, options).await?,
            None => {
                let place = tokio::select! {
                    place = tokio::time::timeout_at(until, app.lines.place(queues)) => place.ok().flatten(),
                    () = app.stop.cancelled() => None,
                };
                match place {
                    // Those at the head of the line have found nothing so far.
                    None => Vec::new(),
                    Some(_place) => {
                        let left = until.saturating_duration_since(Instant::now());
                        let options = ReceiveOptions { wait: left, ..options.clone() };
                        tokio::select! {
                            received = self.ask(queues, &options) => received?,
                            () = app.stop.cancelled() => Vec::new(),
                        }
                    }
                }
            }
        };
        let receipts: Vec<ReceiptHandle> = messages.iter().map(|message| message.receipt().clone()).collect();
        waiting.got(&receipts, options.visibility);
        Ok(messages)
    }

    async fn ask(&self, queues: &[QueueName], options: &ReceiveOptions) -> Result<Vec<QueuedMessage>, MessagingError> {
        let deadline = Deadline::after(options.wait.saturating_add(Deadline::DEFAULT));
        match queues {
            [queue] => self.app.provider.receive_messages(queue, options, deadline).await,
            _ => self.app.provider.settle_and_receive(Vec::new(), queues, options, deadline).await?.received,
        }
    }

    /// The messages as the client gets them, and the leases, which go back if it does not.
    fn hand_over(&self, messages: Vec<QueuedMessage>) -> Result<(Vec<Bytes>, Handover), ApiError> {
        let app = self.app;
        let (mut pieces, mut receipts) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        let now = Timestamp::now();
        let mut shown = Vec::with_capacity(messages.len());
        for message in messages {
            let (body, envelope, own) = message.into_parts();
            if envelope.receive_count == 1 {
                app.meter.waited(&envelope.queue, now.since(envelope.enqueued_at));
            }
            app.meter.count(&envelope.queue, Happened::Received, 1);
            let sealed = app.seal.seal(&own, envelope.attempts_count);
            receipts.push(own);
            shown.push(Received::new(body, envelope, sealed));
        }
        // From here on the leases go back whatever happens, until they are handed over.
        let handover = Handover::new(receipts, app.provider.clone());
        for received in &shown {
            let piece = serde_json::to_vec(received).map_err(|error| ApiError::malformed(error.to_string()))?;
            pieces.push(Bytes::from(piece));
        }
        Ok((pieces, handover))
    }
}

/// What is asked for, within what a server allows.
fn bounded(options: ReceiveOptions) -> Result<ReceiveOptions, ApiError> {
    if options.max > MOST_RECEIVED {
        return Err(ApiError::malformed(format!("max: at most {MOST_RECEIVED} messages are received at once")));
    }
    if options.wait > LONGEST_WAIT {
        return Err(ApiError::malformed(format!("wait: at most {} s with one request", LONGEST_WAIT.as_secs())));
    }
    Ok(options)
}

/// An answer whose leases are the client's once it is written.
fn leased(pieces: Vec<Bytes>, handover: Handover, peer: &Peer) -> Response {
    let mut response = Response::new(leases::body(pieces, handover, peer.unflushed.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The pieces with commas between them.
fn listed(pieces: Vec<Bytes>, all: &mut Vec<Bytes>) {
    for (at, piece) in pieces.into_iter().enumerate() {
        if at > 0 {
            all.push(Bytes::from_static(b","));
        }
        all.push(piece);
    }
}

async fn receive(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    QueuePath(queue): QueuePath,
    JsonBody(asked): JsonBody<ReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(asked.options(&defaults)?)?;
    let asking = Asking::new(&app, &caller, &peer, asked.worker)?;
    let messages = asking.receive(&[queue], &options, asked.id).await?;
    let (pieces, handover) = asking.hand_over(messages)?;
    let mut all = Vec::with_capacity(pieces.len() * 2 + 2);
    all.push(Bytes::from_static(b"{\"messages\":["));
    listed(pieces, &mut all);
    all.push(Bytes::from_static(b"]}"));
    Ok(leased(all, handover, &peer))
}

async fn settle_and_receive(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    JsonBody(mut asked): JsonBody<SettleAndReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(asked.options(&defaults)?)?;
    if asked.queues.is_empty() || asked.queues.len() > MOST_QUEUES {
        return Err(ApiError::malformed(format!("queues: name 1 to {MOST_QUEUES}")));
    }
    for queue in &asked.queues {
        caller.check_queue(queue)?;
    }
    let asking = Asking::new(&app, &caller, &peer, asked.worker.take())?;
    let (receipts, opened) = app.settlements(&caller, std::mem::take(&mut asked.settlements));
    let (fine, notes) = split(opened);
    let has_settlements = !fine.is_empty();
    let (settled, received) = match has_settlements {
        false => (Vec::new(), asking.receive(&asked.queues, &options, None).await),
        true => {
            // One round trip where the store can; then, if nothing was there, the wait.
            let at_once = ReceiveOptions { wait: Duration::ZERO, ..options.clone() };
            let deadline = Deadline::default();
            let both = app.provider.settle_and_receive(fine.clone(), &asked.queues, &at_once, deadline).await?;
            app.note_settled(&fine, &both.settled);
            let received = match both.received {
                Ok(messages) if messages.is_empty() && !options.wait.is_zero() => {
                    asking.receive(&asked.queues, &options, None).await
                }
                Ok(messages) => {
                    let receipts: Vec<_> = messages.iter().map(|message| message.receipt().clone()).collect();
                    app.workers.asks(&asking.name, &peer.address, &asked.queues).got(&receipts, options.visibility);
                    Ok(messages)
                }
                Err(error) => Err(error),
            };
            (both.settled, received)
        }
    };
    let settled: Vec<Row> = rows(receipts, notes, settled);
    // Nothing was settled, so nothing is lost by a plain refusal.
    let (messages, problem) = match received {
        Ok(messages) => (messages, None),
        Err(error) if settled.is_empty() => return Err(error.into()),
        Err(error) => (Vec::new(), Some(Problem::of(&error))),
    };
    let (pieces, handover) = asking.hand_over(messages)?;
    let written = |value: serde_json::Result<Vec<u8>>| {
        value.map(Bytes::from).map_err(|error| ApiError::malformed(error.to_string()))
    };
    let mut all = Vec::with_capacity(pieces.len() * 2 + 6);
    all.push(Bytes::from_static(b"{\"settled\":"));
    all.push(written(serde_json::to_vec(&settled))?);
    all.push(Bytes::from_static(b",\"receive_problem\":"));
    all.push(written(serde_json::to_vec(&problem))?);
    all.push(Bytes::from_static(b",\"messages\":["));
    listed(pieces, &mut all);
    all.push(Bytes::from_static(b"]}"));
    Ok(leased(all, handover, &peer))
}
