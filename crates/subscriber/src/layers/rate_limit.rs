//! A bound on how many messages are begun in a time.

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

/// How much of a rate may come at once, unless told otherwise. Timers have milliseconds: without a burst no rate above
/// a thousand a second could be kept up.
const DEFAULT_BURST: Duration = Duration::from_millis(100);

/// Begins only so many messages in a time, spread over it; the others wait, first come first served.
///
/// A token bucket: it fills at the rate, and after a pause as many messages as it holds begin at once. All services
/// that one layer, or a clone of it, was put around share the bucket.
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    bucket: Arc<Bucket>,
}

impl RateLimitLayer {
    /// So many messages in that time. At most a tenth of a second's worth of them begins at once, and at least one.
    /// A number of 0 counts as 1.
    pub fn new(messages: u32, per: Duration) -> Self {
        let interval = per / messages.max(1);
        let burst = u32::try_from(DEFAULT_BURST.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX);
        Self { bucket: Arc::new(Bucket::new(interval, burst)) }
    }

    /// At most so many at once, after a pause. 0 counts as 1. What has been begun before is forgotten.
    #[must_use]
    pub fn burst(self, messages: u32) -> Self {
        Self { bucket: Arc::new(Bucket::new(self.bucket.interval, messages)) }
    }
}

/// The bucket, as the moment at which it will be full: that is all there is to know, and it cannot overflow.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    /// How long an empty bucket takes to be full but for one token.
    tolerance: Duration,
    // A plain lock, held for a sum.
    full_at: Mutex<Instant>,
    /// Held by the one who waits for the next token, so that the others stand in line behind it. Nobody owns a token
    /// that has not come: whoever stops waiting takes nothing along.
    line: tokio::sync::Mutex<()>,
}

impl Bucket {
    fn new(interval: Duration, burst: u32) -> Self {
        let tolerance = interval.saturating_mul(burst.max(1) - 1);
        Self { interval, tolerance, full_at: Mutex::new(Instant::now()), line: tokio::sync::Mutex::new(()) }
    }

    /// Takes a token, or says when there will be one.
    fn take(&self, now: Instant) -> Result<(), Instant> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = now.max(*full_at);
        if from.duration_since(now) > self.tolerance {
            return Err(from - self.tolerance);
        }
        // A rate so slow that its next token is beyond the clock never has another.
        *full_at = from.checked_add(self.interval).unwrap_or(from + Duration::from_secs(100 * 365 * 24 * 3600));
        Ok(())
    }

    async fn token(&self) {
        let _first_in_line = self.line.lock().await;
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
    S: Service<Delivery, Response = (), Error = HandlerError, Future: Send + 'static> + Clone + Send + 'static,
{
    type Response = ();
    type Error = HandlerError;
    type Future = LayerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> LayerFuture {
        let bucket = self.bucket.clone();
        // The one that is ready goes with the message; its clone is asked again.
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

    /// Runs so many messages at once and answers when each was begun, in milliseconds.
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
    async fn a_rate_beyond_the_timers_is_kept_up() {
        let took = *begun(&RateLimitLayer::new(10_000, SECOND), 11_000).await.last().unwrap();
        assert!((990..=1010).contains(&took), "1 000 at once and 10 000 in a second: {took} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_takes_no_token_along() {
        let layer = RateLimitLayer::new(1, SECOND);
        assert_eq!(begun(&layer, 1).await, [0]);
        let given_up = tokio::time::timeout(SECOND / 2, begun(&layer, 3)).await;
        assert!(given_up.is_err());
        assert_eq!(begun(&layer, 1).await, [500], "the next token is the first in line's");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_not_wanted_any_more_goes_back_unstarted() {
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
    async fn any_rate_has_an_answer() {
        for (messages, per) in [(u32::MAX, Duration::ZERO), (1, Duration::MAX), (u32::MAX, Duration::MAX)] {
            assert_eq!(begun(&RateLimitLayer::new(messages, per).burst(u32::MAX), 1).await, [0], "{messages} {per:?}");
        }
    }
}
