//! `postrider ack`, `release`, `nack`, `extend`: what becomes of messages whose receipts are at hand.

use std::time::Duration;

use postrider::{
    DeadLetterReason, Deadline, MessagingError, MessagingService, Nack, ReceiptHandle, RetryStrategy, RowResults,
    Settlement,
};
use serde::Serialize;

use crate::args::Global;
use crate::failure::{Failure, explained};
use crate::output::{Output, note};
use crate::values;

const OUTCOMES: &str = "\
Prints what became of each: what was asked for, or 'expired' when its lease was over, 'invalid' when the receipt is of \
another store, 'unknown' when the answer was lost, 'failed' for anything else. Every receipt is tried. Exits with 1 when \
one was not done.";

/// Acknowledge messages: they are done
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Ack {
    /// What 'receive' printed
    #[arg(required = true, value_name = "RECEIPT", value_parser = values::receipt)]
    receipts: Vec<ReceiptHandle>,
}

/// Give messages back at once: their work was never started, and the delivery does not count
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Release {
    /// What 'receive' printed
    #[arg(required = true, value_name = "RECEIPT", value_parser = values::receipt)]
    receipts: Vec<ReceiptHandle>,
}

/// Give messages back that could not be handled: to be tried again, or to the dead letters
///
/// Without --retry-after and --dead they come back after the delay that the configured strategy (common.retry) has
/// after a first failure: a receipt does not tell how often its message failed before. A strategy that allows no
/// second attempt dead-letters them.
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Refuse {
    /// What 'receive' printed
    #[arg(required = true, value_name = "RECEIPT", value_parser = values::receipt)]
    receipts: Vec<ReceiptHandle>,

    /// They come back after this long
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "dead")]
    retry_after: Option<Duration>,

    /// They go to the dead letters now, for this reason
    #[arg(long, value_name = "REASON")]
    dead: Option<String>,

    /// What went wrong; kept as the message's last error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

/// Go on holding messages: their leases end this long from now
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Extend {
    /// What 'receive' printed
    #[arg(required = true, value_name = "RECEIPT", value_parser = values::receipt)]
    receipts: Vec<ReceiptHandle>,

    /// The new length, from now; it is not added to what is left
    #[arg(value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    extension: Duration,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    receipt: &'a ReceiptHandle,
    outcome: &'static str,
}

pub(crate) async fn ack(global: &Global, command: Ack) -> Result<(), Failure> {
    settle(global, command.receipts, "acked", Settlement::ack).await
}

pub(crate) async fn release(global: &Global, command: Release) -> Result<(), Failure> {
    settle(global, command.receipts, "released", |receipt| Settlement::nack(receipt, Nack::Release)).await
}

pub(crate) async fn nack(global: &Global, command: Refuse) -> Result<(), Failure> {
    let mut nack = match (command.retry_after, command.dead) {
        (Some(after), _) => Nack::retry_after(after),
        (None, Some(reason)) => Nack::dead_letter(reason),
        (None, None) => by_strategy(&global.lasting_config_for(None)?.common().retry),
    };
    if let Some(error) = command.error {
        nack = nack.with_error(error);
    }
    let outcome = match nack {
        Nack::DeadLetter { .. } => "dead_lettered",
        Nack::Retry { .. } | Nack::Release => "retried",
    };
    settle(global, command.receipts, outcome, |receipt| Settlement::nack(receipt, nack.clone())).await
}

/// What the strategy wants after a first failure.
fn by_strategy(strategy: &RetryStrategy) -> Nack {
    match strategy.next_delay(1, Duration::ZERO, rand::random()) {
        Some(after) => Nack::retry_after(after),
        None => Nack::dead_letter(DeadLetterReason::RETRIES_EXHAUSTED),
    }
}

pub(crate) async fn extend(global: &Global, command: Extend) -> Result<(), Failure> {
    let session = global.connect().await?;
    let mut rows = Vec::with_capacity(command.receipts.len());
    for receipt in &command.receipts {
        let deadline = Deadline::default();
        rows.push(session.provider.extend_visibility(receipt.queue(), receipt, command.extension, deadline).await);
    }
    let result = report(session.out, &command.receipts, rows, "extended");
    session.close().await.and(result)
}

async fn settle(
    global: &Global,
    receipts: Vec<ReceiptHandle>,
    done: &'static str,
    settlement: impl Fn(ReceiptHandle) -> Settlement,
) -> Result<(), Failure> {
    let session = global.connect().await?;
    let settlements = receipts.iter().cloned().map(settlement).collect();
    let rows = match session.provider.settle(settlements, Deadline::default()).await {
        Ok(rows) => rows,
        Err(error) => receipts.iter().map(|_| Err(error.clone())).collect(),
    };
    let result = report(session.out, &receipts, rows, done);
    session.close().await.and(result)
}

fn report(out: Output, receipts: &[ReceiptHandle], rows: RowResults<()>, done: &'static str) -> Result<(), Failure> {
    // The same was asked for every row: when it cannot be asked for, nothing was done.
    if let Some(Err(error @ MessagingError::InvalidInput { .. })) = rows.first() {
        return Err(error.clone().into());
    }
    let is_done = rows.iter().all(Result::is_ok);
    let mut told = Vec::new();
    for (receipt, row) in receipts.iter().zip(rows) {
        let outcome = match &row {
            Ok(()) => done,
            Err(MessagingError::VisibilityExpired { .. }) => "expired",
            Err(MessagingError::InvalidReceipt { .. }) => "invalid",
            Err(MessagingError::OutcomeUnknown { .. }) => "unknown",
            Err(_) => "failed",
        };
        out.row(&Row { receipt, outcome }, format_args!("{}  {}", receipt.message_id(), outcome.replace('_', "-")))?;
        if let Err(error) = row {
            // A store that fails says the same for every row.
            let text = explained(&error);
            if !told.contains(&text) {
                note(&text);
                told.push(text);
            }
        }
    }
    if is_done { Ok(()) } else { Err(Failure::Told) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_without_a_second_attempt_gives_up() {
        let second = Duration::from_secs(1);
        assert_eq!(by_strategy(&RetryStrategy::constant(second)), Nack::retry_after(second));
        assert_eq!(by_strategy(&RetryStrategy::NoRetry), Nack::dead_letter("retries_exhausted"));
    }
}
