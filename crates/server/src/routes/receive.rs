//! Receiving messages, with long polls.

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
use super::settle::{MAX_SETTLED, rows, split};
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Code, Content, JsonBody, QueuePath, Route, Verb};
use crate::app::App;
use crate::edge::Peer;
use crate::in_flight::InFlight;
use crate::leases::{self, Handover, Leased, run_to_completion};
use crate::row_sizes::AnswerSpace;
use crate::workers::{OngoingRequest, WorkerRequest, check_name};

/// Time after which a waiting request notices that its client has left.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// Upper bound of the messages of one request.
const MAX_RECEIVED: usize = 1000;

/// Upper bound of the queues of one request.
const MAX_QUEUES: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Receiving";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/receive"),
            (GROUP, "receiveMessages"),
            CONSUME,
            "Leases due messages; with 'wait', waits for the first one. With 'id', that message or none.",
            receive,
        )
        .takes(named("Receive"))
        .answers(
            200,
            "The messages; empty if none is due",
            Content::Json(only("messages", list(named("ReceivedMessage")))),
        ),
        Route::new(
            (Verb::Post, "/v1/receive"),
            (GROUP, "settleAndReceive"),
            CONSUME,
            "Settles messages, then receives from one or several queues: one request per round of a worker.",
            settle_and_receive,
        )
        .takes(named("ReceiveSeveral"))
        .answers(
            200,
            "The results of the settlements, and the received messages",
            Content::Json(named("SettledAndReceived")),
        ),
    ]
}

/// The receiver of a request.
#[derive(Debug)]
struct Receiver<'a> {
    app: &'a Arc<App>,
    peer: &'a Peer,
    /// Key of the caller: id of the token, or the address.
    caller: Arc<str>,
    name: String,
    in_flight: InFlight,
}

impl<'a> Receiver<'a> {
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

    fn waiting(&self, queues: &[QueueName]) -> OngoingRequest<'a> {
        let (caller, address) = (&self.caller, &self.peer.address);
        self.app
            .workers
            .begin_request(WorkerRequest { kind: WorkerKind::Http, caller, name: &self.name, address }, queues)
    }

    /// Receives messages; waits with a claim permit while none is due.
    async fn receive(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        id: Option<postrider::MessageId>,
    ) -> Result<Leased, ApiError> {
        let app = self.app;
        // Bytes are reserved for an immediate claim. A wait reserves none: its first claim is small.
        let chunk = match options.wait.is_zero() {
            true => app.chunk_rows(queues, options.max, &AnswerSpace::default()),
            false => app.waiting_chunk_rows(queues, options.max),
        };
        let expected = match (id, options.wait.is_zero()) {
            (Some(_), _) => app.expected(queues, 1),
            (None, true) => app.expected(queues, chunk),
            (None, false) => 0,
        };
        self.in_flight.grow(expected).await?;
        let waiting = self.waiting(queues);
        let until = Instant::now() + options.wait;
        let permit = match id.is_some() || options.wait.is_zero() {
            true => None,
            false => {
                let permit = tokio::select! {
                    permit = tokio::time::timeout_at(until, app.claim_permits.acquire(queues)) => permit.ok().flatten(),
                    () = app.stop.cancelled() => None,
                };
                // The holders of the permits have found nothing either.
                let Some(permit) = permit else { return Ok(Leased::new(Vec::new(), app)) };
                Some(permit)
            }
        };
        // Cancelled if the client leaves.
        let left = CancellationToken::new();
        let _leaving = left.clone().drop_guard();
        let (own, queues, wanted, in_flight) = (app.clone(), queues.to_vec(), options.clone(), self.in_flight.clone());
        let received = run_to_completion(app, async move {
            let _permit = permit;
            let messages = match id {
                Some(id) => {
                    let wanted = ReceiveOptions { wait: Duration::ZERO, ..wanted };
                    let found = own.provider.receive_by_id(&queues[0], id, &wanted, Deadline::default()).await?;
                    in_flight.correct(expected, found.iter().map(bytes).sum());
                    found.into_iter().collect()
                }
                None => {
                    let first = ReceiveOptions { max: chunk, ..wanted.clone() };
                    let first = claim_until(&own, &queues, &first, until, &left).await?;
                    own.gather(&queues, &wanted, first, ClaimSize { rows: chunk, expected }, &in_flight).await
                }
            };
            Ok(Leased::new(messages, &own))
        });
        let lost = || MessagingError::OutcomeUnknown { operation: "receive", ids: Vec::new(), source: None };
        let received: Result<Leased, MessagingError> = received.await.unwrap_or_else(|| Err(lost()));
        let leased = received?;
        let receipts: Vec<ReceiptHandle> = leased.messages.iter().map(|(_, _, receipt)| receipt.clone()).collect();
        waiting.received(&receipts, options.visibility);
        Ok(leased)
    }

    /// Returns the messages as JSON, and the handover of their leases.
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

