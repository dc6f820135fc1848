//! The ends of leases.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::coalescer::ExtendRow;
use postrider_core::{
    Disposition, Feature, LeaseToken, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use tokio::time::Instant;

use crate::PROVIDER;
use crate::error::Failure;
use crate::lease::{self, Fence, Held};
use crate::names::Side;
use crate::receipt::Ticket;
use crate::store::Shared;
use crate::waiting::{LONGEST_HIDE, seconds, whole};

/// So many calls are made while a message is hidden for its copy: the one that hides it, the copy, and the delete.
const CALLS_OF_A_COPY: u32 = 3;

/// For no longer a message is hidden for its copy alone: whoever dies meanwhile leaves it hidden.
const LONGEST_COPY: Duration = Duration::from_secs(30);

/// A row whose lease is valid.
pub(crate) struct Row {
    number: usize,
    handle: ReceiptHandle,
    ticket: Ticket,
    fence: Fence,
}

impl Row {
    fn new(number: usize, handle: ReceiptHandle, ticket: Ticket, held: &Held) -> Self {
        let fence = Fence::of(&handle, held.ends);
        Self { number, handle, ticket, fence }
    }

    /// SQS's receipt, and until when it may be sent.
    fn receipt(&self) -> (String, Fence) {
        (self.ticket.receipt.clone(), self.fence)
    }

    /// The same, with a time to hide the message for.
    fn hidden(&self, seconds: i32) -> (String, i32, Fence) {
        (self.ticket.receipt.clone(), seconds, self.fence)
    }
}

/// What is to be done with a message.
enum Step {
    Delete,
    /// Hidden for so many seconds, and the lease is over.
    Hide(i32),
    /// A copy in a queue, and then the end.
    Replace {
        copy: Box<Stored>,
        to: QueueName,
        renewed: i32,
    },
}

type Place = (QueueName, Side);

impl Shared {
    /// For how many seconds a message is hidden while its copy is made.
    fn renewed(&self, held: &Held) -> i32 {
        renewed(held, LONGEST_COPY.min(self.calls.timeout.saturating_mul(CALLS_OF_A_COPY)))
    }

    /// Reads a receipt and finds its lease.
    fn held(&self, handle: &ReceiptHandle) -> Result<(Ticket, Held), MessagingError> {
        let ticket = Ticket::read(handle)?;
        let held = lease::check(handle, &ticket, self.clock.now())?;
        Ok((ticket, held))
    }

    /// Ends leases.
    pub(crate) async fn settle_rows(&self, settlements: &[Settlement]) -> RowResults<()> {
        let mut results: RowResults<()> = settlements.iter().map(|_| Ok(())).collect();
        let mut todo: HashMap<Place, Vec<(Row, Step)>> = HashMap::new();
        let mut seen: HashSet<LeaseToken> = HashSet::new();
        let mut repeated = Vec::new();
        for (number, settlement) in settlements.iter().enumerate() {
            if !seen.insert(settlement.receipt.token()) {
                repeated.push(number);
                continue;
            }
            match self.plan(number, settlement) {
                Ok((row, step)) => {
                    let place = (row.handle.queue().clone(), row.ticket.side);
                    todo.entry(place).or_default().push((row, step));
                }
                Err(error) => results[number] = Err(error),
            }
        }
        let places = todo.into_iter().map(|(place, rows)| self.carry_out(place, rows));
        for (number, result) in futures_util::future::join_all(places).await.into_iter().flatten() {
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

    /// What a settlement asks for.
    fn plan(&self, number: usize, settlement: &Settlement) -> Result<(Row, Step), MessagingError> {
        let Settlement { receipt, disposition, .. } = settlement.clone().checked(&self.capabilities.limits)?;
        let (ticket, held) = self.held(&receipt)?;
        let queue = receipt.queue().clone();
        let step = match disposition {
            Disposition::Ack => Step::Delete,
            Disposition::Nack(Nack::Release) => Step::Hide(0),
            Disposition::Nack(Nack::Retry { after, error }) => match held.stored.clone() {
                Some(stored) if ticket.side == Side::Standard && !queue.holds_dead_letters() => {
                    let copy = Box::new(stored.retried(after, error.as_deref()));
                    Step::Replace { copy, to: queue, renewed: self.renewed(&held) }
                }
                // A copy would lose its place; the message of another process has none to make a copy of; and a dead
                // letter keeps its record.
                _ => Step::Hide(hidden_for("retry delay", after, held.asked)?),
            },
            Disposition::Nack(Nack::DeadLetter { .. }) if queue.holds_dead_letters() => {
                return Err(MessagingError::invalid(
                    "settlement",
                    format!(
                        "message {} is among the dead letters already; acknowledge or redrive it",
                        receipt.message_id()
                    ),
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
                        why:
                            "SQS moves no message by its receipt, and only the process that received it has its body; \
                              dead-letter it there, or release it"
                                .to_owned(),
                    });
                }
            },
        };
        Ok((Row::new(number, receipt, ticket, &held), step))
    }

    /// Carries out what is to be done in one side of one queue.
    async fn carry_out(&self, place: Place, rows: Vec<(Row, Step)>) -> Vec<(usize, Result<(), MessagingError>)> {
        let (queue, side) = &place;
        let url = match self.url(queue, *side).await {
            Ok(Some(url)) => url,
            // The message went with its queue.
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
            self.ended(&place, "ack", deleted, answers)
        };
        let hide = async {
            let receipts = hidden.iter().map(|(row, seconds)| row.hidden(*seconds)).collect();
            let answers = self.calls.hide(&url, receipts).await;
            self.ended(&place, "nack", hidden.into_iter().map(|(row, _)| row).collect(), answers)
        };
        let (deleted, hidden, replaced) = tokio::join!(delete, hide, self.replace(&place, &url, replaced));
        deleted.into_iter().chain(hidden).chain(replaced).collect()
    }

    /// Leases that end with these answers.
    fn ended(
        &self,
        place: &Place,
        operation: &'static str,
        rows: Vec<Row>,
        answers: Vec<Result<(), Failure>>,
    ) -> Vec<(usize, Result<(), MessagingError>)> {
        let end = |(row, answer): (Row, Result<(), Failure>)| (row.number, self.end(place, operation, &row, answer));
        rows.into_iter().zip(answers).map(end).collect()
    }

    fn end(
        &self,
        place: &Place,
        operation: &'static str,
        row: &Row,
        answer: Result<(), Failure>,
    ) -> Result<(), MessagingError> {
        match answer {
            Ok(()) => {
                lease::over(&row.handle, &row.ticket, self.clock.now());
                Ok(())
            }
            Err(failure) => Err(self.refused(place, operation, row, failure)),
        }
    }

    fn refused(&self, place: &Place, operation: &'static str, row: &Row, failure: Failure) -> MessagingError {
        match failure {
            Failure::Stale(_) => {
                lease::over(&row.handle, &row.ticket, self.clock.now());
                row.handle.expired()
            }
            Failure::Missing => {
                self.urls.gone(&place.0, place.1);
                row.handle.expired()
            }
            failure => failure.into_error(operation, Some(&place.0), vec![row.handle.message_id()]),
        }
    }

    /// Puts copies where they belong and removes the originals. Their leases are renewed first: a receipt whose lease is
    /// over leaves no copy behind, and nobody receives the original meanwhile. For the caller they end when they would
    /// have: a settle that fails is no extension.
    async fn replace(
        &self,
        place: &Place,
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
                    row.fence = Fence::at(started + whole(seconds));
                    by_target.entry(to).or_default().push((row, *copy));
                }
                Err(failure) => results.push((row.number, Err(self.refused(place, REPLACE, &row, failure)))),
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
                lease::over(&row.handle, &row.ticket, self.clock.now());
                let unknown = |failure: Failure| MessagingError::OutcomeUnknown {
                    operation: REPLACE,
                    ids: vec![row.handle.message_id()],
                    // The copy is there; whether the original is too, nobody knows.
                    source: Some(std::sync::Arc::new(failure.into_error("delete", Some(&place.0), Vec::new()))),
                };
                results.push((row.number, answer.map_err(unknown)));
            }
        }
        results
    }

    /// Extends leases, and answers receipts that say so.
    pub(crate) async fn extend_rows(&self, rows: &[ExtendRow]) -> RowResults<ReceiptHandle> {
        let mut results: RowResults<ReceiptHandle> = rows.iter().map(|row| Ok(row.receipt.clone())).collect();
        let mut todo: HashMap<Place, Vec<(Row, i32)>> = HashMap::new();
        for (number, ExtendRow { receipt, extension }) in rows.iter().enumerate() {
            let planned = self.held(receipt).and_then(|(ticket, held)| {
                let seconds = hidden_for("visibility", *extension, held.asked)?;
                Ok((Row::new(number, receipt.clone(), ticket, &held), seconds))
            });
            match planned {
                Ok((row, seconds)) => {
                    let place = (receipt.queue().clone(), row.ticket.side);
                    todo.entry(place).or_default().push((row, seconds));
                }
                Err(error) => results[number] = Err(error),
            }
        }
        for (place, rows) in todo {
            let url = match self.url(&place.0, place.1).await {
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
                        let ends = started + whole(seconds);
                        Ok(lease::extended(&row.handle, &row.ticket, ends, self.clock.now()))
                    }
                    Err(failure) => Err(self.refused(&place, "extend", &row, failure)),
                };
            }
        }
        results
    }

    /// Gives messages back that nobody will handle.
    pub(crate) async fn release(&self, receipts: &[ReceiptHandle]) -> RowResults<()> {
        let releases: Vec<_> =
            receipts.iter().map(|receipt| Settlement::nack(receipt.clone(), Nack::Release)).collect();
        self.settle_rows(&releases).await
    }
}

