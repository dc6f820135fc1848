//! The running calls of a connection.
//!
//! A caller may leave at any time: its future is dropped, or its deadline passes. An operation that has begun must
//! still come to an end, and `close` must be able to wait for that. So operations run in their own tasks.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};
use tokio::time::Sleep;

use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::spawn::spawn;

/// The running operations of a connection, and whether more may begin. For providers.
pub struct UnderWay {
    provider: &'static str,
    /// A watch channel, because close must reach waiting calls as well as later ones.
    closed: watch::Sender<bool>,
    /// Cloned by every running operation, so that close can wait for their end. `None` once closed.
    running: Mutex<Option<watch::Sender<()>>>,
    /// Closed when no operation is running.
    ended: watch::Receiver<()>,
}

impl UnderWay {
    /// No operation is running, and new ones may begin.
    pub fn new(provider: &'static str) -> Self {
        let (running, ended) = watch::channel(());
        Self { provider, closed: watch::Sender::new(false), running: Mutex::new(Some(running)), ended }
    }

    /// Checks connection and deadline. Every call begins with it.
    pub fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        if self.is_closed() {
            return Err(self.refused());
        }
        deadline.check(operation)
    }

    /// Whether the connection is closed to new operations.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Turns true when the connection closes, so that waits end.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Runs an operation in its own task. The error means that its result was not awaited, or that it did not begin
    /// because the connection is closed.
    pub async fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let running = running.ok_or_else(|| self.refused())?;
        let result = Arc::new(Mutex::new(None));
        let (done, is_done) = oneshot::channel();
        let kept = result.clone();
        spawn(async move {
            let result = work.await;
            drop(running);
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            // If the caller has left, the result is dropped here, and leases in it go back.
            let _ = done.send(());
        });
        if (Wait { is_done, timer: deadline.timer() }).await == Waited::Done
            && let Some(result) = result.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            return Ok(result);
        }
        Err(MessagingError::OutcomeUnknown { operation, ids, source: None })
    }

    /// Refuses new operations and ends waits.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Waits for the end of running operations. New ones are refused already.
    pub async fn finish(&self, deadline: Deadline) -> Result<(), MessagingError> {
        drop(self.running.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut ended = self.ended.clone();
        let ended = async { while ended.changed().await.is_ok() {} };
        let unknown = || MessagingError::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None };
        deadline.limit(ended).await.ok_or_else(unknown)
    }

    fn refused(&self) -> MessagingError {
        MessagingError::Closed { provider: self.provider }
    }
}

/// How the wait for an operation ended.
#[derive(Debug, PartialEq, Eq)]
enum Waited {
    Done,
    /// The deadline passed, or the operation panicked.
    NotDone,
}

/// Waits for an operation. Not generic over its result, so that it is compiled once.
struct Wait {
    is_done: oneshot::Receiver<()>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Future for Wait {
    type Output = Waited;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Waited> {
        match Pin::new(&mut self.is_done).poll(context) {
            Poll::Ready(Ok(())) => return Poll::Ready(Waited::Done),
            Poll::Ready(Err(_)) => return Poll::Ready(Waited::NotDone),
            Poll::Pending => {}
        }
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(context).map(|()| Waited::NotDone),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("provider", &self.provider).field("closed", &self.is_closed()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_operation_whose_caller_left_is_finished_before_close_ends() {
        let under_way = UnderWay::new("paper");
        let (finish, until) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let work = async move {
            let _ = until.await;
            let _ = done.send(());
        };
        let left = under_way.carry_out("send", Vec::new(), Deadline::after(Duration::from_millis(1)), work).await;
        assert!(matches!(left, Err(MessagingError::OutcomeUnknown { .. })), "{left:?}");
        under_way.close();
        assert!(matches!(under_way.begin("send", Deadline::never()), Err(MessagingError::Closed { .. })));
        let too_early = under_way.finish(Deadline::after(Duration::from_millis(1))).await;
        assert!(matches!(too_early, Err(MessagingError::OutcomeUnknown { .. })), "{too_early:?}");
        finish.send(()).unwrap();
        under_way.finish(Deadline::never()).await.unwrap();
        is_done.await.unwrap();
        let late = under_way.carry_out("send", Vec::new(), Deadline::never(), async {}).await;
        assert!(matches!(late, Err(MessagingError::Closed { .. })), "{late:?}");
    }
}
