//! Receiving: leases for clients, with a long poll.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use postrider::{Deadline, MessagingError, MessagingService, QueueName, QueuedMessage, ReceiptHandle, ReceiveOptions};
use postrider_wire::receive::{ReceiveRequest, Received, SettleAndReceiveRequest};
use postrider_wire::settle::Row;
use postrider_wire::worker::WorkerKind;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::CONSUME;
use super::settle::{MOST_SETTLED, rows, split};
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Code, Content, JsonBody, QueuePath, Route, Verb};
use crate::app::App;
use crate::edge::Peer;
use crate::in_flight::InFlight;
use crate::leases::{self, Handover, Leased, to_its_end};
use crate::portions::Room;
use crate::workers::{Asks, Waiting, check_name};

/// A client that has left is noticed after so long.
const SLICE: Duration = Duration::from_secs(1);

/// So many messages are received with one request.
const MOST_RECEIVED: usize = 1000;

/// So many queues are looked at with one request.
const MOST_QUEUES: usize = 100;

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
    /// Whose token it is, or from where.
    caller: Arc<str>,
    name: String,
    in_flight: InFlight,
}

impl<'a> Asking<'a> {
    fn new(
        app: &'a Arc<App>,
        caller: &Caller,
        peer: &'a Peer,
        name: Option<String>,
        in_flight: InFlight,
    ) -> Result<Self, ApiError> {
        let name = name.unwrap_or_else(|| caller.name.to_string());
        check_name(&name)?;
        Ok(Self { app, peer, caller: caller.key.clone(), name, in_flight })
    }

    fn waiting(&self, queues: &[QueueName]) -> Waiting<'a> {
        let (caller, address) = (&self.caller, &self.peer.address);
        self.app.workers.asks(Asks { kind: WorkerKind::Http, caller, name: &self.name, address }, queues)
    }

    /// Receives, standing in line while there is nothing.
    async fn receive(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        id: Option<postrider::MessageId>,
    ) -> Result<Leased, ApiError> {
        let app = self.app;
        // Room is kept for what is looked for at once. A wait keeps none: it brings little at first.
        let portion = match options.wait.is_zero() {
            true => app.portion(queues, options.max, &Room::default()),
            false => app.portion_to_wait_for(queues, options.max),
        };
        let expected = match (id, options.wait.is_zero()) {
            (Some(_), _) => app.expected(queues, 1),
            (None, true) => app.expected(queues, portion),
            (None, false) => 0,
        };
        self.in_flight.grow(expected).await?;
        let waiting = self.waiting(queues);
        let until = Instant::now() + options.wait;
        let place = match id.is_some() || options.wait.is_zero() {
            true => None,
            false => {
                let place = tokio::select! {
                    place = tokio::time::timeout_at(until, app.lines.place(queues)) => place.ok().flatten(),
                    () = app.stop.cancelled() => None,
                };
                // Those at the head of the line have found nothing so far.
                let Some(place) = place else { return Ok(Leased::new(Vec::new(), app)) };
                Some(place)
            }
        };
        // Cancelled when the client leaves.
        let left = CancellationToken::new();
        let _leaving = left.clone().drop_guard();
        let (own, queues, asked, in_flight) = (app.clone(), queues.to_vec(), options.clone(), self.in_flight.clone());
        let received = to_its_end(app, async move {
            let _place = place;
            let messages = match id {
                Some(id) => {
                    let asked = ReceiveOptions { wait: Duration::ZERO, ..asked };
                    let found = own.provider.receive_by_id(&queues[0], id, &asked, Deadline::default()).await?;
                    in_flight.correct(expected, found.iter().map(bytes).sum());
                    found.into_iter().collect()
                }
                None => {
                    let first = ReceiveOptions { max: portion, ..asked.clone() };
                    let first = wait_for(&own, &queues, &first, until, &left).await?;
                    own.gather(&queues, &asked, first, Asked { rows: portion, expected }, &in_flight).await
                }
            };
            Ok(Leased::new(messages, &own))
        });
        let lost = || MessagingError::OutcomeUnknown { operation: "receive", ids: Vec::new(), source: None };
        let received: Result<Leased, MessagingError> = received.await.unwrap_or_else(|| Err(lost()));
        let leased = received?;
        let receipts: Vec<ReceiptHandle> = leased.messages.iter().map(|(_, _, receipt)| receipt.clone()).collect();
        waiting.got(&receipts, options.visibility);
        Ok(leased)
    }

    /// The messages as the client gets them, and the leases, which go back if it does not.
    fn hand_over(&self, leased: Leased) -> Result<(Vec<Bytes>, Handover), ApiError> {
        let Leased { messages, handover } = leased;
        let mut pieces = Vec::with_capacity(messages.len());
        for (body, envelope, own) in messages {
            let sealed = self.app.seal.seal(&own, envelope.attempts_count, &self.name);
            let piece = serde_json::to_vec(&Received::new(body, envelope, sealed));
            pieces.push(Bytes::from(piece.map_err(|error| ApiError::malformed(error.to_string()))?));
        }
        Ok((pieces, handover))
    }
}

