//! Bytes in flight: bodies of requests while they are read and carried out, and answers until they are written.
//!
//! A bound of each request alone leaves memory to the number of requests. Here all of them share one budget. Who needs
//! more waits until others have ended, for a while, and is then told to come again later. No caller has more than half, so
//! that one who sends slowly, or does not read, leaves room for the others; time-outs end both.
//!
//! **What was rejected.** To reserve what a receive could bring at most: thousands of clients that wait for nothing would
//! take all of the budget. What a receive has brought is counted when it is there, whether there is room or not, and the
//! next ones wait.

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

/// How long a request waits for room.
const PATIENCE: Duration = Duration::from_secs(5);

/// When a request that was refused may come again, in seconds.
const RETRY_AFTER: u64 = 2;

/// Requests and answers of so many bytes are not counted: there are no more of them than connections.
const FREE: usize = 4096;

#[derive(Debug, Default)]
struct Taken {
    in_all: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    most_of_a_caller: usize,
    /// A lock, held for a look.
    taken: Mutex<Taken>,
    /// Told when something was given back.
    freed: Notify,
}

impl Budget {
    /// So many bytes in all. A caller has room for one request of the largest size, whatever half of it is.
    pub(crate) fn new(most: usize, largest_request: usize) -> Self {
        let most_of_a_caller = (most / 2).max(largest_request.min(most));
        Self { most, most_of_a_caller, taken: Mutex::default(), freed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are taken.
    #[cfg(test)]
    fn taken(&self) -> usize {
        self.lock().in_all
    }

    /// Takes so many bytes, if there is room.
    fn try_take(&self, caller: &Arc<str>, bytes: usize) -> bool {
        let mut taken = self.lock();
        let own = taken.by_caller.get(caller).copied().unwrap_or_default();
        let fits =
            taken.in_all.saturating_add(bytes) <= self.most && own.saturating_add(bytes) <= self.most_of_a_caller;
        if fits {
            taken.add(caller, bytes);
        }
        fits
    }

    async fn take(&self, caller: &Arc<str>, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes.min(self.most_of_a_caller);
        self.wait_until(|| self.try_take(caller, bytes)).await
    }

    /// Waits while nothing is left for a caller.
    async fn wait_for_room(&self, caller: &Arc<str>) -> Result<(), ApiError> {
        let has_room = || {
            let taken = self.lock();
            let own = taken.by_caller.get(caller).copied().unwrap_or_default();
            taken.in_all < self.most && own < self.most_of_a_caller
        };
        self.wait_until(has_room).await
    }

    async fn wait_until(&self, is_so: impl Fn() -> bool) -> Result<(), ApiError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Before the look, so that what is given back between look and wait is not missed.
            freed.as_mut().enable();
            if is_so() {
                return Ok(());
            }
            if tokio::time::timeout_at(until, freed).await.is_err() {
                let why = "the memory for requests and answers is taken by others; repeat the request a little later, ask \
                           for less at once, or raise server.max_bytes_in_flight";
                return Err(ApiError::new(Code::ServerBusy, why).retry_after(RETRY_AFTER));
            }
        }
    }

    fn give_back(&self, caller: &Arc<str>, bytes: usize) {
        self.lock().subtract(caller, bytes);
        self.freed.notify_waiters();
    }
}

impl Taken {
    fn add(&mut self, caller: &Arc<str>, bytes: usize) {
        self.in_all = self.in_all.saturating_add(bytes);
        let own = self.by_caller.entry(caller.clone()).or_default();
        *own = own.saturating_add(bytes);
    }

    fn subtract(&mut self, caller: &Arc<str>, bytes: usize) {
        self.in_all = self.in_all.saturating_sub(bytes);
        if let Some(own) = self.by_caller.get_mut(caller) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_caller.remove(caller);
            }
        }
    }
}

/// What one request has of the budget; dropped, it goes back. Clones are of the same request.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<Own>);

#[derive(Debug)]
struct Own {
    budget: Arc<Budget>,
    caller: Arc<str>,
    /// How many bytes the request has, and how many of them are taken of the budget. A lock, held for a look.
    bytes: Mutex<(usize, usize)>,
}

impl Own {
    fn lock(&self) -> MutexGuard<'_, (usize, usize)> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let (_, taken) = *self.lock();
        if taken > 0 {
            self.budget.give_back(&self.caller, taken);
        }
    }
}

impl InFlight {
    pub(crate) fn new(budget: &Arc<Budget>, caller: &Arc<str>) -> Self {
        Self(Arc::new(Own { budget: budget.clone(), caller: caller.clone(), bytes: Mutex::default() }))
    }

    /// Waits while nothing is left for the caller. What an answer has is counted when it is there, so that none is begun
    /// before. Refused when there is nothing for a while.
    pub(crate) async fn wait_for_room(&self) -> Result<(), ApiError> {
        self.0.budget.wait_for_room(&self.0.caller).await
    }

