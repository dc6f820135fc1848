//! How leases end, and how they go on.

use std::time::Duration;

use postrider_core::disposition::{MAX_ERROR_BYTES, MAX_REASON_BYTES};
use postrider_core::{DeadLetterReason, Disposition, MessagingError, Nack, ReceiptHandle};
use serde::{Deserialize, Serialize};

use super::duration;
use super::object;
use super::problem::Problem;

/// How a lease ends by its holder's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Handled.
    Ack,
    /// To be tried again.
    Retry,
    /// Never begun: back at once, uncounted.
    Release,
    /// To the dead letters.
    DeadLetter,
}

/// One lease, and how it ends.
// The receipt is text here: one that is damaged is its row's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// The lease.
    pub receipt: String,
    /// How it ends.
    pub outcome: Outcome,
    /// How long a message that is retried stays away; without it, as long as the default backoff says.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// What the handler said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why a message dies, in a word; `rejected` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who handled the message; whoever received it without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

impl From<&postrider_core::Settlement> for Settlement {
    fn from(settlement: &postrider_core::Settlement) -> Self {
        let (outcome, after, error, reason) = match &settlement.disposition {
            Disposition::Ack => (Outcome::Ack, None, None, None),
            Disposition::Nack(Nack::Retry { after, error }) => (Outcome::Retry, Some(*after), error.clone(), None),
            Disposition::Nack(Nack::Release) => (Outcome::Release, None, None, None),
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                (Outcome::DeadLetter, None, error.clone(), Some(reason.as_str().to_owned()))
            }
        };
        let worker = settlement.worker.as_deref().map(str::to_owned);
        Self { receipt: settlement.receipt.to_string(), outcome, after, error, reason, worker }
    }
}

impl TryFrom<Settlement> for postrider_core::Settlement {
    type Error = MessagingError;

    fn try_from(settlement: Settlement) -> Result<Self, Self::Error> {
        let Settlement { receipt, outcome, after, error, reason, worker } = settlement;
        let receipt: ReceiptHandle = receipt.parse()?;
        let disposition = match (outcome, after, error, reason) {
            (Outcome::Ack, None, None, None) => Disposition::Ack,
            (Outcome::Release, None, None, None) => Disposition::Nack(Nack::Release),
            (Outcome::Retry, after, error, None) => Disposition::Nack(retry(after, error)),
            (Outcome::DeadLetter, None, error, reason) => {
                let reason = reason.map_or(DeadLetterReason::REJECTED, DeadLetterReason::from);
                Disposition::Nack(Nack::DeadLetter { reason, error })
            }
            _ => {
                return Err(MessagingError::invalid(
                    "settlement",
                    "after and error belong to a retry, reason and error to a dead letter, and nothing to the others",
                ));
            }
        };
        Ok(Self { receipt, disposition, worker: worker.map(Into::into) })
    }
}

/// A retry `after` that long, or after what the default backoff gives for a first failure.
fn retry(after: Option<Duration>, error: Option<String>) -> Nack {
    let nack = after.map_or_else(|| Nack::from(true), Nack::retry_after);
    match error {
        Some(error) => nack.with_error(error),
        None => nack,
    }
}

/// `POST /v1/messages/settle`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// The leases, and how each ends.
    #[serde(deserialize_with = "object::list")]
    pub settlements: Vec<Settlement>,
}

/// `POST /v1/messages/ack` and `/release`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptsRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    pub receipts: Vec<String>,
}

impl ReceiptsRequest {
    /// The same as settlements.
    pub fn into_settlements(self, outcome: Outcome) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, outcome, None, None, None)
    }
}

/// `POST /v1/messages/nack`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NackRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    pub receipts: Vec<String>,
    /// How long the messages stay away; without it, as long as the default backoff says.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// What the handler said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl NackRequest {
    /// The same as settlements.
    pub fn into_settlements(self) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, Outcome::Retry, self.after, self.error, None)
    }
}