impl Asking<'_> {
    /// What became of leases that ended, and what was received.
    fn answer(&self, settled: Vec<Row>, received: Result<Leased, ApiError>) -> Result<Response, ApiError> {
        // Nothing was settled, so nothing is lost by a plain refusal.
        let (leased_messages, problem) = match received {
            Ok(leased) => (leased, None),
            Err(error) if settled.is_empty() => return Err(error),
            Err(error) => (Leased::new(Vec::new(), self.app), Some(error.into_problem())),
        };
        let (pieces, handover) = self.hand_over(leased_messages)?;
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
        Ok(leases::response(all, handover, self.peer.unflushed.clone()))
    }
}

/// Asks until there is something, the time is over, the client has left or the server stops. Each question is asked to its
/// end.
async fn wait_for(
    app: &App,
    queues: &[QueueName],
    options: &ReceiveOptions,
    until: Instant,
    left: &CancellationToken,
) -> Result<Vec<QueuedMessage>, MessagingError> {
    loop {
        let wait = until.saturating_duration_since(Instant::now()).min(SLICE);
        let messages = app.ask(queues, &ReceiveOptions { wait, ..options.clone() }).await?;
        let is_over = Instant::now() >= until || left.is_cancelled() || app.stop.is_cancelled();
        if !messages.is_empty() || is_over {
            return Ok(messages);
        }
    }
}

fn bytes(message: &QueuedMessage) -> usize {
    message.message.len() + message.envelope.headers.byte_len()
}

/// What a question to the store may bring.
#[derive(Debug, Clone, Copy)]
struct Asked {
    rows: usize,
    /// Bytes that are kept room for.
    expected: usize,
}

impl App {
    async fn ask(&self, queues: &[QueueName], options: &ReceiveOptions) -> Result<Vec<QueuedMessage>, MessagingError> {
        let deadline = Deadline::after(options.wait.saturating_add(Deadline::DEFAULT));
        match queues {
            [queue] => self.provider.receive_messages(queue, options, deadline).await,
            _ => self.provider.settle_and_receive(Vec::new(), queues, options, deadline).await?.received,
        }
    }

    /// How many messages of those that are wanted are asked for at once.
    fn portion(&self, queues: &[QueueName], wanted: usize, answer: &Room) -> usize {
        self.portions.rows(queues.iter().map(QueueName::as_str), wanted, self.most_bytes(), answer)
    }

    /// The same of a question that waits.
    fn portion_to_wait_for(&self, queues: &[QueueName], wanted: usize) -> usize {
        self.portions.rows_to_wait_for(queues.iter().map(QueueName::as_str), wanted, self.most_bytes())
    }

    /// The bytes that so many messages are expected to have.
    fn expected(&self, queues: &[QueueName], rows: usize) -> usize {
        rows.saturating_mul(self.portions.size(queues.iter().map(QueueName::as_str), self.most_bytes()))
    }

    /// Adds to the first portion, which was asked for so, until there are as many as are wanted, as fit into an answer or
    /// as there are.
    async fn gather(
        self: &Arc<Self>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        first: Vec<QueuedMessage>,
        mut asked: Asked,
        in_flight: &InFlight,
    ) -> Vec<QueuedMessage> {
        let (mut all, mut room, mut portion) = (Vec::new(), Room::default(), first);
        loop {
            let is_last = portion.len() < asked.rows;
            in_flight.correct(asked.expected, portion.iter().map(bytes).sum());
            self.portions.saw(portion.iter().map(|message| (message.envelope.queue.as_str(), bytes(message))));
            let surplus = room.take(&mut portion, bytes);
            let is_full = !surplus.is_empty() || room.is_full();
            drop(Leased::new(surplus, self));
            all.append(&mut portion);
            if is_last || is_full || all.len() >= options.max || self.stop.is_cancelled() {
                return all;
            }
            let rows = self.portion(queues, options.max - all.len(), &room);
            asked = Asked { rows, expected: self.expected(queues, rows) };
            if rows == 0 || !in_flight.try_grow(asked.expected) {
                return all;
            }
            let next = ReceiveOptions { max: rows, wait: Duration::ZERO, ..options.clone() };
            portion = match self.ask(queues, &next).await {
                Ok(portion) => portion,
                Err(error) => {
                    tracing::debug!(%error, "a receive has fewer messages than there may be");
                    return all;
                }
            };
        }
    }
}

