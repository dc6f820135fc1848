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

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use postrider::{Deadline, MessagingProvider, MessagingService, Nack, ReceiptHandle, Settlement};

use postrider::Guarded;

/// Leases that somebody shall have, and that go back if nobody gets them.
#[must_use = "dropped, the leases go back"]
pub(crate) struct Handover {
    receipts: Vec<ReceiptHandle>,
    provider: Arc<Guarded<MessagingProvider>>,
}

impl Handover {
    pub(crate) fn new(receipts: Vec<ReceiptHandle>, provider: Arc<Guarded<MessagingProvider>>) -> Self {
        Self { receipts, provider }
    }

    /// The leases are the client's now.
    pub(crate) fn done(mut self) {
        self.receipts.clear();
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        let receipts = std::mem::take(&mut self.receipts);
        let provider = self.provider.clone();
        let release = async move {
            let count = receipts.len();
            let releases = receipts.into_iter().map(|receipt| Settlement::nack(receipt, Nack::Release)).collect();
            // What cannot be given back comes back when its lease ends.
            if let Err(error) = provider.settle(releases, Deadline::default()).await {
                tracing::warn!(%error, count, "leases that no client got could not be given back before they end");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(release)),
            // Without a runtime the process is ending; the leases end by themselves.
            Err(_) => drop(release),
        }
    }
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

/// The body of an answer whose leases are the client's once it is written.
pub(crate) fn body(frames: Vec<Bytes>, handover: Handover, connection: Arc<Unflushed>) -> Body {
    let left = frames.iter().map(|frame| frame.len() as u64).sum();
    Body::new(LeasedBody { frames: frames.into(), left, handover: Some(handover), connection })
}
