//! Building a subscriber.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Envelope, MessagingError, MessagingService, QueueName, RetryStrategy};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;

use crate::batch::{BatchResults, IntoBatchHandler};
use crate::buffer::{Buffer, PerKey};
use crate::counters::{Counters, Metrics};
use crate::delivery::Delivery;
use crate::engine::{Engine, Shared};
use crate::error::HandlerError;
use crate::handler::IntoHandler;
use crate::observer::{EndedMessages, Observer};
use crate::options::{AckPolicy, SubscriberOptions};
use crate::queues::{self, IntoQueues};
use crate::run::{Batches, OneByOne, Run};
use crate::subscriber::Subscriber;

/// Placeholder until a handler is given.
#[derive(Debug, Clone, Copy)]
pub struct NoHandler;

/// A limit on handlers that run at the same time, over all subscribers that share it. Clones are the same limit.
#[derive(Debug, Clone)]
pub struct WorkLimit {
    permits: Arc<Semaphore>,
    max: usize,
}

impl WorkLimit {
    /// At most `max` handlers.
    pub fn new(max: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))), max }
    }
}

/// Builds a subscriber. Everything but the queue and the handler has a default.
pub struct SubscriberBuilder<P, R> {
    provider: P,
    queues: Result<Vec<QueueName>, MessagingError>,
    runner: R,
    options: SubscriberOptions,
    per_key: Option<PerKey>,
    limit: Option<WorkLimit>,
    metrics: Option<Arc<dyn Metrics>>,
    observer: Option<Arc<dyn Observer>>,
}

impl<P: MessagingService> SubscriberBuilder<P, NoHandler> {
    pub(crate) fn new(provider: P, queues: impl IntoQueues) -> Self {
        Self {
            provider,
            // `build` returns the error, with all others.
            queues: queues.into_queues(),
            runner: NoHandler,
            options: SubscriberOptions::default(),
            per_key: None,
            limit: None,
            metrics: None,
            observer: None,
        }
    }

    /// Sets the handler: a function or service of one message.
    pub fn handler<H: IntoHandler<Kind>, Kind>(self, handler: H) -> SubscriberBuilder<P, OneByOne<H::Service>> {
        self.with_runner(|NoHandler| OneByOne(handler.into_handler()))
    }

    /// Sets the handler: a function or service of `Vec<Delivery>`. Each call gets up to `max` of the waiting messages,
    /// without waiting for more.
    ///
    /// A batch occupies one worker. Up to `max_workers × max` messages run at a time, and `overfetch_factor` counts
    /// from there.
    pub fn batch_handler<H: IntoBatchHandler<Kind>, Kind>(
        self,
        handler: H,
        max: usize,
    ) -> SubscriberBuilder<P, Batches<H::Service>> {
        self.with_runner(|NoHandler| Batches { service: handler.into_batch_handler(), at_a_time: max })
    }
}

impl<P, S> SubscriberBuilder<P, OneByOne<S>> {
    /// Wraps the handler and its layers in another layer: the last is the outermost, and sees a message first.
    ///
    /// A stack of a [`tower::ServiceBuilder`] is a layer as well; there the first is the outermost.
    pub fn layer<L>(self, layer: L) -> SubscriberBuilder<P, OneByOne<L::Service>>
    where
        L: Layer<S>,
        L::Service:
            Service<Delivery, Response = (), Error = HandlerError, Future: Send> + Clone + Send + Sync + 'static,
    {
        self.with_runner(|OneByOne(service)| OneByOne(layer.layer(service)))
    }
}

impl<P, S> SubscriberBuilder<P, Batches<S>> {
    /// Wraps the handler and its layers in another layer: the last is the outermost, and sees a batch first.
    pub fn layer<L>(self, layer: L) -> SubscriberBuilder<P, Batches<L::Service>>
    where
        L: Layer<S>,
        L::Service: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError, Future: Send>,
        L::Service: Clone + Send + Sync + 'static,
    {
        self.with_runner(|Batches { service, at_a_time }| Batches { service: layer.layer(service), at_a_time })
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $option:ident: $type:ty $(=> $wrap:path)?;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $option(mut self, $option: $type) -> Self {
                self.options.$option = setters!(@wrap $($wrap)?, $option);
                self
            }
        )*
    };
    (@wrap , $value:ident) => { $value };
    (@wrap $wrap:path, $value:ident) => { $wrap($value) };
}

