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
use crate::engine::{Desk, Engine};
use crate::error::HandlerError;
use crate::handler::IntoHandler;
use crate::observer::{Observer, ToTell};
use crate::options::{AckPolicy, SubscriberOptions};
use crate::queues::{self, IntoQueues};
use crate::run::{Batches, OneByOne, Run};
use crate::subscriber::Subscriber;

/// The place of a handler that has not been named yet.
#[derive(Debug, Clone, Copy)]
pub struct NoHandler;

/// How many handlers may run at the same time, in all subscribers that share it. Clones are the same limit.
#[derive(Debug, Clone)]
pub struct WorkLimit {
    places: Arc<Semaphore>,
    most: usize,
}

impl WorkLimit {
    /// At most that many.
    pub fn new(most: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), most }
    }
}

/// A subscriber in the making. Everything but the queue and the handler has a default.
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
            // Told by `build`, with everything else that is wrong.
            queues: queues.into_queues(),
            runner: NoHandler,
            options: SubscriberOptions::default(),
            per_key: None,
            limit: None,
            metrics: None,
            observer: None,
        }
    }

    /// Handled by this function or service, one message a call.
    pub fn handler<H: IntoHandler<Kind>, Kind>(self, handler: H) -> SubscriberBuilder<P, OneByOne<H::Service>> {
        self.with_runner(|NoHandler| OneByOne(handler.into_handler()))
    }

    /// Handled by this function or service of `Vec<Delivery>`, up to `most` messages a call: whatever is there, without
    /// waiting for more.
    ///
    /// A batch holds one worker. Up to `max_workers × most` messages run at a time, and `overfetch_factor` counts from
    /// there.
    pub fn batch_handler<H: IntoBatchHandler<Kind>, Kind>(
        self,
        handler: H,
        most: usize,
    ) -> SubscriberBuilder<P, Batches<H::Service>> {
        self.with_runner(|NoHandler| Batches { service: handler.into_batch_handler(), at_a_time: most })
    }
}

impl<P, S> SubscriberBuilder<P, OneByOne<S>> {
    /// Puts a layer around the handler and the layers that it has: the last is the outermost, and sees a message first.
    ///
    /// A stack that a [`tower::ServiceBuilder`] holds is a layer as well; there the first is the outermost.
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
    /// Puts a layer around the handler and the layers that it has: the last is the outermost, and sees a batch first.
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

    /// All options at once.
    #[must_use]
    pub fn options(mut self, options: SubscriberOptions) -> Self {
        self.options = options;
        self
    }

    setters! {
        /// How many handlers run at the same time.
        max_workers: usize;
        /// When a failed message is tried again.
        retry_strategy: RetryStrategy;
        /// When a message is acknowledged.
        ack_policy: AckPolicy;
        /// How many messages one fetch asks for at most.
        fetch_batch_size: usize;
        /// How many messages are leased for each handler that can run.
        overfetch_factor: f64 => Some;
        /// The shortest time between two fetches.
        min_fetch_interval: Duration;
        /// The longest time between two fetches of an idle subscriber.
        max_fetch_interval: Duration;
        /// The longest time that a settlement waits for a fetch to travel with.
        flush_interval: Duration;
        /// How often to look for handlers that outlived their lease.
        release_stuck_interval: Duration;
        /// How long after its delivery a handler that has lost its lease may hold its worker.
        release_stuck_timeout: Duration => Some;
        /// How often a message is delivered before it is dead-lettered unseen.
        max_deliveries: u32 => Some;
        /// How long running handlers may go on after a stop was asked for.
        graceful_timeout: Duration;
        /// How long after that they may take to obey their cancelled token.
        cancel_timeout: Duration;
        /// Whether to stop when a fetch finds nothing and nothing is at work.
        stop_when_empty: bool;
        /// How long a lease lasts.
        visibility: Duration;
    }

    /// At most `most` handlers at the same time for messages that `key_of` gives the same key, in this subscriber.
    ///
    /// For keys that the store does not order by, such as a tenant in a header; messages with the same ordering key are
    /// handled one at a time anyway. A message whose key is at its limit waits, leased, and others pass it; the buffer
    /// is not larger for it, so many messages of one key leave less room for others.
    #[must_use]
    pub fn max_per_key(
        mut self,
        most: usize,
        key_of: impl Fn(&Envelope) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.per_key = Some(PerKey { most, key_of: Arc::new(key_of) });
        self
    }

    /// Shares a limit on running handlers with other subscribers.
    #[must_use]
    pub fn work_limit(mut self, limit: &WorkLimit) -> Self {
        self.limit = Some(limit.clone());
        self
    }

    /// Tells `metrics` of everything that is counted.
    #[must_use]
    pub fn metrics(mut self, metrics: impl Metrics) -> Self {
        self.metrics = Some(Arc::new(metrics));
        self
    }

    /// Tells `observer` of each message by itself.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl<P: MessagingService, R> SubscriberBuilder<P, R> {
    /// The subscriber, or what is wrong with the options.
    // The bound is here and not above, or the compiler would not say what is missing.
    pub fn build(self) -> Result<Subscriber<P, R>, MessagingError>
    where
        R: Run,
    {
        let Self { provider, queues, runner, options, per_key, limit, metrics, observer } = self;
        let queues = queues?;
        queues::check(&queues)?;
        if per_key.as_ref().is_some_and(|per_key| per_key.most == 0) {
            return Err(MessagingError::invalid("max_per_key", "0: no handler would ever run; use at least 1"));
        }
        if limit.as_ref().is_some_and(|limit| limit.most == 0) {
            return Err(MessagingError::invalid("work_limit", "0: no handler would ever run; use at least 1"));
        }
        let plan = Arc::new(options.plan(runner.at_a_time(), provider.capabilities())?);
        let mut buffer = Buffer::new(plan.clone(), per_key.as_ref().map(|per_key| per_key.most), Instant::now());
        buffer.to_tell = ToTell::new(observer.is_some());
        let desk = Arc::new(Desk::new(buffer, Counters::new(metrics), observer));
        let limit = limit.map(|limit| limit.places);
        let engine = Arc::new(Engine {
            provider,
            queues,
            plan,
            desk,
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
