//! How attempts end, and signs of life meanwhile.

use std::time::Duration;

use postrider_core::task::{DeadReason, Progress, TaskOutcome, TaskStanding};
use postrider_core::{MessagingError, TaskState};
use serde::{Deserialize, Serialize};

use crate::body::{self, Base64, Text};
use crate::duration;
use crate::object;
use crate::problem::Problem;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishOutcome {
    /// The work is done.
    Succeeded,
    /// It failed, and is tried again.
    Retry,
    /// It failed for good.
    Dead,
    /// It was never begun.
    Released,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// Whose.
    pub lease: String,
    /// How.
    pub outcome: FinishOutcome,
    /// What a success brought, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// What a success brought, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Base64>,
    /// How much later it is tried again; at once without it.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why there is no further attempt; `permanent` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
}

impl Finish {
    /// The end of the attempt that this lease is for.
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

    /// The lease, and how its attempt ended.
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
                    "result belongs to a success, after and error to a retry, reason and error to a death, and \
                     nothing to a release",
                ));
            }
        };
        Ok((self.lease, outcome))
    }
}

/// `POST /v1/tasks/finish`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// The attempts, and how each ends.
    #[serde(deserialize_with = "object::list")]
    pub finish: Vec<Finish>,
}

/// What became of each end, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// A standing for each.
    pub finished: Vec<Standing>,
}

/// Whether a task was still held by its lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Whether it was; only then was something done.
    pub held: bool,
    /// The state of a task that was not; null when there is no such task. Of one that was: DEAD, when a retry was asked
    /// for after its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Why nothing was done by this lease; the others are not touched by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl Standing {
    /// Nothing was done by this lease.
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

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// Whose lease is renewed.
    pub lease: String,
    /// How far it has come.
    #[serde(default, deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl Heartbeat {
    /// What is told of progress, checked: it came over the wire.
    pub fn checked_progress(self) -> Result<Option<Progress>, MessagingError> {
        self.progress.map(|told| Progress::new(told.fraction, told.text)).transpose()
    }
}

/// `POST /v1/tasks/heartbeat`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The signs.
    #[serde(deserialize_with = "object::list")]
    pub heartbeats: Vec<Heartbeat>,
    /// How long from now the leases last.
    #[serde(with = "duration")]
    pub extend: Duration,
}

/// `POST /v1/tasks/standings`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandingsRequest {
    /// The leases.
    #[serde(deserialize_with = "object::values")]
    pub leases: Vec<String>,
}

/// Whether leases are held, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standings {
    /// A standing for each.
    pub standings: Vec<Standing>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::round_trip::{is_refused, json, over};

    #[test]
    fn ends_come_over_whole() {
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
            let back = over(&request).finish.remove(0);
            assert_eq!(back.into_outcome().unwrap(), ("lease".to_owned(), outcome));
        }
    }

    #[test]
    fn what_is_left_out_has_a_meaning_and_what_does_not_belong_is_refused() {
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
    fn standings_come_over_whole() {
        let canceled = TaskStanding::Lost(Some(TaskState::Canceled));
        let standings = [TaskStanding::Held, TaskStanding::Spent, TaskStanding::Lost(None), canceled];
        let answer = Standings { standings: standings.map(Standing::from).into() };
        let back = over(&answer).standings.into_iter().map(TaskStanding::from);
        assert_eq!(back.collect::<Vec<_>>(), standings);
        let written = serde_json::json!([
            {"held": true}, {"held": true, "state": "DEAD"}, {"held": false}, {"held": false, "state": "CANCELED"}
        ]);
        assert_eq!(json(&answer)["standings"], written);
        let refused = Standing::refused(&MessagingError::invalid("lease", "odd"));
        assert_eq!(over(&refused), refused);
        assert_eq!(json(&refused)["held"], false);
    }

    #[test]
    fn signs_of_life_come_over_whole() {
        let progress = Some(Progress::new(Some(0.5), Some("half".into())).unwrap());
        let heartbeats = vec![Heartbeat { lease: "x".into(), progress: progress.clone() }];
        let request = HeartbeatRequest { heartbeats, extend: Duration::from_secs(30) };
        assert_eq!(over(&request), request);
        assert_eq!(over(&request).heartbeats.remove(0).checked_progress().unwrap(), progress);
        let told = Some(Progress { fraction: Some(2.0), text: None });
        assert!(Heartbeat { lease: "x".into(), progress: told }.checked_progress().is_err());
        let leases = StandingsRequest { leases: vec!["x".into()] };
        assert_eq!(over(&leases), leases);
    }
}