impl<P, R> SubscriberBuilder<P, R> {
    fn with_runner<T>(self, change: impl FnOnce(R) -> T) -> SubscriberBuilder<P, T> {
        let Self { provider, queues, runner, options, per_key, limit, metrics, observer } = self;
        SubscriberBuilder { provider, queues, runner: change(runner), options, per_key, limit, metrics, observer }
    }

    /// Sets all options.
    #[must_use]
    pub fn options(mut self, options: SubscriberOptions) -> Self {
        self.options = options;
        self
    }

    setters! {
        /// Number of handlers that run at the same time.
        max_workers: usize;
        /// Decides when a failed message is retried.
        retry_strategy: RetryStrategy;
        /// Decides when a message is acknowledged.
        ack_policy: AckPolicy;
        /// Upper bound of messages in one fetch.
        fetch_batch_size: usize;
        /// Number of leased messages for each handler that can run.
        overfetch_factor: f64 => Some;
        /// The shortest time between two fetches.
        min_fetch_interval: Duration;
        /// The longest time between two fetches of an idle subscriber.
        max_fetch_interval: Duration;
        /// The longest time that a settlement waits for the next fetch.
        flush_interval: Duration;
        /// Interval at which handlers that outlived their lease are dropped.
        release_stuck_interval: Duration;
        /// Time after its delivery at which a handler that has lost its lease is dropped.
        release_stuck_timeout: Duration => Some;
        /// Number of deliveries after which a message is dead-lettered unread.
        max_deliveries: u32 => Some;
        /// Time for running handlers to end after a stop is requested.
        graceful_timeout: Duration;
        /// Time after that for handlers to end when their token is cancelled.
        cancel_timeout: Duration;
        /// Whether to stop when a fetch finds nothing and no message is leased.
        stop_when_empty: bool;
        /// Length of a lease.
        visibility: Duration;
    }

    /// Limits the handlers of this subscriber that run at the same time for messages with the same key by `key_of`.
    ///
    /// For keys that the store does not order by, such as a tenant in a header; messages with the same ordering key are
    /// handled one at a time anyway. A message whose key is at its limit waits, leased, while others pass it. The
    /// buffer does not grow for it, so many messages of one key leave less space for others.
    #[must_use]
    pub fn max_per_key(
        mut self,
        max: usize,
        key_of: impl Fn(&Envelope) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.per_key = Some(PerKey { max, key_of: Arc::new(key_of) });
        self
    }

    /// Shares a limit on running handlers with other subscribers.
    #[must_use]
    pub fn work_limit(mut self, limit: &WorkLimit) -> Self {
        self.limit = Some(limit.clone());
        self
    }

    /// Reports everything that is counted to `metrics`.
    #[must_use]
    pub fn metrics(mut self, metrics: impl Metrics) -> Self {
        self.metrics = Some(Arc::new(metrics));
        self
    }

    /// Reports each message to `observer`.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl<P: MessagingService, R> SubscriberBuilder<P, R> {
    /// Builds the subscriber; an error if the options are invalid.
    // The bound is on the function and not on the impl, or the compiler would not name the missing handler.
    pub fn build(self) -> Result<Subscriber<P, R>, MessagingError>
    where
        R: Run,
    {
        let Self { provider, queues, runner, options, per_key, limit, metrics, observer } = self;
        let queues = queues?;
        queues::check(&queues)?;
        if per_key.as_ref().is_some_and(|per_key| per_key.max == 0) {
            return Err(MessagingError::invalid("max_per_key", "0: no handler would ever run; use at least 1"));
        }
        if limit.as_ref().is_some_and(|limit| limit.max == 0) {
            return Err(MessagingError::invalid("work_limit", "0: no handler would ever run; use at least 1"));
        }
        let plan = Arc::new(options.plan(runner.at_a_time(), provider.capabilities())?);
        let mut buffer = Buffer::new(plan.clone(), per_key.as_ref().map(|per_key| per_key.max), Instant::now());
        buffer.ended = EndedMessages::new(observer.is_some());
        let shared = Arc::new(Shared::new(buffer, Counters::new(metrics), observer));
        let limit = limit.map(|limit| limit.permits);
        let engine = Arc::new(Engine {
            provider,
            queues,
            plan,
            shared,
            per_key,
            limit,
            closed: CancellationToken::new(),
            empty: CancellationToken::new(),
        });
        Ok(Subscriber { engine, runner })
    }
}

impl<P, R> fmt::Debug for SubscriberBuilder<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriberBuilder")
            .field("queues", &self.queues)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
