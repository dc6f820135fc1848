//! The handler: a command, run for one message and watched to its end.

use std::time::Duration;

use postrider::subscriber::{Delivery, HandlerError};
use postrider::{Nack, RetryStrategy};
use postrider_core::failpoint;
use tokio::time::sleep;

use super::environment;
use super::journal::Journal;
use crate::command::{Ending, NotStarted, Place, Runner, Taps};

/// What every message is handled with.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) runner: Runner,
    pub(super) strategy: RetryStrategy,
    pub(super) timeout: Option<Duration>,
    pub(super) journal: Journal,
}

impl Job {
    /// Runs the command for a message. Its end is the handler's answer.
    ///
    /// Dropped, it kills the command and everything that this started.
    pub(super) async fn handle(&self, delivery: Delivery) -> Result<(), HandlerError> {
        let place = self.place(&delivery).await;
        failpoint::reach("work.begin");
        let Some(place) = place.filter(|_| delivery.is_leased()) else {
            delivery.control().release();
            return Err(HandlerError::retryable("the message was given back before its command began"));
        };
        let delivered = self.journal.begin(&delivery.envelope, place);
        let variables = environment::variables(&delivery.envelope);
        let started = self.runner.start(delivery.body.clone(), variables, environment::shines_through, Taps::default());
        let (ending, status, tail) = match started {
            Ok(mut process) => {
                let (ending, status) = self.runner.watch(&mut process, self.must_end(&delivery)).await;
                let output = self.runner.finish(process, &format!("message {}", delivery.id())).await;
                (ending, status, output.stderr_tail)
            }
            Err(why) => (could_not_start(why, &delivery).await, None, String::new()),
        };
        if ending == Ending::Stopped {
            // A deployment must not kill messages, whatever the policy and the strategy say. The limit of deliveries
            // ends what is stopped again and again.
            let delay = self.strategy.next_delay(delivery.attempt(), Duration::ZERO, rand::random());
            let nack = Nack::retry_after(delay.unwrap_or_default()).with_error(ending.error_text("message", &tail));
            delivery.control().nack(nack);
        }
        let result = ending.result("message", &tail);
        self.journal.end(delivered, ending, status);
        result
    }

    /// Waits until a line can be written about the message; `None` when it is better given back.
    async fn place(&self, delivery: &Delivery) -> Option<Place> {
        tokio::select! {
            biased;
            place = self.journal.place() => place,
            () = delivery.cancellation().cancelled() => None,
            () = delivery.stopping() => None,
        }
    }

    /// Completes when the command may not go on.
    async fn must_end(&self, delivery: &Delivery) -> Ending {
        let too_long = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // The lease is lost, and what is answered does not count; or a stop has run out of patience.
            () = delivery.cancellation().cancelled() => Ending::Stopped,
            () = too_long => Ending::TimedOut(self.timeout.unwrap_or_default()),
        }
    }
}

async fn could_not_start(why: NotStarted, delivery: &Delivery) -> Ending {
    let text = match why {
        NotStarted::Refused(text) => return Ending::Trouble(text),
        NotStarted::Gone(text) => text,
        NotStarted::Busy(text, pause) => {
            // The worker waits, or it would ask again and again.
            tokio::select! {
                () = sleep(pause) => {}
                () = delivery.cancellation().cancelled() => {}
                () = delivery.stopping() => {}
            }
            text
        }
    };
    // Nothing was tried, so it costs the message nothing.
    delivery.control().release();
    Ending::Trouble(text)
}
