//! A handler service from a closure.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use postrider_subscriber::{Delivery, HandlerError};
use tower_service::Service;

/// A closure as a service. Always ready.
pub(crate) struct Handler<F>(Arc<F>);

impl<F> Clone for Handler<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) fn handler<F, Fut>(handle: F) -> Handler<F>
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    Handler(Arc::new(handle))
}

impl<F, Fut> Service<Delivery> for Handler<F>
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    type Response = ();
    type Error = HandlerError;
    type Future = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        Box::pin((self.0)(delivery))
    }
}