    /// So many bytes more, as soon as there is room. Refused when there is none for a while.
    pub(crate) async fn grow(&self, more: usize) -> Result<(), ApiError> {
        let missing = {
            let mut bytes = self.0.lock();
            bytes.0 = bytes.0.saturating_add(more);
            if bytes.0 > FREE { bytes.0.saturating_sub(bytes.1) } else { 0 }
        };
        if missing > 0 {
            let taken = self.0.budget.take(&self.0.caller, missing).await;
            let mut bytes = self.0.lock();
            match taken {
                Ok(()) => bytes.1 = bytes.1.saturating_add(missing.min(self.0.budget.most_of_a_caller)),
                Err(error) => {
                    bytes.0 = bytes.0.saturating_sub(more);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The same at once or not at all.
    pub(crate) fn try_grow(&self, more: usize) -> bool {
        let mut bytes = self.0.lock();
        let now = bytes.0.saturating_add(more);
        let missing = if now > FREE { now.saturating_sub(bytes.1) } else { 0 };
        let is_taken = missing == 0 || self.0.budget.try_take(&self.0.caller, missing);
        if is_taken {
            *bytes = (now, bytes.1.saturating_add(missing));
        }
        is_taken
    }

    /// There are so many bytes now, whether there is room or not.
    pub(crate) fn set(&self, now: usize) {
        let mut bytes = self.0.lock();
        let taken = if now > FREE { now } else { 0 };
        let before = std::mem::replace(&mut *bytes, (now, taken)).1;
        if taken > before {
            self.0.budget.lock().add(&self.0.caller, taken - before);
        } else if taken < before {
            self.0.budget.give_back(&self.0.caller, before - taken);
        }
    }

    /// The same for more or fewer than were expected.
    pub(crate) fn correct(&self, expected: usize, came: usize) {
        let bytes = self.0.lock().0;
        self.set(bytes.saturating_sub(expected).saturating_add(came));
    }

    /// Keeps what an answer needs until it is written, and gives back the rest.
    pub(crate) fn hold(self, response: Response, connection: Arc<Unflushed>) -> Response {
        // A stream of events has no length, and is written piece by piece.
        let length = response.body().size_hint().exact().unwrap_or_default();
        self.set(usize::try_from(length).unwrap_or(usize::MAX));
        if length as usize <= FREE {
            return response;
        }
        response.map(|inner| Body::new(Held { inner, held: Some(self), connection }))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InFlight {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let own = parts.extensions.get::<Self>().cloned();
        own.ok_or_else(|| ApiError::new(Code::InternalError, "the request is not counted"))
    }
}

/// An answer whose bytes are counted until they have left the process.
struct Held {
    inner: Body,
    held: Option<InFlight>,
    connection: Arc<Unflushed>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        // Before the last piece is handed on, so that a flush that follows it finds what is held.
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
    async fn no_caller_has_more_than_half_and_all_together_no_more_than_there_is() {
        let (budget, anna, ben) = budget();
        let first = InFlight::new(&budget, &anna);
        first.grow(50 * KIB).await.unwrap();
        let began = Instant::now();
        let refused = InFlight::new(&budget, &anna).grow(5 * KIB).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), began.elapsed()), (503, PATIENCE));
        let other = InFlight::new(&budget, &ben);
        other.grow(50 * KIB).await.unwrap();
        let carl = InFlight::new(&budget, &"carl".into());
        assert!(carl.grow(5 * KIB).await.is_err(), "nothing is left");
        carl.grow(FREE).await.unwrap();
        assert_eq!(budget.taken(), 100 * KIB, "small ones are not counted");
        drop((first, other, carl));
        assert_eq!((budget.taken(), budget.lock().by_caller.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_goes_on_when_others_have_ended() {
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
    async fn nothing_is_begun_while_all_is_taken() {
        let (budget, anna, ben) = budget();
        let full = InFlight::new(&budget, &anna);
        full.set(50 * KIB);
        let next = InFlight::new(&budget, &anna);
        let refused = next.wait_for_room().await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        let other = InFlight::new(&budget, &ben);
        other.wait_for_room().now_or_never().unwrap().unwrap();
        full.set(100 * KIB);
        assert!(other.wait_for_room().await.is_err(), "nothing is left for anybody");
        let mut waits = std::pin::pin!(next.wait_for_room());
        assert!(waits.as_mut().now_or_never().is_none());
        full.set(50 * KIB - 1);
        waits.now_or_never().unwrap().unwrap();
        assert_eq!(budget.taken(), 50 * KIB - 1, "a wait takes nothing");
    }

    #[tokio::test]
    async fn what_is_there_is_counted_whether_there_is_room_or_not() {
        let (budget, anna, ben) = budget();
        let leased = InFlight::new(&budget, &anna);
        leased.grow(10 * KIB).await.unwrap();
        leased.correct(10 * KIB, 120 * KIB);
        assert_eq!(budget.taken(), 120 * KIB);
        assert!(InFlight::new(&budget, &ben).grow(5 * KIB).now_or_never().is_none());
        leased.set(FREE);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_it_is_flushed_or_given_up() {
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
                assert_eq!(budget.taken(), 20 * KIB, "it may stand in a buffer of the connection");
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
