//! Replaying dead tasks and editing payloads.

use bytes::Bytes;
use postrider_core::task::{DeadReason, TaskFilter};
use postrider_core::{MessagingError, TaskId, TaskState, TaskType, Timestamp};
use serde::{Deserialize, Serialize};

use crate::body::{self, Base64, Text};
use crate::object;

/// `POST /v1/tasks/replay`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Replay"))]
#[serde(default, deny_unknown_fields)]
pub struct ReplayRequest {
    /// Of one of these types.
    #[serde(rename = "type", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<TaskType>,
    /// With all of these tags.
    #[serde(rename = "tag", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// With this reason of death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// Whose last error contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Created by this schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<TaskId>>,
    /// Maximum number of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<usize>,
    /// Only report what would be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl ReplayRequest {
    /// The filter; matches all dead tasks if `ids` is set.
    pub fn filter(&self) -> Result<TaskFilter, MessagingError> {
        let filter = TaskFilter {
            states: vec![TaskState::Dead],
            types: self.types.clone(),
            within: None,
            tags: self.tags.clone(),
            schedule: self.schedule.clone(),
            dead_reason: self.reason,
            error_contains: self.error.clone(),
            created_since: self.since,
            created_before: self.before,
        };
        let all_dead = TaskFilter { states: vec![TaskState::Dead], ..TaskFilter::default() };
        if self.ids.is_some() && filter != all_dead {
            return Err(MessagingError::invalid("choice", "`ids` cannot be combined with other filters"));
        }
        Ok(filter)
    }
}

/// `POST /v1/tasks/replay-job`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReplayJob"))]
#[serde(default, deny_unknown_fields)]
pub struct ReplayJobRequest {
    /// Of one of these types.
    #[serde(rename = "type", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<TaskType>,
    /// With all of these tags.
    #[serde(rename = "tag", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// With this reason of death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// Whose last error contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Created by this schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<TaskId>>,
    /// Maximum number of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<usize>,
    /// Maximum rate, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub rate: Option<f64>,
}

impl ReplayJobRequest {
    /// The same without the rate.
    pub fn replay(&self) -> ReplayRequest {
        ReplayRequest {
            types: self.types.clone(),
            tags: self.tags.clone(),
            reason: self.reason,
            error: self.error.clone(),
            schedule: self.schedule.clone(),
            since: self.since,
            before: self.before,
            ids: self.ids.clone(),
            limit: self.limit,
            dry_run: None,
        }
    }
}

/// The result of a replay or of its dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Replayed {
    /// Tasks that were replayed.
    pub replayed: Vec<TaskId>,
    /// Tasks that were not.
    #[serde(default)]
    pub skipped: Vec<TaskId>,
    /// Whether nothing was changed because the request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// `PUT /v1/tasks/{id}/payload`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Payload", extend("oneOf" = [{ "required": ["payload"] }, { "required": ["payload_base64"] }]))
)]
#[serde(deny_unknown_fields)]
pub struct EditPayloadRequest {
    /// The new payload, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Text>,
    /// The new payload, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
}

impl From<Bytes> for EditPayloadRequest {
    fn from(payload: Bytes) -> Self {
        let (payload, payload_base64) = body::split(payload);
        Self { payload, payload_base64 }
    }
}

impl EditPayloadRequest {
    /// The new payload.
    pub fn into_payload(self) -> Result<Bytes, MessagingError> {
        body::required("payload", self.payload, self.payload_base64)
    }
}

/// A payload was edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Revision"))]
pub struct Edited {
    /// Number of the new revision.
    pub revision: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    #[test]
    fn replays_round_trip() {
        let job = ReplayJobRequest {
            types: vec![TaskType::new("mail").unwrap()],
            tags: vec!["a".into()],
            reason: Some(DeadReason::Permanent),
            error: Some("no".into()),
            schedule: Some("daily".into()),
            since: Some(Timestamp::from_micros(1)),
            before: Some(Timestamp::from_micros(2)),
            ids: None,
            limit: Some(7),
            rate: Some(10.0),
        };
        assert_eq!(round_trip(&job), job);
        let replay = round_trip(&job.replay());
        assert_eq!(replay, job.replay());
        let filter = replay.filter().unwrap();
        assert_eq!((filter.states, filter.types), (vec![TaskState::Dead], job.types));
        assert_eq!(json(&ReplayRequest::default()), serde_json::json!({}));
        let both = ReplayRequest { ids: Some(Vec::new()), ..replay };
        assert!(both.filter().is_err());
        assert!(ReplayRequest { ids: Some(Vec::new()), ..ReplayRequest::default() }.filter().is_ok());
        assert!(is_refused::<ReplayJobRequest>(r#"{"dry_run":true}"#));
        assert!(is_refused::<ReplayRequest>(r#"{"rate":1.0}"#));
    }

    #[test]
    fn payloads_round_trip() {
        for payload in [Bytes::from_static(b"{}"), Bytes::from_static(b"\xff")] {
            let request = EditPayloadRequest::from(payload.clone());
            assert_eq!(round_trip(&request).into_payload().unwrap(), payload);
        }
    }
}
