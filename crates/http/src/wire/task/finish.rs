//! How attempts end, and signs of life meanwhile.

use std::time::Duration;

use postrider_core::task::{DeadReason, Progress, TaskOutcome, TaskStanding};
use postrider_core::{MessagingError, TaskState};
use serde::{Deserialize, Serialize};

use super::lease::Lease;
use crate::wire::body::{self, Base64, Text};
use crate::wire::duration;

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
    pub lease: Lease,
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

impl From<postrider_core::task::Finish> for Finish {
    fn from(finish: postrider_core::task::Finish) -> Self {
        let bare = |outcome| Self {
            lease: Lease(finish.lease),
            outcome,
            result: None,
            result_base64: None,
            after: None,
            error: None,
            reason: None,
        };
        match finish.outcome {
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
}

impl TryFrom<Finish> for postrider_core::task::Finish {
    type Error = MessagingError;

    fn try_from(finish: Finish) -> Result<Self, Self::Error> {
        let result = body::join("result", finish.result, finish.result_base64)?;
        let outcome = match (finish.outcome, result, finish.after, finish.error, finish.reason) {
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
        Ok(Self { lease: finish.lease.0, outcome })
    }
}

/// `POST /v1/tasks/finish`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// The attempts, and how each ends.
    pub finish: Vec<Finish>,
}

/// What became of each end, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// A standing for each.
    pub finished: Vec<Standing>,
}

/// Whether a task was still held by its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Whether it was; only then was something done.
    pub held: bool,
    /// The state of a task that was not; null when there is no such task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
}

impl From<TaskStanding> for Standing {
    fn from(standing: TaskStanding) -> Self {
        match standing {
            TaskStanding::Held => Self { held: true, state: None },
            TaskStanding::Lost(state) => Self { held: false, state },
        }
    }
}

impl From<Standing> for TaskStanding {
    fn from(standing: Standing) -> Self {
        if standing.held { Self::Held } else { Self::Lost(standing.state) }
    }
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// Whose lease is renewed.
    pub lease: Lease,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl From<postrider_core::task::Heartbeat> for Heartbeat {
    fn from(heartbeat: postrider_core::task::Heartbeat) -> Self {
        Self { lease: Lease(heartbeat.lease), progress: heartbeat.progress }
    }
}

impl TryFrom<Heartbeat> for postrider_core::task::Heartbeat {
    type Error = MessagingError;

    fn try_from(heartbeat: Heartbeat) -> Result<Self, Self::Error> {
        // What came over the wire has not been checked yet.
        let progress = heartbeat.progress.map(|told| Progress::new(told.fraction, told.text)).transpose()?;
        Ok(Self { lease: heartbeat.lease.0, progress })
    }
}

/// `POST /v1/tasks/heartbeat`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The signs.
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
    pub leases: Vec<Lease>,
}

/// Whether leases are held, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standings {
    /// A standing for each.
    pub standings: Vec<Standing>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use postrider_core::TaskId;
    use postrider_core::task::TaskLease;

    use super::*;
    use crate::wire::round_trip::{is_refused, json, over};

    fn lease() -> TaskLease {
        TaskLease { id: TaskId::generate(), token: 7 }
    }

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
            let finish = postrider_core::task::Finish { lease: lease(), outcome };
            let request = FinishRequest { finish: vec![finish.clone().into()] };
            let back = over(&request).finish.remove(0);
            assert_eq!(postrider_core::task::Finish::try_from(back).unwrap(), finish);
        }
    }

    #[test]
    fn what_is_left_out_has_a_meaning_and_what_does_not_belong_is_refused() {
        let read = |json: String| {
            let finish: Finish = serde_json::from_str(&json).unwrap();
            postrider_core::task::Finish::try_from(finish).map(|finish| finish.outcome)
        };
        let lease = Lease(lease());
        let dead = read(format!(r#"{{"lease":"{lease}","outcome":"dead"}}"#)).unwrap();
        assert_eq!(dead, TaskOutcome::Dead { reason: DeadReason::Permanent, error: String::new() });
        for bad in [r#""succeeded","error":"no""#, r#""released","after":"5s""#, r#""retry","result":"x""#] {
            assert!(read(format!(r#"{{"lease":"{lease}","outcome":{bad}}}"#)).is_err(), "{bad}");
        }
        assert!(is_refused::<Finish>(&format!(r#"{{"lease":"{lease}","outcome":"dead","reasons":"x"}}"#)));
    }

    #[test]
    fn standings_come_over_whole() {
        let standings = [TaskStanding::Held, TaskStanding::Lost(None), TaskStanding::Lost(Some(TaskState::Canceled))];
        let answer = Standings { standings: standings.map(Standing::from).into() };
        let back = over(&answer).standings.into_iter().map(TaskStanding::from);
        assert_eq!(back.collect::<Vec<_>>(), standings);
        let written = serde_json::json!([{"held": true}, {"held": false}, {"held": false, "state": "CANCELED"}]);
        assert_eq!(json(&answer)["standings"], written);
    }

    #[test]
    fn signs_of_life_come_over_whole() {
        let progress = Some(Progress::new(Some(0.5), Some("half".into())).unwrap());
        let heartbeat = postrider_core::task::Heartbeat { lease: lease(), progress };
        let request = HeartbeatRequest { heartbeats: vec![heartbeat.clone().into()], extend: Duration::from_secs(30) };
        let back = over(&request).heartbeats.remove(0);
        assert_eq!(postrider_core::task::Heartbeat::try_from(back).unwrap(), heartbeat);
        let told = Some(Progress { fraction: Some(2.0), text: None });
        let odd = Heartbeat { lease: Lease(lease()), progress: told };
        assert!(postrider_core::task::Heartbeat::try_from(odd).is_err());
        let leases = StandingsRequest { leases: vec![Lease(lease())] };
        assert_eq!(over(&leases), leases);
    }
}
