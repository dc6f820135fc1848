//! A limit on the run time of a handler.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;

use super::LayerFuture;
use crate::batch::BatchResults;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Ends a handler that takes too long, as a failure of kind [`TimedOut`](crate::ErrorKind::TimedOut).
///
/// The message's token is cancelled and the handler's future is dropped. Tasks and threads that the handler has started
/// go on unless they watch the token.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer {
    after: Duration,
}

impl TimeoutLayer {
    /// A time limit for each attempt.
    pub const fn new(after: Duration) -> Self {
        Self { after }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout { inner, after: self.after }
    }
}

/// The service of [`TimeoutLayer`].
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    after: Duration,
}

impl<S> Service<Delivery> for Timeout<S>
where
    S: Service<Delivery, Response: 'static, Error = HandlerError, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = HandlerError;
    type Future = LayerFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let token = delivery.cancellation().clone();
        limited(self.after, vec![token], self.inner.call(delivery)).boxed()
    }
}

/// A batch ends as a whole: each of its messages has failed.
impl<S> Service<Vec<Delivery>> for Timeout<S>
where
    S: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError, Future: Send + 'static>,
{
    type Response = BatchResults;
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<BatchResults, HandlerError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, batch: Vec<Delivery>) -> Self::Future {
        let tokens = batch.iter().map(|delivery| delivery.cancellation().clone()).collect();
        limited(self.after, tokens, self.inner.call(batch)).boxed()
    }
}

async fn limited<T>(
    after: Duration,
    tokens: Vec<CancellationToken>,
    running: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    let mut running = Box::pin(running);
    match tokio::time::timeout(after, &mut running).await {
        Ok(outcome) => outcome,
        Err(_) => {
            // Before the future is dropped, so that the values that it owns can see the reason.
            tokens.iter().for_each(CancellationToken::cancel);
            drop(running);
            Err(HandlerError::timed_out(after))
        }
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::testing::delivery;
    use crate::{ErrorKind, batch_handler, handler};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_takes_too_long_is_cancelled_and_dropped() {
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(Some(ended)));
        let slow = handler(move |token: CancellationToken| {
            struct OnDrop(CancellationToken, Option<tokio::sync::oneshot::Sender<bool>>);
            impl Drop for OnDrop {
                fn drop(&mut self) {
                    let _ = self.1.take().unwrap().send(self.0.is_cancelled());
                }
            }
            let held = OnDrop(token, ended.lock().unwrap().take());
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        });
        let began = tokio::time::Instant::now();
        let delivery = delivery("");
        let token = delivery.cancellation().clone();
        let error = TimeoutLayer::new(SECOND).layer(slow).oneshot(delivery).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the handler took longer than 1s");
        assert_eq!(began.elapsed(), SECOND);
        assert!(token.is_cancelled());
        assert!(has_ended.await.unwrap(), "the token was cancelled before the handler was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_is_done_in_time_is_left_alone() {
        let quick = handler(async || {
            tokio::time::sleep(SECOND / 2).await;
            Err::<(), _>("its own failure")
        });
        let delivery = delivery("");
        let token = delivery.cancellation().clone();
        let error = TimeoutLayer::new(SECOND).layer(quick).oneshot(delivery).await.unwrap_err();
        assert_eq!((*error.kind(), error.to_string()), (ErrorKind::Retryable, "its own failure".into()));
        assert!(!token.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_takes_too_long_is_cancelled_and_dropped() {
        let slow = batch_handler(|_: Vec<Delivery>| std::future::pending::<Result<(), HandlerError>>());
        let batch: Vec<_> = ["a", "b"].map(delivery).into();
        let tokens: Vec<_> = batch.iter().map(|delivery| delivery.cancellation().clone()).collect();
        let error = TimeoutLayer::new(SECOND).layer(slow).oneshot(batch).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::TimedOut);
        assert!(tokens.iter().all(CancellationToken::is_cancelled));
    }
}