impl Receiver<'_> {
    /// Returns the answer with results of settlements and received messages.
    fn answer(&self, settled: Vec<Row>, received: Result<Leased, ApiError>) -> Result<Response, ApiError> {
        // Without settlements the error is the whole answer.
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

/// Claims until messages arrive, the time is over, the client has left or the server stops. No claim is aborted.
async fn claim_until(
    app: &App,
    queues: &[QueueName],
    options: &ReceiveOptions,
    until: Instant,
    left: &CancellationToken,
) -> Result<Vec<QueuedMessage>, MessagingError> {
    loop {
        let wait = until.saturating_duration_since(Instant::now()).min(CLAIM_WAIT);
        let messages = app.claim(queues, &ReceiveOptions { wait, ..options.clone() }).await?;
        let is_over = Instant::now() >= until || left.is_cancelled() || app.stop.is_cancelled();
        if !messages.is_empty() || is_over {
            return Ok(messages);
        }
    }
}

fn bytes(message: &QueuedMessage) -> usize {
    message.message.len() + message.envelope.headers.byte_len()
}

/// Expected result of a claim.
#[derive(Debug, Clone, Copy)]
struct ClaimSize {
    rows: usize,
    /// Reserved bytes.
    expected: usize,
}

impl App {
    async fn claim(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let deadline = Deadline::after(options.wait.saturating_add(Deadline::DEFAULT));
        match queues {
            [queue] => self.provider.receive_messages(queue, options, deadline).await,
            _ => self.provider.settle_and_receive(Vec::new(), queues, options, deadline).await?.received,
        }
    }

    /// Number of messages to claim next.
    fn chunk_rows(&self, queues: &[QueueName], wanted: usize, answer: &AnswerSpace) -> usize {
        self.message_sizes.rows_to_claim(queues.iter().map(QueueName::as_str), wanted, self.most_bytes(), answer)
    }

    /// The same for a claim that waits.
    fn waiting_chunk_rows(&self, queues: &[QueueName], wanted: usize) -> usize {
        self.message_sizes.rows_to_wait_for(queues.iter().map(QueueName::as_str), wanted, self.most_bytes())
    }

    /// Expected bytes of a number of messages.
    fn expected(&self, queues: &[QueueName], rows: usize) -> usize {
        rows.saturating_mul(self.message_sizes.size(queues.iter().map(QueueName::as_str), self.most_bytes()))
    }

    /// Claims more after the first chunk, until there are as many messages as requested, as fit into an answer or as
    /// are due.
    async fn gather(
        self: &Arc<Self>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        first: Vec<QueuedMessage>,
        mut size: ClaimSize,
        in_flight: &InFlight,
    ) -> Vec<QueuedMessage> {
        let (mut all, mut space, mut chunk) = (Vec::new(), AnswerSpace::default(), first);
        loop {
            let is_last = chunk.len() < size.rows;
            in_flight.correct(size.expected, chunk.iter().map(bytes).sum());
            self.message_sizes.record(chunk.iter().map(|message| (message.envelope.queue.as_str(), bytes(message))));
            let surplus = space.take(&mut chunk, bytes);
            let is_full = !surplus.is_empty() || space.is_full();
            drop(Leased::new(surplus, self));
            all.append(&mut chunk);
            if is_last || is_full || all.len() >= options.max || self.stop.is_cancelled() {
                return all;
            }
            let rows = self.chunk_rows(queues, options.max - all.len(), &space);
            size = ClaimSize { rows, expected: self.expected(queues, rows) };
            if rows == 0 || !in_flight.try_grow(size.expected) {
                return all;
            }
            let next = ReceiveOptions { max: rows, wait: Duration::ZERO, ..options.clone() };
            chunk = match self.claim(queues, &next).await {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::debug!(%error, "a receive ended early and may have missed due messages");
                    return all;
                }
            };
        }
    }
}

