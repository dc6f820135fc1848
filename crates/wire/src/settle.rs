//! Settling and extending leases.

use std::time::Duration;

use postrider_core::disposition::{MAX_ERROR_BYTES, MAX_REASON_BYTES};
use postrider_core::{DeadLetterReason, Disposition, MessagingError, Nack, ReceiptHandle, duration_text};
use serde::{Deserialize, Serialize};

use super::object;
use super::problem::Problem;

/// Outcome of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Handled.
    Ack,
    /// Retried later.
    Retry,
    /// Never started: due at once, the delivery is not counted.
    Release,
    /// Dead-lettered.
    DeadLetter,
}

/// A receipt and the outcome of its message.
// The receipt is a text, so that a damaged one fails only its row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// The receipt.
    pub receipt: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Delay of a retry; the default backoff if absent.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Error text of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Reason of a dead letter; `rejected` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Worker that handled the message; the one that received it if absent.
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
                    "a retry may have after and error, a dead letter reason and error, the other outcomes none of them",
                ));
            }
        };
        Ok(Self { receipt, disposition, worker: worker.map(Into::into) })
    }
}

/// A retry after the given delay, or after the default backoff of a first failure.
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
    /// The settlements.
    #[serde(deserialize_with = "object::list")]
    pub settlements: Vec<Settlement>,
}

/// `POST /v1/messages/ack` and `/release`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Receipts"))]
#[serde(deny_unknown_fields)]
pub struct ReceiptsRequest {
    /// The receipts.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub receipts: Vec<String>,
}

impl ReceiptsRequest {
    /// The equivalent settlements.
    pub fn into_settlements(self, outcome: Outcome) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, outcome, None, None, None)
    }
}

/// `POST /v1/messages/nack`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Nack"))]
#[serde(deny_unknown_fields)]
pub struct NackRequest {
    /// The receipts.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub receipts: Vec<String>,
    /// Delay of the retries; the default backoff if absent.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Error text of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl NackRequest {
    /// The equivalent settlements.
    pub fn into_settlements(self) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, Outcome::Retry, self.after, self.error, None)
    }
}

/// `POST /v1/messages/dead-letter`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetterMessages"))]
#[serde(deny_unknown_fields)]
pub struct DeadLetterRequest {
    /// The receipts.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub receipts: Vec<String>,
    /// Reason of the dead letters.
    pub reason: String,
    /// Error text of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl DeadLetterRequest {
    /// The equivalent settlements.
    pub fn into_settlements(self) -> impl ExactSizeIterator<Item = Settlement> {
        settlements(self.receipts, Outcome::DeadLetter, None, self.error, Some(self.reason))
    }
}

/// Settlements with the same outcome. Each has a copy of the texts, so they are made lazily and the texts are cut first.
fn settlements(
    receipts: Vec<String>,
    outcome: Outcome,
    after: Option<Duration>,
    mut error: Option<String>,
    mut reason: Option<String>,
) -> impl ExactSizeIterator<Item = Settlement> {
    // A reason that is too long must be refused later, so it is cut to a length that is still too long.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Extend"))]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The receipts.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub receipts: Vec<String>,
    /// New duration of the leases, counted from now.
    #[serde(with = "duration_text::Text")]
    pub visibility: Duration,
}

/// Outcome of a row that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// Done.
    Done,
}

/// Result for one receipt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SettledRow"))]
pub struct Row {
    /// The receipt, as in the request.
    #[serde(default)]
    pub receipt: String,
    /// New receipt of an extended lease, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_receipt: Option<String>,
    /// Set if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Done>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl Row {
    /// The row of a settlement.
    pub fn new(receipt: String, result: &Result<(), MessagingError>) -> Self {
        match result {
            Ok(()) => Self { receipt, new_receipt: None, outcome: Some(Done::Done), problem: None },
            Err(error) => {
                Self { receipt, new_receipt: None, outcome: None, problem: Some(Box::new(Problem::of(error))) }
            }
        }
    }

