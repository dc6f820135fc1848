//! Bytes in flight: bodies of requests while they are read and carried out, and answers until they are written.
//!
//! A bound per request would let memory grow with the number of requests, so all requests share one budget. A request
//! that finds no room waits for a few seconds and is then refused with `Retry-After`. No caller gets more than half, so
//! that a client that sends slowly or does not read leaves room for others; time-outs end both.
//!
//! **What was rejected.** Reserving the largest possible result of every receive: thousands of clients that wait for
//! nothing would use up the budget. The result of a receive is counted when it is there, even beyond the budget, and
//! the next requests wait.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::{ApiError, Code};
use crate::leases::Unflushed;

/// Time that a request waits for room.
const TIMEOUT: Duration = Duration::from_secs(5);

/// `Retry-After` of a refused request, in seconds.
const RETRY_AFTER: u64 = 2;

/// Size up to which requests and answers are not counted: their number is bounded by the connections.
const UNCOUNTED: usize = 4096;

#[derive(Debug, Default)]
struct Usage {
    total: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

/// The bytes that all requests share.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    max_per_caller: usize,
    /// The lock is held briefly.
    taken: Mutex<Usage>,
    /// Notified when bytes are returned.
    freed: Notify,
}

impl Budget {
    /// A budget of `most` bytes. A caller may use half of it, or one request of the largest size if that is more.
    pub(crate) fn new(most: usize, largest_request: usize) -> Self {
        let max_per_caller = (most / 2).max(largest_request.min(most));
        Self { most, max_per_caller, taken: Mutex::default(), freed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes in use.
    #[cfg(test)]
    fn taken(&self) -> usize {
        self.lock().total
    }

    /// Takes the bytes if there is room.
    fn try_take(&self, caller: &Arc<str>, bytes: usize) -> bool {
        let mut taken = self.lock();
        let own = taken.by_caller.get(caller).copied().unwrap_or_default();
        let fits = taken.total.saturating_add(bytes) <= self.most && own.saturating_add(bytes) <= self.max_per_caller;
        if fits {
            taken.add(caller, bytes);
        }
        fits
    }

    async fn take(&self, caller: &Arc<str>, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes.min(self.max_per_caller);
        self.wait_until(|| self.try_take(caller, bytes)).await
    }

    /// Waits until the caller may use more bytes.
    async fn wait_for_room(&self, caller: &Arc<str>) -> Result<(), ApiError> {
        let has_room = || {
            let taken = self.lock();
            let own = taken.by_caller.get(caller).copied().unwrap_or_default();
            taken.total < self.most && own < self.max_per_caller
        };
        self.wait_until(has_room).await
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) -> Result<(), ApiError> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the check, so that bytes returned in between are not missed.
            freed.as_mut().enable();
            if condition() {
                return Ok(());
            }
            if tokio::time::timeout_at(until, freed).await.is_err() {
                let why = "the memory for requests and answers is in use; repeat the request a little later, request \
                           less at once, or raise server.max_bytes_in_flight";
                return Err(ApiError::new(Code::ServerBusy, why).retry_after(RETRY_AFTER));
            }
        }
    }

    fn release(&self, caller: &Arc<str>, bytes: usize) {
        self.lock().subtract(caller, bytes);
        self.freed.notify_waiters();
    }
}

impl Usage {
    fn add(&mut self, caller: &Arc<str>, bytes: usize) {
        self.total = self.total.saturating_add(bytes);
        let own = self.by_caller.entry(caller.clone()).or_default();
        *own = own.saturating_add(bytes);
    }

    fn subtract(&mut self, caller: &Arc<str>, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(own) = self.by_caller.get_mut(caller) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_caller.remove(caller);
            }
        }
    }
}

/// The bytes of one request, returned to the budget on drop. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<Reservation>);

#[derive(Debug)]
struct Reservation {
    budget: Arc<Budget>,
    caller: Arc<str>,
    /// Bytes of the request, and how many of them are taken from the budget. The lock is held briefly.
    bytes: Mutex<(usize, usize)>,
}