/// `POST /v1/messages/dead-letter`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    pub receipts: Vec<String>,
    /// Why the messages die, in a word.
    pub reason: String,
    /// What the handler said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl DeadLetterRequest {
    /// The same as settlements.
    pub fn into_settlements(self) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, Outcome::DeadLetter, None, self.error, Some(self.reason))
    }
}

/// One at a time, and with no more of the texts than is looked at: each has a copy of them.
fn settlements(
    receipts: Vec<String>,
    outcome: Outcome,
    after: Option<Duration>,
    mut error: Option<String>,
    mut reason: Option<String>,
) -> impl ExactSizeIterator<Item = Settlement> {
    // A reason that is too long is refused, not cut, and has to stay too long.
    for (text, most) in [(&mut error, MAX_ERROR_BYTES), (&mut reason, 2 * MAX_REASON_BYTES)] {
        if let Some(text) = text {
            text.truncate(text.floor_char_boundary(most));
        }
    }
    receipts.into_iter().map(move |receipt| Settlement {
        receipt,
        outcome,
        after,
        error: error.clone(),
        reason: reason.clone(),
        worker: None,
    })
}

/// `POST /v1/messages/extend`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    pub receipts: Vec<String>,
    /// How long from now they last.
    #[serde(with = "duration")]
    pub visibility: Duration,
}

/// What was asked was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// It was.
    Done,
}

