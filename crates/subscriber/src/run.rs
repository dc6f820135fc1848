//! How a worker calls its handler: one message at a time, or several.

use std::future::Future;

use smallvec::SmallVec;
use tower::ServiceExt;
use tower_service::Service;

use crate::batch::{BatchResults, complete};
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// The messages of one call. Usually a single message, which needs no allocation.
pub(crate) type Deliveries = SmallVec<[Delivery; 1]>;

/// The results of one call, in the order of its messages.
pub(crate) type Results = SmallVec<[Result<(), HandlerError>; 1]>;

/// A handler as a worker calls it. The builder makes it from a service; not meant to be implemented elsewhere.
#[diagnostic::on_unimplemented(
    message = "this subscriber has no handler yet",
    label = "needs a handler before this",
    note = "name one before `build`: `Subscriber::builder(provider, queue).handler(function).build()`"
)]
pub trait Run: Clone + Send + Sync + 'static {
    /// Upper bound of messages in one call.
    fn at_a_time(&self) -> usize;

    /// Waits until it can take messages. No message is taken from the buffer before.
    fn ready(&mut self) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Handles messages, and returns a result for each in their order.
    fn run(&mut self, deliveries: Deliveries) -> impl Future<Output = Results> + Send;
}

/// A service that takes one message at a time.
#[derive(Debug, Clone)]
pub struct OneByOne<S>(pub(crate) S);

impl<S> Run for OneByOne<S>
where
    S: Service<Delivery, Response = (), Error = HandlerError> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    fn at_a_time(&self) -> usize {
        1
    }

    async fn ready(&mut self) -> Result<(), HandlerError> {
        self.0.ready().await.map(drop)
    }

    async fn run(&mut self, deliveries: Deliveries) -> Results {
        let mut results = Results::new();
        for delivery in deliveries {
            results.push(self.0.call(delivery).await);
        }
        results
    }
}

/// A service that takes the waiting messages, up to a number. It does not wait for further ones.
#[derive(Debug, Clone)]
pub struct Batches<S> {
    pub(crate) service: S,
    pub(crate) at_a_time: usize,
}

impl<S> Run for Batches<S>
where
    S: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    fn at_a_time(&self) -> usize {
        self.at_a_time
    }

    async fn ready(&mut self) -> Result<(), HandlerError> {
        self.service.ready().await.map(drop)
    }

    async fn run(&mut self, deliveries: Deliveries) -> Results {
        let messages = deliveries.len();
        let results = match self.service.call(deliveries.into_vec()).await {
            Ok(results) => complete(results, messages),
            Err(error) => vec![Err(error); messages],
        };
        results.into()
    }
}
