//! Leases on their way to a client.
//!
//! A lease belongs to a client once the answer that carries its receipt is on the way; until then it is the server's, and
//! what the server cannot hand over it gives back at once and uncounted. Three things can go wrong, and each ends in
//! [`Handover`]'s drop: the request is given up while it waits, the answer's body is not taken to its end, or what was
//! taken is never flushed to the socket.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use postrider::task::{Finish, TaskLease, TaskOutcome};
use postrider::{
    Deadline, Envelope, MessagingError, MessagingService, Nack, QueuedMessage, ReceiptHandle, Settlement, TaskStore,
    Timestamp,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::app::App;
use crate::in_flight::InFlight;
use crate::meter::Happened;

/// Leases that somebody shall have, and that go back if nobody gets them.
#[must_use = "dropped, the leases go back"]
pub(crate) struct Handover {
    leases: Leases,
    app: Arc<App>,
}

enum Leases {
    Messages(Vec<Delivery>),
    Tasks(Vec<TaskLease>),
}

impl Default for Leases {
    fn default() -> Self {
        Self::Messages(Vec::new())
    }
}

/// What is told of a message when its lease is a client's.
struct Delivery {
    receipt: ReceiptHandle,
    /// How long it had waited, if nobody had it before.
    waited: Option<Duration>,
}

impl Handover {
    fn messages(messages: &[(Bytes, Envelope, ReceiptHandle)], app: &Arc<App>) -> Self {
        let now = Timestamp::now();
        let delivery = |(_, envelope, receipt): &(Bytes, Envelope, ReceiptHandle)| Delivery {
            receipt: receipt.clone(),
            waited: (envelope.receive_count == 1).then(|| now.since(envelope.enqueued_at)),
        };
        Self { leases: Leases::Messages(messages.iter().map(delivery).collect()), app: app.clone() }
    }

    pub(crate) fn tasks(leases: Vec<TaskLease>, app: &Arc<App>) -> Self {
        Self { leases: Leases::Tasks(leases), app: app.clone() }
    }

    /// The leases are the client's now.
    pub(crate) fn done(mut self) {
        let Leases::Messages(messages) = std::mem::take(&mut self.leases) else { return };
        for Delivery { receipt, waited } in messages {
            self.app.meter.count(receipt.queue(), Happened::Received, 1);
            self.app.durations.handed_over(&receipt, waited);
            if let Some(waited) = waited {
                self.app.meter.waited(receipt.queue(), waited);
            }
        }
    }
}

impl Leases {
    fn is_empty(&self) -> bool {
        match self {
            Self::Messages(messages) => messages.is_empty(),
            Self::Tasks(leases) => leases.is_empty(),
        }
    }

    /// Gives them back at once and uncounted. What cannot be given back comes back when its lease ends.
    async fn go_back(self, app: &App) -> Result<(), MessagingError> {
        match self {
            Self::Messages(messages) => {
                app.workers.never_had(messages.iter().map(|message| &message.receipt));
                let release = |message: Delivery| Settlement::nack(message.receipt, Nack::Release);
                let releases = messages.into_iter().map(release).collect();
                for row in app.provider.settle(releases, Deadline::default()).await? {
                    match row {
                        // It has run out, so the message is back.
                        Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
                        Err(error) => tracing::warn!(%error, "a lease that no client got was not given back"),
                    }
                }
                Ok(())
            }
            Self::Tasks(leases) => {
                let finish = |lease| Finish { lease, outcome: TaskOutcome::Released };
                app.client()
                    .store()
                    .finish(leases.into_iter().map(finish).collect(), Deadline::default())
                    .await
                    .map(drop)
            }
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        if leases.is_empty() {
            return;
        }
        let app = self.app.clone();
        let release = async move {
            if let Err(error) = leases.go_back(&app).await {
                tracing::warn!(%error, "leases that no client got could not be given back before they end");
            }
        };
        match tokio::runtime::Handle::try_current() {
            // Waited for when the server stops.
            Ok(runtime) => drop(self.app.begun.spawn_on(release, &runtime)),
            // Without a runtime the process is ending; the leases end by themselves.
            Err(_) => drop(release),
        }
    }
}

/// Messages that were received for a client, and their leases.
pub(crate) struct Leased {
    pub(crate) messages: Vec<(Bytes, Envelope, ReceiptHandle)>,
    pub(crate) handover: Handover,
}

impl Leased {
    pub(crate) fn new(messages: Vec<QueuedMessage>, app: &Arc<App>) -> Self {
        let messages: Vec<_> = messages.into_iter().map(QueuedMessage::into_parts).collect();
        let handover = Handover::messages(&messages, app);
        Self { messages, handover }
    }
}

/// Carries something out to its end, also when the client leaves meanwhile: a store that is left in the middle of a claim
/// cannot know that nobody has seen the messages. What it brings and nobody takes is dropped, and leases in it go back.
pub(crate) async fn to_its_end<T: Send + 'static>(
    app: &App,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    app.begun.spawn(async move {
        let _ = sender.send(work.await);
    });
    receiver.await.ok()
}

/// What a connection has been given to write and has not flushed yet. Locks, held for a look.
#[derive(Default)]
pub(crate) struct Unflushed {
    leases: Mutex<Vec<Handover>>,
    /// Answers that are counted, and since when the first of them has been written.
    answers: Mutex<Option<(Instant, Vec<InFlight>)>>,
    /// Called after a flush of something: the connection may be idle now.
    on_flush: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Unflushed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unflushed")
    }
}

impl Unflushed {
    fn add(&self, handover: Handover) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(handover);
    }

    /// Counts an answer until it is flushed.
    pub(crate) fn hold(&self, answer: InFlight) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get_or_insert_with(|| (Instant::now(), Vec::new())).1.push(answer);
    }

    /// How long a large answer has been on its way.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(since, _)| since.elapsed())
    }

    /// Whether nothing of it is waited for.
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).is_empty() && self.since().is_none()
    }

    /// Everything that was written has left the process.
    pub(crate) fn flushed(&self) {
        let handed = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_something = !handed.is_empty() || answers.is_some();
        handed.into_iter().for_each(Handover::done);
        drop(answers);
        if is_something && let Some(on_flush) = self.on_flush.get() {
            on_flush();
        }
    }

    /// Calls this after each flush of something. The first one that is named is kept: a connection has one place.
    pub(crate) fn on_flush(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_flush.set(Box::new(call));
    }
}

/// An answer that carries receipts.
struct LeasedBody {
    frames: VecDeque<Bytes>,
    left: u64,
    handover: Option<Handover>,
    connection: Arc<Unflushed>,
}

impl http_body::Body for LeasedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(frame) = self.frames.pop_front() else { return Poll::Ready(None) };
        self.left -= frame.len() as u64;
        if self.frames.is_empty()
            && let Some(handover) = self.handover.take()
        {
            // Before the last piece is handed on, so that a flush that follows it finds the leases.
            self.connection.add(handover);
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// An answer of JSON whose leases are the client's once it is written.
pub(crate) fn response(frames: Vec<Bytes>, handover: Handover, connection: Arc<Unflushed>) -> Response {
    let left = frames.iter().map(|frame| frame.len() as u64).sum();
    let body = Body::new(LeasedBody { frames: frames.into(), left, handover: Some(handover), connection });
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
