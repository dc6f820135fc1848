//! Settles, extends and gives up leases.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::coalescer::ExtendRow;
use postrider_core::{
    Disposition, Feature, LeaseToken, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use tokio::time::Instant;

use crate::PROVIDER;
use crate::delay::{LONGEST_HIDE, from_seconds, seconds};
use crate::error::Failure;
use crate::lease::{self, Fence, Held};
use crate::names::Side;
use crate::receipt::ReceiptContent;
use crate::store::Shared;

/// Number of calls while a message is hidden for its copy: hide, send, delete.
const CALLS_OF_A_COPY: u32 = 3;

/// Longest time that a message is hidden for its copy alone: it stays hidden if the process dies meanwhile.
const LONGEST_COPY: Duration = Duration::from_secs(30);

/// A row whose lease is valid.
pub(crate) struct Row {
    number: usize,
    handle: ReceiptHandle,
    content: ReceiptContent,
    fence: Fence,
}

impl Row {
    fn new(number: usize, handle: ReceiptHandle, content: ReceiptContent, held: &Held) -> Self {
        let fence = Fence::of(&handle, held.ends);
        Self { number, handle, content, fence }
    }

    /// Returns SQS's receipt and its fence.
    fn receipt(&self) -> (String, Fence) {
        (self.content.receipt.clone(), self.fence)
    }

    /// Returns SQS's receipt, the seconds to hide the message for, and the fence.
    fn hidden(&self, seconds: i32) -> (String, i32, Fence) {
        (self.content.receipt.clone(), seconds, self.fence)
    }
}

/// What a settlement does with a message.
enum Step {
    Delete,
    /// Hide it for these seconds, and end the lease.
    Hide(i32),
    /// Store a copy in a queue, then delete it.
    Replace {
        copy: Box<Stored>,
        to: QueueName,
        renewed: i32,
    },
}

type QueueSide = (QueueName, Side);

impl Shared {
    /// Seconds for which a message is hidden while its copy is stored.
    fn renewed(&self, held: &Held) -> i32 {
        renewed(held, LONGEST_COPY.min(self.calls.timeout.saturating_mul(CALLS_OF_A_COPY)))
    }

    /// Reads a receipt and finds its lease.
    fn held(&self, handle: &ReceiptHandle) -> Result<(ReceiptContent, Held), MessagingError> {
        let content = ReceiptContent::read(handle)?;
        let held = lease::check(handle, &content, self.clock.now())?;
        Ok((content, held))
    }

    /// Settles a batch.
    pub(crate) async fn settle_rows(&self, settlements: &[Settlement]) -> RowResults<()> {
        let mut results: RowResults<()> = settlements.iter().map(|_| Ok(())).collect();
        let mut todo: HashMap<QueueSide, Vec<(Row, Step)>> = HashMap::new();
        let mut seen: HashSet<LeaseToken> = HashSet::new();
        let mut repeated = Vec::new();
        for (number, settlement) in settlements.iter().enumerate() {
            if !seen.insert(settlement.receipt.token()) {
                repeated.push(number);
                continue;
            }
            match self.plan(number, settlement) {
                Ok((row, step)) => {
                    let queue_side = (row.handle.queue().clone(), row.content.side);
                    todo.entry(queue_side).or_default().push((row, step));
                }
                Err(error) => results[number] = Err(error),
            }
        }
        let queue_sides = todo.into_iter().map(|(queue_side, rows)| self.carry_out(queue_side, rows));
        for (number, result) in futures_util::future::join_all(queue_sides).await.into_iter().flatten() {
            results[number] = result;
        }
        // A lease that was settled by an earlier row of the same batch.
        for number in repeated {
            let receipt = &settlements[number].receipt;
            results[number] = match self.held(receipt) {
                Ok(_) => Err(receipt.taken()),
                Err(error) => Err(error),
            };
        }
        results
    }

    /// Checks a settlement and returns its step.
    fn plan(&self, number: usize, settlement: &Settlement) -> Result<(Row, Step), MessagingError> {
        let Settlement { receipt, disposition, .. } = settlement.clone().checked(&self.capabilities.limits)?;
        let (content, held) = self.held(&receipt)?;
        let queue = receipt.queue().clone();
        let step = match disposition {
            Disposition::Ack => Step::Delete,
            Disposition::Nack(Nack::Release) => Step::Hide(0),
            Disposition::Nack(Nack::Retry { after, error }) => match held.stored.clone() {
                Some(stored) if content.side == Side::Standard && !queue.holds_dead_letters() => {
                    let copy = Box::new(stored.retried(after, error.as_deref()));
                    Step::Replace { copy, to: queue, renewed: self.renewed(&held) }
                }
                // No copy: in a FIFO queue it would lose its position, another process has no body to copy, and a dead
                // letter keeps its record.
                _ => Step::Hide(hidden_for("retry delay", after, held.asked)?),
            },
            Disposition::Nack(Nack::DeadLetter { .. }) if queue.holds_dead_letters() => {
                return Err(MessagingError::invalid(
                    "settlement",
                    format!("message {} is a dead letter already; acknowledge or redrive it", receipt.message_id()),
                ));
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => match held.stored.clone() {
                Some(stored) => {
                    let copy = Box::new(stored.buried(&reason, error.as_deref(), self.clock.now()));
                    Step::Replace { copy, to: queue.dead_letters(), renewed: self.renewed(&held) }
                }
                None => {
                    return Err(MessagingError::NotSupported {
                        provider: PROVIDER,
                        feature: Feature::PortableReceipts,
                        why: "SQS cannot move a message by its receipt, and only the receiving process has its body; \
                              dead-letter it there, or release it"
                            .to_owned(),
                    });
                }
            },
        };
        Ok((Row::new(number, receipt, content, &held), step))
    }

    /// Carries out the steps for one side of a queue.
    async fn carry_out(
        &self,
        queue_side: QueueSide,
        rows: Vec<(Row, Step)>,
    ) -> Vec<(usize, Result<(), MessagingError>)> {
        let (queue, side) = &queue_side;
        let url = match self.url(queue, *side).await {
            Ok(Some(url)) => url,
            // The message was deleted with its queue.
            Ok(None) => return rows.into_iter().map(|(row, _)| (row.number, Err(row.handle.expired()))).collect(),
            Err(error) => return rows.into_iter().map(|(row, _)| (row.number, Err(error.clone()))).collect(),
        };
        let (mut deleted, mut hidden, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
        for (row, step) in rows {
            match step {
                Step::Delete => deleted.push(row),
                Step::Hide(seconds) => hidden.push((row, seconds)),
                Step::Replace { copy, to, renewed } => replaced.push((row, copy, to, renewed)),
            }
        }
        let delete = async {
            let receipts = deleted.iter().map(Row::receipt).collect();
            let answers = self.calls.delete(&url, receipts).await;
            self.ended(&queue_side, "ack", deleted, answers)
        };
        let hide = async {
            let receipts = hidden.iter().map(|(row, seconds)| row.hidden(*seconds)).collect();
            let answers = self.calls.hide(&url, receipts).await;
            self.ended(&queue_side, "nack", hidden.into_iter().map(|(row, _)| row).collect(), answers)
        };
        let (deleted, hidden, replaced) = tokio::join!(delete, hide, self.replace(&queue_side, &url, replaced));
        deleted.into_iter().chain(hidden).chain(replaced).collect()
    }

    /// Ends leases according to SQS's answers.
    fn ended(
        &self,
        queue_side: &QueueSide,
        operation: &'static str,
        rows: Vec<Row>,
        answers: Vec<Result<(), Failure>>,
    ) -> Vec<(usize, Result<(), MessagingError>)> {
        let end =
            |(row, answer): (Row, Result<(), Failure>)| (row.number, self.end(queue_side, operation, &row, answer));
        rows.into_iter().zip(answers).map(end).collect()
    }

    fn end(
        &self,
        queue_side: &QueueSide,
        operation: &'static str,
        row: &Row,
        answer: Result<(), Failure>,
    ) -> Result<(), MessagingError> {
        match answer {
            Ok(()) => {
                lease::end(&row.handle, &row.content, self.clock.now());
                Ok(())
            }
            Err(failure) => Err(self.refused(queue_side, operation, row, failure)),
        }
    }

    fn refused(&self, queue_side: &QueueSide, operation: &'static str, row: &Row, failure: Failure) -> MessagingError {
        match failure {
            Failure::Stale(_) => {
                lease::end(&row.handle, &row.content, self.clock.now());
                row.handle.expired()
            }
            Failure::Missing => {
                self.urls.forget_deleted(&queue_side.0, queue_side.1);
                row.handle.expired()
            }
            failure => failure.into_error(operation, Some(&queue_side.0), vec![row.handle.message_id()]),
        }
    }

    /// Stores copies and deletes the originals. The originals' visibility is renewed first: so a stale receipt leaves no copy,
    /// and the original is not received meanwhile. The caller's lease keeps its end: a failed settlement does not extend it.
    async fn replace(
        &self,
        queue_side: &QueueSide,
        url: &str,
        rows: Vec<(Row, Box<Stored>, QueueName, i32)>,
    ) -> Vec<(usize, Result<(), MessagingError>)> {
        const REPLACE: &str = "settle";
        let started = Instant::now();
        let renewals = rows.iter().map(|(row, _, _, seconds)| row.hidden(*seconds)).collect();
        let renewed = self.calls.hide(url, renewals).await;
        let mut results = Vec::new();
        let mut by_target: HashMap<QueueName, Vec<(Row, Stored)>> = HashMap::new();
        for ((mut row, copy, to, seconds), answer) in rows.into_iter().zip(renewed) {
            match answer {
                Ok(()) => {
                    row.fence = Fence::at(started + from_seconds(seconds));
                    by_target.entry(to).or_default().push((row, *copy));
                }
                Err(failure) => results.push((row.number, Err(self.refused(queue_side, REPLACE, &row, failure)))),
            }
        }
        for (to, rows) in by_target {
            let (rows, copies): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let copied = self.store_copies(&to, &copies).await;
            let mut originals = Vec::new();
            for (row, copied) in rows.into_iter().zip(copied) {
                match copied {
                    Ok(()) => originals.push(row),
                    Err(error) => results.push((row.number, Err(error))),
                }
            }
            let receipts = originals.iter().map(Row::receipt).collect();
            for (row, answer) in originals.into_iter().zip(self.calls.delete(url, receipts).await) {
                lease::end(&row.handle, &row.content, self.clock.now());
                let unknown = |failure: Failure| MessagingError::OutcomeUnknown {
                    operation: REPLACE,
                    ids: vec![row.handle.message_id()],
                    // The copy is stored; whether the original was deleted is unknown.
                    source: Some(std::sync::Arc::new(failure.into_error("delete", Some(&queue_side.0), Vec::new()))),
                };
                results.push((row.number, answer.map_err(unknown)));
            }
        }
        results
    }

    /// Extends leases, and returns receipts with the new ends.
    pub(crate) async fn extend_rows(&self, rows: &[ExtendRow]) -> RowResults<ReceiptHandle> {
        let mut results: RowResults<ReceiptHandle> = rows.iter().map(|row| Ok(row.receipt.clone())).collect();
        let mut todo: HashMap<QueueSide, Vec<(Row, i32)>> = HashMap::new();
        for (number, ExtendRow { receipt, extension }) in rows.iter().enumerate() {
            let planned = self.held(receipt).and_then(|(content, held)| {
                let seconds = hidden_for("visibility", *extension, held.asked)?;
                Ok((Row::new(number, receipt.clone(), content, &held), seconds))
            });
            match planned {
                Ok((row, seconds)) => {
                    let queue_side = (receipt.queue().clone(), row.content.side);
                    todo.entry(queue_side).or_default().push((row, seconds));
                }
                Err(error) => results[number] = Err(error),
            }
        }
        for (queue_side, rows) in todo {
            let url = match self.url(&queue_side.0, queue_side.1).await {
                Ok(Some(url)) => url,
                Ok(None) => {
                    rows.iter().for_each(|(row, _)| results[row.number] = Err(row.handle.expired()));
                    continue;
                }
                Err(error) => {
                    rows.iter().for_each(|(row, _)| results[row.number] = Err(error.clone()));
                    continue;
                }
            };
            let started = Instant::now();
            let hidden = rows.iter().map(|(row, seconds)| row.hidden(*seconds)).collect();
            for ((row, seconds), answer) in rows.into_iter().zip(self.calls.hide(&url, hidden).await) {
                results[row.number] = match answer {
                    Ok(()) => {
                        let ends = started + from_seconds(seconds);
                        Ok(lease::extended(&row.handle, &row.content, ends, self.clock.now()))
                    }
                    Err(failure) => Err(self.refused(&queue_side, "extend", &row, failure)),
                };
            }
        }
        results
    }

    /// Releases messages that no caller will handle.
    pub(crate) async fn release(&self, receipts: &[ReceiptHandle]) -> RowResults<()> {
        let releases: Vec<_> =
            receipts.iter().map(|receipt| Settlement::nack(receipt.clone(), Nack::Release)).collect();
        self.settle_rows(&releases).await
    }
}

/// Seconds for which a message is hidden while its copy is stored: at least its lease and the time of a copy. Rounded down
/// to SQS's limit, because SQS refuses a longer time, and at least one, because zero would release the message.
fn renewed(held: &Held, copying: Duration) -> i32 {
    let possible = i32::try_from(possible(held.asked).as_secs()).unwrap_or(i32::MAX);
    seconds(held.left().max(copying)).min(possible.max(1))
}

/// Longest remaining time for which SQS can hide a message, counted from its receive.
fn possible(asked: Option<Instant>) -> Duration {
    LONGEST_HIDE.saturating_sub(asked.map_or(Duration::ZERO, |asked| asked.elapsed()))
}

/// Converts a time to seconds; fails if SQS cannot hide the message for so long.
fn hidden_for(what: &'static str, time: Duration, asked: Option<Instant>) -> Result<i32, MessagingError> {
    let (seconds, possible) = (seconds(time), possible(asked));
    if Duration::from_secs(seconds.unsigned_abs().into()) > possible {
        return Err(MessagingError::invalid(
            what,
            format!(
                "{seconds} s is too long: SQS hides a message for at most 12 hours from its receive, and {} s of them are \
                 left; use a shorter time",
                possible.as_secs()
            ),
        ));
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_is_hidden_for_at_most_twelve_hours_from_its_receive() {
        let hour = Duration::from_secs(3600);
        let received = Some(Instant::now());
        assert_eq!(hidden_for("x", hour * 12, received).unwrap(), 43_200);
        assert!(hidden_for("x", hour * 12 + Duration::from_nanos(1), received).is_err());
        tokio::time::advance(hour * 11).await;
        assert_eq!(hidden_for("x", hour, received).unwrap(), 3600);
        let error = hidden_for("x", hour * 2, received).unwrap_err().to_string();
        assert!(error.contains("3600 s of them"), "{error}");
        // The receive of another process is unknown.
        assert!(hidden_for("x", hour * 12, None).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_long_enough_and_never_above_the_limit() {
        let hour = Duration::from_secs(3600);
        let asked = Some(Instant::now());
        let lasting = |left| renewed(&Held { stored: None, asked, ends: Instant::now() + left }, LONGEST_COPY);
        tokio::time::advance(Duration::from_millis(300)).await;
        assert_eq!(lasting(Duration::from_secs(2)), 30);
        assert_eq!(lasting(hour - Duration::from_millis(300)), 3600);
        assert_eq!(lasting(hour * 12 - Duration::from_millis(300)), 43_199);
        tokio::time::advance(hour * 12 - Duration::from_secs(10)).await;
        assert_eq!(lasting(Duration::from_millis(9700)), 9);
        tokio::time::advance(hour).await;
        assert_eq!(lasting(Duration::from_millis(1)), 1);
    }
}