    /// The row of an extension; `Ok` has the receipt of the extended lease.
    pub fn extended(receipt: String, result: Result<String, MessagingError>) -> Self {
        let (next, result) = match result {
            Ok(next) => (Some(next), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let new_receipt = next.filter(|next| *next != receipt);
        Self { new_receipt, ..Self::new(receipt, &result) }
    }

    /// Result of the row; `None` if the row has neither a result nor a problem.
    pub fn into_result(self, provider: &'static str) -> Option<Result<(), MessagingError>> {
        match self.problem {
            Some(problem) => Some(Err(problem.into_error(provider))),
            None => self.outcome.map(|Done::Done| Ok(())),
        }
    }
}

/// Results, in the order of the request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rows {
    /// One row each.
    pub results: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use postrider_core::{LeaseToken, MessageId, NativeRef, QueueName};

    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn receipt() -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new("http", queue, MessageId::generate(), LeaseToken(7), NativeRef::Row(7))
    }

    #[test]
    fn settlements_round_trip() {
        let rows = [
            postrider_core::Settlement::ack(receipt()),
            postrider_core::Settlement::nack(receipt(), Nack::Release),
            postrider_core::Settlement::nack(receipt(), Nack::retry_after(Duration::ZERO)),
            postrider_core::Settlement::nack(receipt(), Nack::retry_after(Duration::from_nanos(1)).with_error("no")),
            postrider_core::Settlement::nack(receipt(), Nack::dead_letter("odd")),
            postrider_core::Settlement::nack(receipt(), Nack::dead_letter("odd").with_error("no")).by("host:7"),
        ];
        let request = SettleRequest { settlements: rows.iter().map(Settlement::from).collect() };
        assert_eq!(round_trip(&request), request);
        for (settlement, row) in request.settlements.into_iter().zip(rows) {
            assert_eq!(postrider_core::Settlement::try_from(settlement).unwrap(), row);
        }
        let ack = receipt();
        let written = json(&Settlement::from(&postrider_core::Settlement::ack(ack.clone())));
        assert_eq!(written, serde_json::json!({"receipt": ack.to_string(), "outcome": "ack"}));
    }

    #[test]
    fn absent_fields_have_defaults_and_fields_of_other_outcomes_are_refused() {
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
    fn short_requests_become_settlements() {
        let receipts = vec!["a".to_owned(), "b".to_owned()];
        let acks = ReceiptsRequest { receipts: receipts.clone() };
        assert_eq!(round_trip(&acks).into_settlements(Outcome::Ack).last().unwrap().receipt, "b");
        let nack = NackRequest { receipts: receipts.clone(), after: None, error: Some("no".into()) };
        assert_eq!(round_trip(&nack).into_settlements().next().unwrap().outcome, Outcome::Retry);
        let dead = DeadLetterRequest { receipts: receipts.clone(), reason: "odd".into(), error: None };
        assert_eq!(round_trip(&dead).into_settlements().next().unwrap().reason.as_deref(), Some("odd"));
        let long =
            DeadLetterRequest { receipts: receipts.clone(), reason: "r".repeat(1000), error: Some("ü".repeat(9999)) };
        let long = long.into_settlements().next().unwrap();
        let lengths = (long.reason.map(|text| text.len()), long.error.map(|text| text.len()));
        assert_eq!(lengths, (Some(2 * MAX_REASON_BYTES), Some(MAX_ERROR_BYTES)), "each receipt has a copy");
        let extend = ExtendRequest { receipts, visibility: Duration::from_micros(1) };
        assert_eq!(round_trip(&extend), extend);
    }

    #[test]
    fn rows_have_an_outcome_or_a_problem() {
        let lost = receipt();
        let rows = Rows { results: vec![Row::new("a".into(), &Ok(())), Row::new("b".into(), &Err(lost.expired()))] };
        assert_eq!(json(&rows)["results"][0], serde_json::json!({"receipt": "a", "outcome": "done"}));
        let extended = Row::extended("a".into(), Ok("b".into()));
        assert_eq!(json(&extended), serde_json::json!({"receipt": "a", "new_receipt": "b", "outcome": "done"}));
        let extended = Row::extended("a".into(), Ok("a".into()));
        assert_eq!(json(&extended), serde_json::json!({"receipt": "a", "outcome": "done"}));
        let mut rows = round_trip(&rows).results.into_iter().map(|row| row.into_result("http").unwrap());
        assert!(rows.next().unwrap().is_ok());
        assert!(
            matches!(rows.next(), Some(Err(MessagingError::VisibilityExpired { id, .. })) if id == lost.message_id())
        );
    }
}