impl App {
    /// Refuses somebody whose token has ended while they waited. What was leased for them goes back.
    pub(super) async fn check_still(&self, caller: &Caller, waited: Duration) -> Result<(), ApiError> {
        if waited.is_zero() || self.access.would_let_in(caller).await? {
            return Ok(());
        }
        Err(ApiError::new(
            Code::Unauthorized,
            "the token has ended, or the server was closed, while this request waited",
        ))
    }
}

/// What is asked for, within what a server allows.
fn bounded(options: ReceiveOptions) -> Result<ReceiveOptions, ApiError> {
    if options.max > MOST_RECEIVED {
        return Err(ApiError::malformed(format!("max: at most {MOST_RECEIVED} messages are received at once")));
    }
    Ok(options)
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
    in_flight: InFlight,
    JsonBody(asked): JsonBody<ReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(asked.options(&defaults)?)?;
    let asking = Asking::new(&app, &caller, &peer, asked.worker, in_flight)?;
    let messages = asking.receive(&[queue], &options, asked.id).await?;
    app.check_still(&caller, options.wait).await?;
    let (pieces, handover) = asking.hand_over(messages)?;
    let mut all = Vec::with_capacity(pieces.len() * 2 + 2);
    all.push(Bytes::from_static(b"{\"messages\":["));
    listed(pieces, &mut all);
    all.push(Bytes::from_static(b"]}"));
    Ok(leases::response(all, handover, peer.unflushed.clone()))
}

async fn settle_and_receive(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    in_flight: InFlight,
    JsonBody(mut asked): JsonBody<SettleAndReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(asked.options(&defaults)?)?;
    if asked.settlements.len() > MOST_SETTLED {
        return Err(ApiError::malformed(format!("settlements: at most {MOST_SETTLED} leases are ended at once")));
    }
    if asked.queues.is_empty() || asked.queues.len() > MOST_QUEUES {
        return Err(ApiError::malformed(format!("queues: name 1 to {MOST_QUEUES}")));
    }
    for queue in &asked.queues {
        caller.check_queue(queue)?;
    }
    let asking = Asking::new(&app, &caller, &peer, asked.worker.take(), in_flight)?;
    let (receipts, opened) = app.settlements(&caller, std::mem::take(&mut asked.settlements));
    let (fine, notes) = split(opened);
    let (fine, attempts): (Vec<_>, Vec<_>) = fine.into_iter().unzip();
    let (settled, received) = match fine.is_empty() {
        true => (Vec::new(), asking.receive(&asked.queues, &options, None).await),
        false => {
            // One round trip where the store can; then, if nothing was there, the wait.
            let portion = app.portion(&asked.queues, options.max, &Room::default());
            let expected = app.expected(&asked.queues, portion);
            if let Err(no_room) = asking.in_flight.grow(expected).await {
                // What is done is done all the same: it makes room.
                let settled = app.provider.settle(fine.clone(), Deadline::default()).await?;
                app.note_settled(&fine, &attempts, &settled);
                return asking.answer(rows(receipts, notes, settled), Err(no_room));
            }
            let at_once = ReceiveOptions { max: portion, wait: Duration::ZERO, ..options.clone() };
            let (own, ended, queues, wanted) = (app.clone(), fine.clone(), asked.queues.clone(), options.clone());
            let in_flight = asking.in_flight.clone();
            let both = to_its_end(&app, async move {
                let both = own.provider.settle_and_receive(ended, &queues, &at_once, Deadline::default()).await?;
                let received = match both.received {
                    Ok(first) => {
                        let asked = Asked { rows: portion, expected };
                        Ok(Leased::new(own.gather(&queues, &wanted, first, asked, &in_flight).await, &own))
                    }
                    Err(error) => Err(error),
                };
                Ok((both.settled, received))
            });
            let lost = || MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None };
            let (settled, received) = both.await.unwrap_or_else(|| Err(lost()))?;
            app.note_settled(&fine, &attempts, &settled);
            let received = match received {
                Ok(leased) if leased.messages.is_empty() && !options.wait.is_zero() => {
                    asking.receive(&asked.queues, &options, None).await
                }
                Ok(leased) => {
                    let receipts: Vec<_> = leased.messages.iter().map(|(_, _, receipt)| receipt.clone()).collect();
                    asking.waiting(&asked.queues).got(&receipts, options.visibility);
                    Ok(leased)
                }
                Err(error) => Err(error.into()),
            };
            (settled, received)
        }
    };
    let received = match received {
        Ok(leased) => app.check_still(&caller, options.wait).await.map(|()| leased),
        Err(error) => Err(error),
    };
    asking.answer(rows(receipts, notes, settled), received)
}
