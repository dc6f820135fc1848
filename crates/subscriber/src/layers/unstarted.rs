//! Messages that wait for leave to be handled.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// A message that has not been handed to its handler yet.
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

    /// Waits for `leave`. A message that nobody wants handled any more, or that would begin after a stop was asked for,
    /// goes back at once and costs no attempt: nothing was tried.
    pub(super) async fn wait<T>(self, leave: impl Future<Output = T>) -> Result<T, HandlerError> {
        tokio::select! {
            biased;
            () = self.cancellation.cancelled() => {}
            granted = leave => return Ok(granted),
            () = self.stopping => {}
        }
        self.control.release();
        Err(HandlerError::retryable("the message was given back before its handler began"))
    }
}
