//! Finishing attempts, and heartbeats.

use std::time::Duration;

use postrider_core::task::{DeadReason, Progress, TaskOutcome, TaskStanding};
use postrider_core::{MessagingError, TaskState, duration_text};
use serde::{Deserialize, Serialize};

use crate::body::{self, Base64, Text};
use crate::object;
use crate::problem::Problem;

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum FinishOutcome {
    /// Done.
    Succeeded,
    /// Failed, to be retried.
    Retry,
    /// Failed for good.
    Dead,
    /// Never started.
    Released,
}

/// Outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// Lease of the attempt.
    pub lease: String,
    /// The outcome.
    pub outcome: FinishOutcome,
    /// Result of a success, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// Result of a success, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Base64>,
    /// Delay of a retry; none if absent.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Error text of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Reason of death; `permanent` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
}

impl Finish {
    /// The outcome of the attempt with this lease.
    pub fn new(lease: String, outcome: TaskOutcome) -> Self {
        let bare = |outcome| Self {
            lease,
            outcome,
            result: None,
            result_base64: None,
            after: None,
            error: None,
            reason: None,
        };
        match outcome {
            TaskOutcome::Succeeded { result } => {
                let (result, result_base64) = result.map_or((None, None), body::split);
                Self { result, result_base64, ..bare(FinishOutcome::Succeeded) }
            }
            TaskOutcome::Retry { after, error } => {
                Self { after: Some(after), error: Some(error), ..bare(FinishOutcome::Retry) }
            }
            TaskOutcome::Dead { reason, error } => {
                Self { reason: Some(reason), error: Some(error), ..bare(FinishOutcome::Dead) }
            }
            TaskOutcome::Released => bare(FinishOutcome::Released),
        }
    }

    /// The lease and the outcome.
    pub fn into_outcome(self) -> Result<(String, TaskOutcome), MessagingError> {
        let result = body::join("result", self.result, self.result_base64)?;
        let outcome = match (self.outcome, result, self.after, self.error, self.reason) {
            (FinishOutcome::Succeeded, result, None, None, None) => TaskOutcome::Succeeded { result },
            (FinishOutcome::Retry, None, after, error, None) => {
                TaskOutcome::Retry { after: after.unwrap_or_default(), error: error.unwrap_or_default() }
            }
            (FinishOutcome::Dead, None, None, error, reason) => {
                TaskOutcome::Dead { reason: reason.unwrap_or(DeadReason::Permanent), error: error.unwrap_or_default() }
            }
            (FinishOutcome::Released, None, None, None, None) => TaskOutcome::Released,
            _ => {
                return Err(MessagingError::invalid(
                    "outcome",
                    "succeeded may have result, retry may have after and error, dead may have reason and error, released \
                     none of them",
                ));
            }
        };
        Ok((self.lease, outcome))
    }
}

/// `POST /v1/tasks/finish`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "FinishTasks"))]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// The outcomes.
    #[serde(deserialize_with = "object::list")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub finish: Vec<Finish>,
}

/// Results, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// One standing each.
    pub finished: Vec<Standing>,
}

/// Whether a lease was valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Standing {
    /// Whether the lease was valid; if not, nothing was done.
    pub held: bool,
    /// With an invalid lease: the state of the task, null if it does not exist. With a valid one: DEAD, if a retry was
    /// requested after the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Why this row was refused; other rows are unaffected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl Standing {
    /// The standing of a refused row.
    pub fn refused(error: &MessagingError) -> Self {
        Self { held: false, state: None, problem: Some(Box::new(Problem::of(error))) }
    }
}

impl From<TaskStanding> for Standing {
    fn from(standing: TaskStanding) -> Self {
        match standing {
            TaskStanding::Held => Self { held: true, state: None, problem: None },
            TaskStanding::Spent => Self { held: true, state: Some(TaskState::Dead), problem: None },
            TaskStanding::Lost(state) => Self { held: false, state, problem: None },
        }
    }
}

impl From<Standing> for TaskStanding {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing { held: true, state: Some(TaskState::Dead), .. } => Self::Spent,
            Standing { held: true, .. } => Self::Held,
            Standing { held: false, state, .. } => Self::Lost(state),
        }
    }
}

