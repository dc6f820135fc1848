//! A limit on the rate at which messages are started.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::LayerFuture;
use super::unstarted::Unstarted;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Default burst, as a part of the rate. Timers have a resolution of milliseconds: without a burst no rate above a
/// thousand a second could be reached.
const DEFAULT_BURST: Duration = Duration::from_millis(100);

/// Limits the rate at which messages are started; others wait, first come first served.
///
/// A token bucket: it fills at the rate, and after a pause as many messages as it holds start at once. All services of
/// one layer, or of a clone of it, share the bucket.
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    bucket: Arc<Bucket>,
}

impl RateLimitLayer {
    /// At most `messages` messages in the time `per`. A tenth of a second's worth of them may start at once, and at
    /// least one. 0 messages count as 1.
    pub fn new(messages: u32, per: Duration) -> Self {
        let interval = per / messages.max(1);
        let burst = u32::try_from(DEFAULT_BURST.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX);
        Self { bucket: Arc::new(Bucket::new(interval, burst)) }
    }

    /// Sets how many messages may start at once after a pause. 0 counts as 1. Resets the bucket.
    #[must_use]
    pub fn burst(self, messages: u32) -> Self {
        Self { bucket: Arc::new(Bucket::new(self.bucket.interval, messages)) }
    }
}

/// The bucket, represented by the moment at which it will be full, which cannot overflow.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    /// The time in which an empty bucket fills up except for one token.
    tolerance: Duration,
    // A blocking mutex, held for an addition.
    full_at: Mutex<Instant>,
    /// Held by the task that waits for the next token, while the others queue for it. A task that stops waiting takes
    /// no token with it.
    queue: tokio::sync::Mutex<()>,
}

impl Bucket {
    fn new(interval: Duration, burst: u32) -> Self {
        let tolerance = interval.saturating_mul(burst.max(1) - 1);
        Self { interval, tolerance, full_at: Mutex::new(Instant::now()), queue: tokio::sync::Mutex::new(()) }
    }

    /// Takes a token, or returns when there will be one.
    fn take(&self, now: Instant) -> Result<(), Instant> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = now.max(*full_at);
        if from.duration_since(now) > self.tolerance {
            return Err(from - self.tolerance);
        }
        // If the next token is beyond the range of the clock, there is never another.
        *full_at = from.checked_add(self.interval).unwrap_or(from + Duration::from_secs(100 * 365 * 24 * 3600));
        Ok(())
    }

    async fn token(&self) {
        let _first = self.queue.lock().await;
        while let Err(at) = self.take(Instant::now()) {
            tokio::time::sleep_until(at).await;
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, bucket: self.bucket.clone() }
    }
}

/// The service of [`RateLimitLayer`].
#[derive(Debug, Clone)]
pub struct RateLimit<S> {
    inner: S,
    bucket: Arc<Bucket>,
}

impl<S> Service<Delivery> for RateLimit<S>
where
    S: Service<Delivery, Error = HandlerError, Future: Send + 'static> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = HandlerError;
    type Future = LayerFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let bucket = self.bucket.clone();
        // The ready service goes with the message; its clone must become ready again.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        async move {
            Unstarted::new(&delivery).wait(bucket.token()).await?;
            ready.call(delivery).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use postrider_core::{Disposition, Nack};
    use tower::ServiceExt;

    use super::*;
    use crate::handler;
    use crate::testing::delivery;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs messages at once and returns when each was started, in milliseconds.
    async fn begun(layer: &RateLimitLayer, messages: usize) -> Vec<u128> {
        let start = Instant::now();
        let (begins, begun) = mpsc::channel();
        let service = layer.layer(handler(move || {
            begins.send(start.elapsed().as_millis()).unwrap();
            async {}
        }));
        let calls = (0..messages).map(|_| service.clone().oneshot(delivery("")));
        for outcome in futures_util::future::join_all(calls).await {
            outcome.unwrap();
        }
        begun.try_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_spread_over_the_time() {
        assert_eq!(begun(&RateLimitLayer::new(4, SECOND), 5).await, [0, 250, 500, 750, 1000]);
        assert_eq!(begun(&RateLimitLayer::new(0, SECOND), 2).await, [0, 1000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_fills_the_bucket_and_no_more() {
        let layer = RateLimitLayer::new(10, SECOND).burst(3);
        assert_eq!(begun(&layer, 5).await, [0, 0, 0, 100, 200]);
        tokio::time::sleep(SECOND * 60).await;
        assert_eq!(begun(&layer, 5).await, [0, 0, 0, 100, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_above_the_timers_resolution_is_reached() {
        let took = *begun(&RateLimitLayer::new(10_000, SECOND), 11_000).await.last().unwrap();
        assert!((990..=1010).contains(&took), "1 000 at once and 10 000 in a second: {took} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_takes_no_token() {
        let layer = RateLimitLayer::new(1, SECOND);
        assert_eq!(begun(&layer, 1).await, [0]);
        let given_up = tokio::time::timeout(SECOND / 2, begun(&layer, 3)).await;
        assert!(given_up.is_err());
        assert_eq!(begun(&layer, 1).await, [500], "the next token is for the first that waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_message_is_released_unstarted() {
        let layer = RateLimitLayer::new(1, SECOND);
        assert_eq!(begun(&layer, 1).await, [0]);
        let waiting = delivery("");
        let (control, token) = (waiting.control().clone(), waiting.cancellation().clone());
        let call = tokio::spawn(layer.layer(handler(async || ())).oneshot(waiting));
        tokio::task::yield_now().await;
        token.cancel();
        call.await.unwrap().unwrap_err();
        assert_eq!(control.decided(), Some(Disposition::Nack(Nack::Release)));
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_rates_work() {
        for (messages, per) in [(u32::MAX, Duration::ZERO), (1, Duration::MAX), (u32::MAX, Duration::MAX)] {
            assert_eq!(begun(&RateLimitLayer::new(messages, per).burst(u32::MAX), 1).await, [0], "{messages} {per:?}");
        }
    }
}
