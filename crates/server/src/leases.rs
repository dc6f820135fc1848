//! Handing leases over to clients.
//!
//! A lease belongs to the client once the answer that carries its receipt is flushed. Until then it is the server's,
//! which releases it at once and uncounted if the handover fails. There are three failures, and each drops
//! [`Handover`]: the client leaves while the request waits, the answer's body is not read to its end, or it is never
//! flushed to the socket.

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
use crate::metrics::MessageEvent;

/// Leases that are to be handed over; released on drop.
#[must_use = "dropping it releases the leases"]
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

/// What is recorded of a delivery once it is handed over.
struct Delivery {
    receipt: ReceiptHandle,
    /// Time since its send, if this is its first delivery.
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

    /// Records that the client has the leases.
    pub(crate) fn complete(mut self) {
        let Leases::Messages(messages) = std::mem::take(&mut self.leases) else { return };
        for Delivery { receipt, waited } in messages {
            self.app.metrics.count(receipt.queue(), MessageEvent::Received, 1);
            self.app.durations.delivered(&receipt, waited);
            if let Some(waited) = waited {
                self.app.metrics.waited(receipt.queue(), waited);
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

    /// Releases the leases at once and uncounted. A lease that cannot be released expires.
    async fn release(self, app: &App) -> Result<(), MessagingError> {
        match self {
            Self::Messages(messages) => {
                app.workers.returned(messages.iter().map(|message| &message.receipt));
                let release = |message: Delivery| Settlement::nack(message.receipt, Nack::Release);
                let releases = messages.into_iter().map(release).collect();
                for row in app.provider.settle(releases, Deadline::default()).await? {
                    match row {
                        // An expired lease needs no release.
                        Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
                        Err(error) => tracing::warn!(%error, "a lease that no client received was not released"),
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
            if let Err(error) = leases.release(&app).await {
                tracing::warn!(%error, "leases that no client received could not be released; they will expire");
            }
        };
        match tokio::runtime::Handle::try_current() {
            // The server awaits it when it stops.
            Ok(runtime) => drop(self.app.background.spawn_on(release, &runtime)),
            // Without a runtime the process is ending; the leases expire.
            Err(_) => drop(release),
        }
    }
}

/// Messages received for a client, with their leases.
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

/// Runs work to completion even if the client leaves: a claim that is aborted halfway could lease messages that no
/// client receives. An unused result is dropped, which releases its leases.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    app: &App,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    app.background.spawn(async move {
        let _ = sender.send(work.await);
    });
    receiver.await.ok()
}

/// What a connection has to write and has not flushed yet. The locks are held briefly.
#[derive(Default)]
pub(crate) struct Unflushed {
    leases: Mutex<Vec<Handover>>,
    /// Counted answers, and the time at which the first of them was passed on.
    answers: Mutex<Option<(Instant, Vec<InFlight>)>>,
    /// Called after a flush of leases or counted answers: the connection may be idle now.
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

    /// Time for which the oldest counted answer has been unflushed.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(since, _)| since.elapsed())
    }

    /// Whether neither leases nor counted answers are unflushed.
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).is_empty() && self.since().is_none()
    }

    /// Records that everything written is flushed.
    pub(crate) fn flushed(&self) {
        let handed = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_something = !handed.is_empty() || answers.is_some();
        handed.into_iter().for_each(Handover::complete);
        drop(answers);
        if is_something && let Some(on_flush) = self.on_flush.get() {
            on_flush();
        }
    }

    /// Sets the callback for flushes. Only the first call has an effect: it returns the permit of the connection.
    pub(crate) fn on_flush(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_flush.set(Box::new(call));
    }
}

/// Body of an answer that carries receipts.
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
            // Before the last frame is returned, so that the flush after it finds the leases.
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

/// Returns a JSON answer that hands the leases over once it is flushed.
pub(crate) fn response(frames: Vec<Bytes>, handover: Handover, connection: Arc<Unflushed>) -> Response {
    let left = frames.iter().map(|frame| frame.len() as u64).sum();
    let body = Body::new(LeasedBody { frames: frames.into(), left, handover: Some(handover), connection });
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
