//! Layers around a handler.
//!
//! Each is a [`tower_layer::Layer`] over any service of messages, so they combine with layers of `tower` and your own.
//! Each returns the answer of the service, whatever its type, but for [`IdempotencyLayer`]: it keeps no answers.
//! Each wraps the handler and the layers before it, so the last is the outermost and sees a message first:
//!
//! ```
//! use std::time::Duration;
//! use postrider_subscriber::Subscriber;
//! use postrider_subscriber::layers::{RateLimitLayer, TimeoutLayer, TraceLayer};
//!
//! # fn build(provider: postrider_core::MemoryProvider) -> Result<(), postrider_core::MessagingError> {
//! let subscriber = Subscriber::builder(provider, "orders")
//!     .handler(async |text: String| println!("{text}"))
//!     .layer(TimeoutLayer::new(Duration::from_secs(5)))
//!     .layer(RateLimitLayer::new(100, Duration::from_secs(1)))
//!     .layer(TraceLayer::new())
//!     .build()?;
//! # let _ = subscriber;
//! # Ok(())
//! # }
//! ```
//!
//! Limits wait inside the call, with the message, and not in `poll_ready`. A service that is ready keeps its permit
//! until it is called; workers that are ready and have no message would then hold every permit of a limit that is
//! shared with a busy queue, and every token of a rate, and spend them all at the same moment later. The lease is
//! renewed during the wait, and a message that gets no permit before a stop is released. Put a time-out inside a limit,
//! so that the wait does not count as work.

mod concurrency;
mod idempotency;
mod rate_limit;
mod timeout;
mod trace;
mod trace_context;
mod unstarted;

use futures_util::future::BoxFuture;

use crate::error::HandlerError;

pub use concurrency::{ConcurrencyLimit, ConcurrencyLimitLayer};
pub use idempotency::{Idempotency, IdempotencyLayer};
pub use rate_limit::{RateLimit, RateLimitLayer};
pub use timeout::{Timeout, TimeoutLayer};
pub use trace::{Trace, TraceLayer};
pub use trace_context::TraceContext;

/// The future of a layer's service.
pub type LayerFuture<Answer = ()> = BoxFuture<'static, Result<Answer, HandlerError>>;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use postrider_core::MemoryStore;
    use tower::{ServiceBuilder, ServiceExt};
    use tower_service::Service;

    use super::*;
    use crate::testing::delivery;
    use crate::{Attempt, Delivery, State, handler};

    /// Calls a service as a subscriber does.
    async fn run<S>(service: S) -> Result<(), HandlerError>
    where
        S: Service<Delivery, Response = (), Error = HandlerError, Future: Send + 'static>,
        S: Clone + Send + Sync + 'static,
    {
        service.clone().oneshot(delivery("")).await
    }

    #[tokio::test(start_paused = true)]
    async fn all_layers_can_wrap_one_handler() {
        let runs = Arc::new(AtomicU32::new(0));
        let service = ServiceBuilder::new()
            .layer(TraceLayer::new())
            .layer(ConcurrencyLimitLayer::new(8))
            .layer(ConcurrencyLimitLayer::per_header(1, "tenant"))
            .layer(RateLimitLayer::new(100, Duration::from_secs(1)))
            .layer(IdempotencyLayer::new(MemoryStore::new().open()))
            .layer(TimeoutLayer::new(Duration::from_secs(5)))
            .service(handler(count).with_state(runs.clone()));
        run(service).await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    async fn count(State(runs): State<Arc<AtomicU32>>, Attempt(attempt): Attempt) {
        runs.fetch_add(attempt, Ordering::SeqCst);
    }
}
