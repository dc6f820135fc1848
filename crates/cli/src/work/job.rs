//! The handler of messages: runs the command for one message and watches it to its end.

use std::time::Duration;

use postrider::subscriber::{Delivery, HandlerError};
use postrider::{Nack, RetryStrategy};
use postrider_core::failpoint;
use tokio::time::sleep;

use super::environment;
use super::journal::Journal;
use crate::command::{Ending, NotStarted, RowPermit, Runner, Taps};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) runner: Runner,
    pub(super) strategy: RetryStrategy,
    pub(super) timeout: Option<Duration>,
    pub(super) journal: Journal,
}

impl Job {
    /// Runs the command for a message.
    ///
    /// Dropping the future kills the command and everything that it started.
    pub(super) async fn handle(&self, delivery: Delivery) -> Result<(), HandlerError> {
        let permit = self.row_permit(&delivery).await;
        failpoint::reach("work.begin");
        let Some(permit) = permit.filter(|_| delivery.is_leased()) else {
            delivery.control().release();
            return Err(HandlerError::retryable("the message was released before its command started"));
        };
        let delivered = self.journal.begin(&delivery.envelope, permit);
        let variables = environment::variables(&delivery.envelope);
        let started = self.runner.start(delivery.body.clone(), variables, environment::must_clear, Taps::default());
        let (ending, status, tail) = match started {
            Ok(mut process) => {
                let (ending, status) = self.runner.watch(&mut process, self.must_end(&delivery)).await;
                let output = self.runner.finish(process, &format!("message {}", delivery.id())).await;
                (ending, status, output.stderr_tail)
            }
            Err(why) => (could_not_start(why, &delivery).await, None, String::new()),
        };
        if ending == Ending::Stopped {
            // A stop, as by a deployment, must not dead-letter messages under any policy or strategy. The limit of
            // deliveries ends a message that is stopped again and again.
            let delay = self.strategy.next_delay(delivery.attempt(), Duration::ZERO, rand::random());
            let nack = Nack::retry_after(delay.unwrap_or_default()).with_error(ending.error_text("message", &tail));
            delivery.control().nack(nack);
        }
        let result = ending.result("message", &tail);
        self.journal.end(delivered, ending, status);
        result
    }

    /// Waits for the permit of the message's row; `None` if the message must be released instead.
    async fn row_permit(&self, delivery: &Delivery) -> Option<RowPermit> {
        tokio::select! {
            biased;
            permit = self.journal.row_permit() => permit,
            () = delivery.cancellation().cancelled() => None,
            () = delivery.stopping() => None,
        }
    }

    /// Completes when the command must be stopped.
    async fn must_end(&self, delivery: &Delivery) -> Ending {
        let timed_out = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // The lease is lost, or the grace of a stop is over.
            () = delivery.cancellation().cancelled() => Ending::Stopped,
            () = timed_out => Ending::TimedOut(self.timeout.unwrap_or_default()),
        }
    }
}

async fn could_not_start(why: NotStarted, delivery: &Delivery) -> Ending {
    let text = match why {
        NotStarted::Refused(text) => return Ending::Failed(text),
        NotStarted::Gone(text) => text,
        NotStarted::Busy(text, backoff) => {
            // Without this wait the worker would receive the message again at once, for ever.
            tokio::select! {
                () = sleep(backoff) => {}
                () = delivery.cancellation().cancelled() => {}
                () = delivery.stopping() => {}
            }
            text
        }
    };
    // Nothing was started, so the message keeps its attempt.
    delivery.control().release();
    Ending::Failed(text)
}