/// For how many seconds a message is hidden while its copy is made: as long as its lease, and as long as a copy may take.
/// SQS refuses a second too many, so these are cut and not rounded up; none would give the message back.
fn renewed(held: &Held, copying: Duration) -> i32 {
    let possible = i32::try_from(possible(held.asked).as_secs()).unwrap_or(i32::MAX);
    seconds(held.left().max(copying)).min(possible.max(1))
}

/// For how long SQS can hide a message yet: it counts from when it was asked for it.
fn possible(asked: Option<Instant>) -> Duration {
    LONGEST_HIDE.saturating_sub(asked.map_or(Duration::ZERO, |asked| asked.elapsed()))
}

/// A time in SQS's seconds, if SQS can hide a message for so long.
fn hidden_for(what: &'static str, time: Duration, asked: Option<Instant>) -> Result<i32, MessagingError> {
    let (seconds, possible) = (seconds(time), possible(asked));
    if Duration::from_secs(seconds.unsigned_abs().into()) > possible {
        return Err(MessagingError::invalid(
            what,
            format!(
                "{seconds} s is too long: SQS holds a message back for 12 hours from its receive at most, and {} s of them \
                 are left",
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
    async fn nothing_is_held_back_for_longer_than_twelve_hours_from_its_receive() {
        let hour = Duration::from_secs(3600);
        let received = Some(Instant::now());
        assert_eq!(hidden_for("x", hour * 12, received).unwrap(), 43_200);
        assert!(hidden_for("x", hour * 12 + Duration::from_nanos(1), received).is_err());
        tokio::time::advance(hour * 11).await;
        assert_eq!(hidden_for("x", hour, received).unwrap(), 3600);
        let error = hidden_for("x", hour * 2, received).unwrap_err().to_string();
        assert!(error.contains("3600 s of them"), "{error}");
        // Nobody knows when another process received it.
        assert!(hidden_for("x", hour * 12, None).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_for_long_enough_and_never_for_a_second_too_many() {
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
