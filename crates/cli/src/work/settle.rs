//! The end of a lease, through whatever the store is going through.

use std::time::Duration;

use postrider::{Deadline, MessagingError, MessagingService, Settlement};

use super::echo::Echo;
use super::lease::Lease;
use super::stop::{Stage, Stop};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long an attempt may still take when there shall be no other.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

/// What became of a settlement.
#[derive(Debug)]
pub(super) enum Settled {
    /// The store has it.
    Done,
    /// The lease was over before it.
    Lost(String),
    /// It may or may not have been carried out.
    Unknown(String),
    /// It was refused; the message comes back when its lease ends.
    Refused(String),
}

/// Settles, again and again while the lease is kept and the store may answer.
pub(super) async fn settle(
    provider: &impl MessagingService,
    settlement: Settlement,
    lease: &Lease,
    stop: &Stop,
    echo: &Echo,
) -> Settled {
    // Whatever ends the attempts, one that is under way gets time for its answer: the renewal that found the lease over
    // may have found our own settlement.
    let over = async {
        let why = tokio::select! {
            why = lease.lost() => why,
            () = stop.reached(Stage::Killing) => "the worker had to end".into(),
        };
        tokio::time::sleep(LAST_PATIENCE).await;
        why
    };
    tokio::select! {
        biased;
        settled = attempts(provider, &settlement, echo) => settled,
        why = over => Settled::Unknown(why),
    }
}

async fn attempts(provider: &impl MessagingService, settlement: &Settlement, echo: &Echo) -> Settled {
    let mut unknown = false;
    let mut pause = FIRST_PAUSE;
    loop {
        let rows = provider.settle(vec![settlement.clone()], Deadline::default()).await;
        let error = match rows.map(|rows| rows.into_iter().next()) {
            Ok(Some(Ok(()))) => return Settled::Done,
            Ok(Some(Err(error))) | Err(error) => error,
            Ok(None) => return Settled::Unknown("the store did not say what became of it".into()),
        };
        match &error {
            // What an earlier try did or did not do cannot be told any more.
            MessagingError::VisibilityExpired { .. } if unknown => return Settled::Unknown(error.to_string()),
            MessagingError::VisibilityExpired { .. } => return Settled::Lost(error.to_string()),
            // Safe to repeat: a lease ends once.
            MessagingError::OutcomeUnknown { .. } => unknown = true,
            error if error.is_retryable() => {}
            error => return Settled::Refused(error.to_string()),
        }
        echo.note(format_args!("cannot settle message {} yet: {error}", settlement.receipt.message_id()));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