/// A heartbeat of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The lease to extend.
    pub lease: String,
    /// Its progress.
    #[serde(default, deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl Heartbeat {
    /// The progress, validated.
    pub fn checked_progress(self) -> Result<Option<Progress>, MessagingError> {
        self.progress.map(|progress| Progress::new(progress.fraction, progress.text)).transpose()
    }
}

/// `POST /v1/tasks/heartbeat`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Heartbeats"))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The heartbeats.
    #[serde(deserialize_with = "object::list")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub heartbeats: Vec<Heartbeat>,
    /// New duration of the leases, counted from now.
    #[serde(with = "duration_text::Text")]
    pub extend: Duration,
}

/// `POST /v1/tasks/standings`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Leases"))]
#[serde(deny_unknown_fields)]
pub struct StandingsRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub leases: Vec<String>,
}

/// Whether leases are valid, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standings {
    /// One standing each.
    pub standings: Vec<Standing>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    #[test]
    fn outcomes_round_trip() {
        let outcomes = [
            TaskOutcome::Succeeded { result: None },
            TaskOutcome::Succeeded { result: Some(Bytes::from_static(b"\xff")) },
            TaskOutcome::Succeeded { result: Some(Bytes::from_static(b"")) },
            TaskOutcome::Retry { after: Duration::from_millis(1), error: "no".into() },
            TaskOutcome::Dead { reason: DeadReason::MaxAttempts, error: String::new() },
            TaskOutcome::Released,
        ];
        for outcome in outcomes {
            let request = FinishRequest { finish: vec![Finish::new("lease".into(), outcome.clone())] };
            let back = round_trip(&request).finish.remove(0);
            assert_eq!(back.into_outcome().unwrap(), ("lease".to_owned(), outcome));
        }
    }

    #[test]
    fn absent_fields_have_defaults_and_fields_of_other_outcomes_are_refused() {
        let read = |fields: &str| {
            let finish: Finish = serde_json::from_str(&format!(r#"{{"lease":"x","outcome":{fields}}}"#)).unwrap();
            finish.into_outcome().map(|(_, outcome)| outcome)
        };
        let dead = TaskOutcome::Dead { reason: DeadReason::Permanent, error: String::new() };
        assert_eq!(read(r#""dead""#).unwrap(), dead);
        for bad in [r#""succeeded","error":"no""#, r#""released","after":"5s""#, r#""retry","result":"x""#] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(is_refused::<Finish>(r#"{"lease":"x","outcome":"dead","reasons":"x"}"#));
    }

    #[test]
    fn standings_round_trip() {
        let canceled = TaskStanding::Lost(Some(TaskState::Canceled));
        let standings = [TaskStanding::Held, TaskStanding::Spent, TaskStanding::Lost(None), canceled];
        let answer = Standings { standings: standings.map(Standing::from).into() };
        let back = round_trip(&answer).standings.into_iter().map(TaskStanding::from);
        assert_eq!(back.collect::<Vec<_>>(), standings);
        let written = serde_json::json!([
            {"held": true}, {"held": true, "state": "DEAD"}, {"held": false}, {"held": false, "state": "CANCELED"}
        ]);
        assert_eq!(json(&answer)["standings"], written);
        let refused = Standing::refused(&MessagingError::invalid("lease", "odd"));
        assert_eq!(round_trip(&refused), refused);
        assert_eq!(json(&refused)["held"], false);
    }

    #[test]
    fn heartbeats_round_trip() {
        let progress = Some(Progress::new(Some(0.5), Some("half".into())).unwrap());
        let heartbeats = vec![Heartbeat { lease: "x".into(), progress: progress.clone() }];
        let request = HeartbeatRequest { heartbeats, extend: Duration::from_secs(30) };
        assert_eq!(round_trip(&request), request);
        assert_eq!(round_trip(&request).heartbeats.remove(0).checked_progress().unwrap(), progress);
        let invalid = Some(Progress { fraction: Some(2.0), text: None });
        assert!(Heartbeat { lease: "x".into(), progress: invalid }.checked_progress().is_err());
        let leases = StandingsRequest { leases: vec!["x".into()] };
        assert_eq!(round_trip(&leases), leases);
    }
}