/// What became of one lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// The lease, as the request named it.
    #[serde(default)]
    pub receipt: String,
    /// The receipt by which an extended lease goes on, when it is another than the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_receipt: Option<String>,
    /// That it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Done>,
    /// Why it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl Row {
    /// What became of the lease of this receipt.
    pub fn new(receipt: String, result: &Result<(), MessagingError>) -> Self {
        match result {
            Ok(()) => Self { receipt, new_receipt: None, outcome: Some(Done::Done), problem: None },
            Err(error) => {
                Self { receipt, new_receipt: None, outcome: None, problem: Some(Box::new(Problem::of(error))) }
            }
        }
    }

    /// What became of an extension; of one that was done, the receipt by which the lease goes on.
    pub fn extended(receipt: String, result: Result<String, MessagingError>) -> Self {
        let (next, result) = match result {
            Ok(next) => (Some(next), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let new_receipt = next.filter(|next| *next != receipt);
        Self { new_receipt, ..Self::new(receipt, &result) }
    }

    /// What the row says; `None` when it says nothing.
    pub fn into_result(self, provider: &'static str) -> Option<Result<(), MessagingError>> {
        match self.problem {
            Some(problem) => Some(Err(problem.into_error(provider))),
            None => self.outcome.map(|Done::Done| Ok(())),
        }
    }
}

/// What became of each lease, in the order of the request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rows {
    /// A row for each.
    pub results: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use postrider_core::{LeaseToken, MessageId, NativeRef, QueueName};

    use super::*;
    use crate::round_trip::{is_refused, json, over};

    fn receipt() -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new("http", queue, MessageId::generate(), LeaseToken(7), NativeRef::Row(7))
    }

    #[test]
    fn settlements_come_over_whole() {
        let rows = [
            postrider_core::Settlement::ack(receipt()),
            postrider_core::Settlement::nack(receipt(), Nack::Release),
            postrider_core::Settlement::nack(receipt(), Nack::retry_after(Duration::ZERO)),
            postrider_core::Settlement::nack(receipt(), Nack::retry_after(Duration::from_nanos(1)).with_error("no")),
            postrider_core::Settlement::nack(receipt(), Nack::dead_letter("odd")),
            postrider_core::Settlement::nack(receipt(), Nack::dead_letter("odd").with_error("no")).by("host:7"),
        ];
        let request = SettleRequest { settlements: rows.iter().map(Settlement::from).collect() };
        assert_eq!(over(&request), request);
        for (settlement, row) in request.settlements.into_iter().zip(rows) {
            assert_eq!(postrider_core::Settlement::try_from(settlement).unwrap(), row);
        }
        let ack = receipt();
        let written = json(&Settlement::from(&postrider_core::Settlement::ack(ack.clone())));
        assert_eq!(written, serde_json::json!({"receipt": ack.to_string(), "outcome": "ack"}));
    }

    #[test]
    fn what_is_left_out_has_a_meaning_and_what_does_not_belong_is_refused() {
        let settlement = |outcome| Settlement {
            receipt: receipt().to_string(),
            outcome,
            after: None,
            error: Some("no".into()),
            reason: None,
            worker: None,
        };
        let read = |settlement| postrider_core::Settlement::try_from(settlement).map(|row| row.disposition);
        match read(settlement(Outcome::Retry)).unwrap() {
            Disposition::Nack(Nack::Retry { after, error: Some(error) }) => {
                assert!(after > Duration::ZERO && error == "no");
            }
            other => panic!("{other:?}"),
        }
        let rejected = Nack::dead_letter(DeadLetterReason::REJECTED).with_error("no");
        assert_eq!(read(settlement(Outcome::DeadLetter)).unwrap(), Disposition::Nack(rejected));
        for outcome in [Outcome::Ack, Outcome::Release] {
            assert!(matches!(read(settlement(outcome)), Err(MessagingError::InvalidInput { .. })));
        }
        let damaged = Settlement { receipt: "pr1.x".into(), ..settlement(Outcome::Retry) };
        assert!(matches!(read(damaged), Err(MessagingError::InvalidReceipt { .. })));
        assert!(is_refused::<Settlement>(r#"{"receipt":"a","outcome":"nack"}"#));
        assert!(is_refused::<ExtendRequest>(r#"{"receipts":["a"]}"#));
    }

    #[test]
    fn short_forms_are_settlements() {
        let receipts = vec!["a".to_owned(), "b".to_owned()];
        let acks = ReceiptsRequest { receipts: receipts.clone() };
        assert_eq!(over(&acks).into_settlements(Outcome::Ack).last().unwrap().receipt, "b");
        let nack = NackRequest { receipts: receipts.clone(), after: None, error: Some("no".into()) };
        assert_eq!(over(&nack).into_settlements().next().unwrap().outcome, Outcome::Retry);
        let dead = DeadLetterRequest { receipts: receipts.clone(), reason: "odd".into(), error: None };
        assert_eq!(over(&dead).into_settlements().next().unwrap().reason.as_deref(), Some("odd"));
        let long =
            DeadLetterRequest { receipts: receipts.clone(), reason: "r".repeat(1000), error: Some("ü".repeat(9999)) };
        let long = long.into_settlements().next().unwrap();
        let lengths = (long.reason.map(|text| text.len()), long.error.map(|text| text.len()));
        assert_eq!(lengths, (Some(2 * MAX_REASON_BYTES), Some(MAX_ERROR_BYTES)), "each receipt has a copy");
        let extend = ExtendRequest { receipts, visibility: Duration::from_micros(1) };
        assert_eq!(over(&extend), extend);
    }

    #[test]
    fn rows_say_done_or_a_problem() {
        let held = receipt();
        let rows = Rows { results: vec![Row::new("a".into(), &Ok(())), Row::new("b".into(), &Err(held.expired()))] };
        assert_eq!(json(&rows)["results"][0], serde_json::json!({"receipt": "a", "outcome": "done"}));
        let extended = Row::extended("a".into(), Ok("b".into()));
        assert_eq!(json(&extended), serde_json::json!({"receipt": "a", "new_receipt": "b", "outcome": "done"}));
        let extended = Row::extended("a".into(), Ok("a".into()));
        assert_eq!(json(&extended), serde_json::json!({"receipt": "a", "outcome": "done"}));
        let mut rows = over(&rows).results.into_iter().map(|row| row.into_result("http").unwrap());
        assert!(rows.next().unwrap().is_ok());
        assert!(
            matches!(rows.next(), Some(Err(MessagingError::VisibilityExpired { id, .. })) if id == held.message_id())
        );
    }
}