impl Reservation {
    fn lock(&self) -> MutexGuard<'_, (usize, usize)> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (_, taken) = *self.lock();
        if taken > 0 {
            self.budget.release(&self.caller, taken);
        }
    }
}

impl InFlight {
    pub(crate) fn new(budget: &Arc<Budget>, caller: &Arc<str>) -> Self {
        Self(Arc::new(Reservation { budget: budget.clone(), caller: caller.clone(), bytes: Mutex::default() }))
    }

    /// Waits until the caller may use more bytes, before an answer of unknown size is made. Fails after a time-out.
    pub(crate) async fn wait_for_room(&self) -> Result<(), ApiError> {
        self.0.budget.wait_for_room(&self.0.caller).await
    }

    /// Adds bytes once there is room. Fails after a time-out.
    pub(crate) async fn grow(&self, more: usize) -> Result<(), ApiError> {
        let missing = {
            let mut bytes = self.0.lock();
            bytes.0 = bytes.0.saturating_add(more);
            if bytes.0 > UNCOUNTED { bytes.0.saturating_sub(bytes.1) } else { 0 }
        };
        if missing > 0 {
            let taken = self.0.budget.take(&self.0.caller, missing).await;
            let mut bytes = self.0.lock();
            match taken {
                Ok(()) => bytes.1 = bytes.1.saturating_add(missing.min(self.0.budget.max_per_caller)),
                Err(error) => {
                    bytes.0 = bytes.0.saturating_sub(more);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Adds bytes if there is room now.
    pub(crate) fn try_grow(&self, more: usize) -> bool {
        let mut bytes = self.0.lock();
        let now = bytes.0.saturating_add(more);
        let missing = if now > UNCOUNTED { now.saturating_sub(bytes.1) } else { 0 };
        let is_taken = missing == 0 || self.0.budget.try_take(&self.0.caller, missing);
        if is_taken {
            *bytes = (now, bytes.1.saturating_add(missing));
        }
        is_taken
    }

    /// Sets the bytes, even beyond the budget.
    pub(crate) fn set(&self, now: usize) {
        let mut bytes = self.0.lock();
        let taken = if now > UNCOUNTED { now } else { 0 };
        let before = std::mem::replace(&mut *bytes, (now, taken)).1;
        if taken > before {
            self.0.budget.lock().add(&self.0.caller, taken - before);
        } else if taken < before {
            self.0.budget.release(&self.0.caller, before - taken);
        }
    }

    /// Replaces an expected number of bytes by the actual one, even beyond the budget.
    pub(crate) fn correct(&self, expected: usize, came: usize) {
        let bytes = self.0.lock().0;
        self.set(bytes.saturating_sub(expected).saturating_add(came));
    }

    /// Keeps the bytes of the answer until it is flushed, and returns the rest.
    pub(crate) fn hold(self, response: Response, connection: Arc<Unflushed>) -> Response {
        // A stream of events has no length, and is written in small pieces.
        let length = response.body().size_hint().exact().unwrap_or_default();
        self.set(usize::try_from(length).unwrap_or(usize::MAX));
        if length as usize <= UNCOUNTED {
            return response;
        }
        response.map(|inner| Body::new(CountedBody { inner, held: Some(self), connection }))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InFlight {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let own = parts.extensions.get::<Self>().cloned();
        own.ok_or_else(|| ApiError::new(Code::InternalError, "the request has no byte budget"))
    }
}

/// An answer whose bytes are counted until they are flushed.
struct CountedBody {
    inner: Body,
    held: Option<InFlight>,
    connection: Arc<Unflushed>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        // Before the last frame is returned, so that the flush after it finds the bytes.
        if frame.is_ready()
            && self.inner.is_end_stream()
            && let Some(held) = self.held.take()
        {
            self.connection.hold(held);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KIB: usize = 1024;

    fn budget() -> (Arc<Budget>, Arc<str>, Arc<str>) {
        (Arc::new(Budget::new(100 * KIB, 10 * KIB)), "anna".into(), "ben".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_gets_at_most_half_and_all_together_at_most_the_budget() {
        let (budget, anna, ben) = budget();
        let first = InFlight::new(&budget, &anna);
        first.grow(50 * KIB).await.unwrap();
        let began = Instant::now();
        let refused = InFlight::new(&budget, &anna).grow(5 * KIB).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), began.elapsed()), (503, TIMEOUT));
        let other = InFlight::new(&budget, &ben);
        other.grow(50 * KIB).await.unwrap();
        let carl = InFlight::new(&budget, &"carl".into());
        assert!(carl.grow(5 * KIB).await.is_err(), "nothing is left");
        carl.grow(UNCOUNTED).await.unwrap();
        assert_eq!(budget.taken(), 100 * KIB, "small ones are not counted");
        drop((first, other, carl));
        assert_eq!((budget.taken(), budget.lock().by_caller.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_continues_when_others_have_ended() {
        let (budget, anna, _) = budget();
        let first = InFlight::new(&budget, &anna);
        first.grow(50 * KIB).await.unwrap();
        let second = InFlight::new(&budget, &anna);
        let mut waits = std::pin::pin!(second.grow(20 * KIB));
        assert!(waits.as_mut().now_or_never().is_none());
        first.set(40 * KIB);
        assert!(waits.as_mut().now_or_never().is_none(), "it is not enough");
        drop(first);
        waits.now_or_never().unwrap().unwrap();
        assert_eq!(budget.taken(), 20 * KIB);
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_is_begun_while_the_budget_is_used_up() {
        let (budget, anna, ben) = budget();
        let full = InFlight::new(&budget, &anna);
        full.set(50 * KIB);
        let next = InFlight::new(&budget, &anna);
        let refused = next.wait_for_room().await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        let other = InFlight::new(&budget, &ben);
        other.wait_for_room().now_or_never().unwrap().unwrap();
        full.set(100 * KIB);
        assert!(other.wait_for_room().await.is_err(), "nothing is left for any caller");
        let mut waits = std::pin::pin!(next.wait_for_room());
        assert!(waits.as_mut().now_or_never().is_none());
        full.set(50 * KIB - 1);
        waits.now_or_never().unwrap().unwrap();
        assert_eq!(budget.taken(), 50 * KIB - 1, "a wait takes nothing");
    }

    #[tokio::test]
    async fn actual_bytes_are_counted_even_beyond_the_budget() {
        let (budget, anna, ben) = budget();
        let leased = InFlight::new(&budget, &anna);
        leased.grow(10 * KIB).await.unwrap();
        leased.correct(10 * KIB, 120 * KIB);
        assert_eq!(budget.taken(), 120 * KIB);
        assert!(InFlight::new(&budget, &ben).grow(5 * KIB).now_or_never().is_none());
        leased.set(UNCOUNTED);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_it_is_flushed_or_dropped() {
        use http_body_util::BodyExt;
        let (budget, anna, _) = budget();
        let answer = |length: usize| Response::new(Body::from(vec![b'x'; length]));
        for is_flushed in [true, false] {
            let own = InFlight::new(&budget, &anna);
            own.grow(30 * KIB).await.unwrap();
            let connection = Arc::new(Unflushed::default());
            let mut response = own.hold(answer(20 * KIB), connection.clone());
            assert_eq!(budget.taken(), 20 * KIB);
            if is_flushed {
                assert!(response.body_mut().frame().await.unwrap().is_ok());
                drop(response);
                assert_eq!(budget.taken(), 20 * KIB, "it may be in a buffer of the connection");
                connection.flushed();
            } else {
                drop(response);
            }
            assert_eq!(budget.taken(), 0);
        }
        let own = InFlight::new(&budget, &anna);
        own.grow(30 * KIB).await.unwrap();
        let _small = own.hold(answer(10), Arc::default());
        assert_eq!(budget.taken(), 0);
    }
}
