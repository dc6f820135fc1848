//! `postrider ack`, `release`, `nack`, `extend`: settle and extend leases by their receipts.

use std::time::Duration;

use postrider::{
    DeadLetterReason, Deadline, MessageId, MessagingError, MessagingService, Nack, QueueName, ReceiptHandle,
    RetryStrategy, RowResults, Settlement,
};
use serde::Serialize;

use crate::args::Global;
use crate::failure::{Failure, explained};
use crate::output::note;
use crate::session::Session;
use crate::{text, values};

const OUTCOMES: &str = "\
Prints the outcome for each receipt: that of the command, or 'expired' if the lease has ended or was settled, 'invalid' if \
it is no receipt of this kind of store, 'unknown' if the answer was lost, 'failed' for any other error. Every receipt is \
tried. Exits with 1 if one fails, with 2 if none of the arguments is a receipt.

A receipt is valid only for the store that it was received from: pass the same --url.";

/// Acknowledge messages as done
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Ack {
    /// Receipts printed by 'receive'
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
}

/// Give back messages whose work was never started; the delivery does not count
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Release {
    /// Receipts printed by 'receive'
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,
}

/// Give back messages that failed, to be retried or dead-lettered
///
/// Without --retry-after and --dead, the messages are retried after the delay of the configured strategy (common.retry) for
/// a first failure, because a receipt does not contain the number of earlier failures. A strategy without a second attempt
/// dead-letters them.
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Refuse {
    /// Receipts printed by 'receive'
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,

    /// Retry after this delay, like 500ms, 5s, 2m, 1h30m or 3d [default: that of common.retry]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "dead")]
    retry_after: Option<Duration>,

    /// Dead-letter the messages now, with this reason
    #[arg(long, value_name = "REASON")]
    dead: Option<String>,

    /// Error text to record as the message's last error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

/// Extend leases: they end DURATION from now
///
/// A receipt of SQS contains the end of its lease, so there a new receipt is printed: use it from now on.
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(crate) struct Extend {
    /// Receipts printed by 'receive'
    #[arg(required = true, value_name = "RECEIPT")]
    receipts: Vec<String>,

    /// New length of the leases, counted from now, like 500ms, 5s, 2m, 1h30m or 3d
    #[arg(value_name = "DURATION", value_parser = values::visibility, allow_hyphen_values = true)]
    extension: Duration,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    receipt: &'a str,
    /// The receipt of the extended lease, if it changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_receipt: Option<String>,
    id: Option<MessageId>,
    queue: Option<&'a QueueName>,
    outcome: &'static str,
    error: Option<&'a str>,
}

/// An argument, and the receipt parsed from it.
struct Given {
    text: String,
    receipt: Result<ReceiptHandle, MessagingError>,
}

/// Parses the receipts. Fails if none is valid: then the store is not needed.
fn read(texts: Vec<String>) -> Result<Vec<Given>, Failure> {
    let read = |text: String| Given { receipt: text.parse(), text };
    let all: Vec<_> = texts.into_iter().map(read).collect();
    match all.first() {
        Some(Given { text, receipt: Err(error) }) if all.iter().all(|given| given.receipt.is_err()) => {
            Err(Failure::usage(unreadable(text, error)))
        }
        _ => Ok(all),
    }
}

fn unreadable(text: &str, error: &MessagingError) -> String {
    let why = match error {
        MessagingError::InvalidReceipt { why } => why.clone(),
        other => other.to_string(),
    };
    format!("'{}' is no receipt: {why}. Pass it in full, as 'receive' printed it", text::shortened(text, 60))
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

/// The nack of the strategy after a first failure.
fn by_strategy(strategy: &RetryStrategy) -> Nack {
    match strategy.next_delay(1, Duration::ZERO, rand::random()) {
        Some(after) => Nack::retry_after(after),
        None => Nack::dead_letter(DeadLetterReason::RETRIES_EXHAUSTED),
    }
}

pub(crate) async fn extend(global: &Global, command: Extend) -> Result<(), Failure> {
    let given = read(command.receipts)?;
    let session = global.connect().await?;
    let mut rows = Vec::with_capacity(given.len());
    for receipt in given.iter().filter_map(|given| given.receipt.as_ref().ok()) {
        let deadline = Deadline::default();
        let next = session.provider.extend_visibility(receipt.queue(), receipt, command.extension, deadline).await;
        rows.push(next.map(|next| (next != *receipt).then_some(next)));
    }
    let result = report(&session, &given, rows, "extended");
    session.close().await.and(result)
}

async fn settle(
    global: &Global,
    receipts: Vec<String>,
    done: &'static str,
    settlement: impl Fn(ReceiptHandle) -> Settlement,
) -> Result<(), Failure> {
    let given = read(receipts)?;
    let session = global.connect().await?;
    let settlements: Vec<_> =
        given.iter().filter_map(|given| given.receipt.as_ref().ok()).cloned().map(settlement).collect();
    let count = settlements.len();
    let rows = match session.provider.settle(settlements, Deadline::default()).await {
        Ok(rows) => rows.into_iter().map(|row| row.map(|()| None)).collect(),
        Err(error) => vec![Err(error); count],
    };
    let result = report(&session, &given, rows, done);
    session.close().await.and(result)
}

/// Prints the outcome for each argument. `rows` are the results of the valid receipts, with the new receipt if it changed.
fn report(
    session: &Session,
    given: &[Given],
    rows: RowResults<Option<ReceiptHandle>>,
    done: &'static str,
) -> Result<(), Failure> {
    // All rows are the same request: if it is invalid, nothing was done.
    if let Some(Err(error @ MessagingError::InvalidInput { .. })) = rows.first() {
        return Err(error.clone().into());
    }
    let mut rows = rows.into_iter();
    let mut is_done = true;
    let mut noted = Vec::new();
    for Given { text, receipt } in given {
        let row = match receipt {
            Ok(_) => rows.next().unwrap_or(Err(MessagingError::OutcomeUnknown {
                operation: "settle",
                ids: Vec::new(),
                source: None,
            })),
            Err(error) => Err(error.clone()),
        };
        let outcome = match &row {
            Ok(_) => done,
            Err(MessagingError::VisibilityExpired { .. }) => "expired",
            Err(MessagingError::InvalidReceipt { .. }) => "invalid",
            Err(MessagingError::OutcomeUnknown { .. }) => "unknown",
            Err(_) => "failed",
        };
        let (new_receipt, failed) = match row {
            Ok(next) => (next.map(|next| next.to_string()), None),
            Err(error) => (None, Some(error)),
        };
        let why = failed.map(|error| match (&error, receipt) {
            (_, Err(_)) => unreadable(text, &error),
            (MessagingError::VisibilityExpired { queue, id }, _) => format!(
                "the lease on message {id} of queue '{queue}' has expired or was settled already, or the receipt is of \
                 another store than {}; nothing was changed",
                session.config.url()
            ),
            _ => explained(&error),
        });
        let (id, queue) =
            (receipt.as_ref().ok().map(ReceiptHandle::message_id), receipt.as_ref().ok().map(|r| r.queue()));
        let shown = id.map_or_else(|| text::shortened(text, 36), |id| id.to_string());
        let hint = new_receipt.as_ref().map(|new| format!("; from now on use {new}")).unwrap_or_default();
        let row = Row { receipt: text, new_receipt, id, queue, outcome, error: why.as_deref() };
        session.out.row(&row, format_args!("{shown}  {}{hint}", outcome.replace('_', "-")))?;
        is_done &= why.is_none();
        // A failing store has the same error for every row.
        if let Some(why) = why.filter(|why| !noted.contains(why)) {
            note(&why);
            noted.push(why);
        }
    }
    if is_done { Ok(()) } else { Err(Failure::Reported) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_without_a_second_attempt_dead_letters() {
        let second = Duration::from_secs(1);
        assert_eq!(by_strategy(&RetryStrategy::constant(second)), Nack::retry_after(second));
        assert_eq!(by_strategy(&RetryStrategy::NoRetry), Nack::dead_letter("retries_exhausted"));
    }
}
