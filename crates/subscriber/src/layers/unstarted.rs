//! Messages that wait for a permit.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// A message whose handler has not started.
pub(super) struct Unstarted {
    control: Control,
    cancellation: CancellationToken,
    stopping: BoxFuture<'static, ()>,
}

impl Unstarted {
    pub(super) fn new(delivery: &Delivery) -> Self {
        Self {
            control: delivery.control().clone(),
            cancellation: delivery.cancellation().clone(),
            stopping: delivery.stopping().boxed(),
        }
    }

    /// Waits for `permit`. A message that is cancelled, or would start after a stop was requested, is released at once,
    /// which costs no attempt.
    pub(super) async fn wait<T>(self, permit: impl Future<Output = T>) -> Result<T, HandlerError> {
        tokio::select! {
            biased;
            () = self.cancellation.cancelled() => {}
            granted = permit => return Ok(granted),
            () = self.stopping => {}
        }
        self.control.release();
        Err(HandlerError::retryable("the message was released before its handler began"))
    }
}
