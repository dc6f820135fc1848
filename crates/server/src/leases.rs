//! Leases on their way to a client.
//!
//! A lease belongs to a client once the answer that carries its receipt is on the way; until then it is the server's, and
//! what the server cannot hand over it gives back at once and uncounted. Three things can go wrong, and each ends in
//! [`Handover`]'s drop: the request is given up while it waits, the answer's body is not taken to its end, or what was
//! taken is never flushed to the socket.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
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

use crate::app::App;
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

/// What a connection has been given to write and has not flushed yet.
#[derive(Default)]
pub(crate) struct Unflushed(Mutex<Vec<Handover>>);

impl Unflushed {
    fn add(&self, handover: Handover) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handover);
    }

    /// Everything that was written has left the process.
    pub(crate) fn flushed(&self) {
        let handed = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        handed.into_iter().for_each(Handover::done);
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