impl App {
    /// Fails if the caller's token has ended during a wait. The leases are then released.
    pub(super) async fn check_still(&self, caller: &Caller, waited: Duration) -> Result<(), ApiError> {
        if waited.is_zero() || self.access.is_still_valid(caller).await? {
            return Ok(());
        }
        Err(ApiError::new(
            Code::Unauthorized,
            "the token was revoked or has expired during this request, or the server no longer allows requests without one",
        ))
    }
}

/// Checks the bounds of a receive.
fn bounded(options: ReceiveOptions) -> Result<ReceiveOptions, ApiError> {
    if options.max > MAX_RECEIVED {
        return Err(ApiError::malformed(format!("invalid 'max'; receive at most {MAX_RECEIVED} messages at once")));
    }
    Ok(options)
}

/// Appends the pieces with commas between them.
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
    JsonBody(request): JsonBody<ReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(request.options(&defaults)?)?;
    let receiver = Receiver::new(&app, &caller, &peer, request.worker, in_flight)?;
    let messages = receiver.receive(&[queue], &options, request.id).await?;
    app.check_still(&caller, options.wait).await?;
    let (pieces, handover) = receiver.hand_over(messages)?;
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
    JsonBody(mut request): JsonBody<SettleAndReceiveRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let defaults = ReceiveOptions { max: 1, ..app.context.config.common().messaging.receive_options() };
    let options = bounded(request.options(&defaults)?)?;
    if request.settlements.len() > MAX_SETTLED {
        return Err(ApiError::malformed(format!("too many settlements; send at most {MAX_SETTLED}")));
    }
    if request.queues.is_empty() || request.queues.len() > MAX_QUEUES {
        return Err(ApiError::malformed(format!("invalid 'queues'; name 1 to {MAX_QUEUES}")));
    }
    for queue in &request.queues {
        caller.check_queue(queue)?;
    }
    let receiver = Receiver::new(&app, &caller, &peer, request.worker.take(), in_flight)?;
    let (receipts, opened) = app.settlements(&caller, std::mem::take(&mut request.settlements));
    let (valid, notes) = split(opened);
    let (valid, attempts): (Vec<_>, Vec<_>) = valid.into_iter().unzip();
    let (settled, received) = match valid.is_empty() {
        true => (Vec::new(), receiver.receive(&request.queues, &options, None).await),
        false => {
            // Settle and claim in one round trip if the store can; then wait if nothing was due.
            let chunk = app.chunk_rows(&request.queues, options.max, &AnswerSpace::default());
            let expected = app.expected(&request.queues, chunk);
            if let Err(no_room) = receiver.in_flight.grow(expected).await {
                // Settled without room all the same, as it frees memory.
                let settled = app.provider.settle(valid.clone(), Deadline::default()).await?;
                app.record_settled(&valid, &attempts, &settled);
                return receiver.answer(rows(receipts, notes, settled), Err(no_room));
            }
            let at_once = ReceiveOptions { max: chunk, wait: Duration::ZERO, ..options.clone() };
            let (own, ended, queues, wanted) = (app.clone(), valid.clone(), request.queues.clone(), options.clone());
            let in_flight = receiver.in_flight.clone();
            let both = run_to_completion(&app, async move {
                let both = own.provider.settle_and_receive(ended, &queues, &at_once, Deadline::default()).await?;
                let received = match both.received {
                    Ok(first) => {
                        let size = ClaimSize { rows: chunk, expected };
                        Ok(Leased::new(own.gather(&queues, &wanted, first, size, &in_flight).await, &own))
                    }
                    Err(error) => Err(error),
                };
                Ok((both.settled, received))
            });
            let lost = || MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None };
            let (settled, received) = both.await.unwrap_or_else(|| Err(lost()))?;
            app.record_settled(&valid, &attempts, &settled);
            let received = match received {
                Ok(leased) if leased.messages.is_empty() && !options.wait.is_zero() => {
                    receiver.receive(&request.queues, &options, None).await
                }
                Ok(leased) => {
                    let receipts: Vec<_> = leased.messages.iter().map(|(_, _, receipt)| receipt.clone()).collect();
                    receiver.waiting(&request.queues).received(&receipts, options.visibility);
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
    receiver.answer(rows(receipts, notes, settled), received)
}
