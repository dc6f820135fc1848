//! Many tasks that are canceled or run now, and how many there are of each state.

use std::collections::BTreeMap;

use postrider_core::task::{DeadReason, TaskCount, TaskFilter};
use postrider_core::{Measured, MessagingError, TaskId, TaskState, TaskType, Timestamp};
use serde::{Deserialize, Serialize};

use crate::object;

/// `POST /v1/tasks/cancel-job` and `POST /v1/tasks/retry-job`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkRequest {
    /// In one of these states; without it in any that the change is for.
    #[serde(rename = "state", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<TaskState>,
    /// Of one of these types.
    #[serde(rename = "type", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<TaskType>,
    /// With all of these tags.
    #[serde(rename = "tag", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// That died for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// Whose last error has this text in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Made by this schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Made at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Made before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// These, and no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<TaskId>>,
    /// That many a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Only tell which they would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl BulkRequest {
    /// Which tasks are meant, unless `ids` names them.
    pub fn filter(&self) -> Result<TaskFilter, MessagingError> {
        let filter = TaskFilter {
            states: self.states.clone(),
            types: self.types.clone(),
            within: None,
            tags: self.tags.clone(),
            schedule: self.schedule.clone(),
            dead_reason: self.reason,
            error_contains: self.error.clone(),
            created_since: self.since,
            created_before: self.before,
        };
        if self.ids.is_some() && filter != TaskFilter::default() {
            return Err(MessagingError::invalid("choice", "ids stand alone; leave out the others, or ids"));
        }
        Ok(filter)
    }
}

/// Which tasks a change of many would be of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// The tasks.
    pub tasks: Vec<TaskId>,
    /// How many of them a worker has in its hands.
    pub processing: u64,
    /// Named tasks that stay as they are: they are in another state, or not there.
    #[serde(default)]
    pub skipped: Vec<TaskId>,
}

/// `GET /v1/tasks/counts`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Tasks of each state.
    pub counts: BTreeMap<String, u64>,
    /// How many tasks were looked at, newest first.
    pub looked_at: u64,
    /// Whether those were all.
    pub complete: bool,
    /// The same by type; what is missing is zero.
    pub by_type: Vec<TypeCount>,
    /// How long the tasks that ended had waited for their last attempt after they were due, and how long it took.
    pub waited: Option<Percentiles>,
    /// See `waited`.
    pub took: Option<Percentiles>,
}

/// How many tasks of a type are in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeCount {
    /// The type.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// The state.
    pub state: TaskState,
    /// How many.
    pub count: u64,
    /// Whether there may be more: not all were looked at.
    pub approximate: bool,
}

impl From<TypeCount> for TaskCount {
    fn from(TypeCount { task_type, state, count, approximate }: TypeCount) -> Self {
        let count = if approximate { Measured::Approximate(count) } else { Measured::Exact(count) };
        Self { task_type, state, count }
    }
}

impl From<TaskCount> for TypeCount {
    fn from(TaskCount { task_type, state, count }: TaskCount) -> Self {
        let approximate = !matches!(count, Measured::Exact(_));
        Self { task_type, state, count: count.value().unwrap_or_default(), approximate }
    }
}

/// The middle and the slow end of some durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Of how many durations.
    pub count: u64,
    /// Half of them are no longer than this, in milliseconds.
    pub p50_ms: u64,
    /// 95 of 100 are no longer.
    pub p95_ms: u64,
    /// 99 of 100 are no longer.
    pub p99_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trip::{is_refused, json, over};

    #[test]
    fn choices_come_over_whole() {
        let request = BulkRequest {
            states: vec![TaskState::Pending],
            types: vec![TaskType::new("mail").unwrap()],
            tags: vec!["a".into()],
            reason: Some(DeadReason::Permanent),
            error: Some("no".into()),
            schedule: Some("daily".into()),
            since: Some(Timestamp::from_micros(1)),
            before: Some(Timestamp::from_micros(2)),
            ids: None,
            rate: Some(10.0),
            dry_run: Some(true),
        };
        assert_eq!(over(&request), request);
        assert_eq!(request.filter().unwrap().states, [TaskState::Pending]);
        assert_eq!(json(&BulkRequest::default()), serde_json::json!({}));
        assert!(BulkRequest { ids: Some(Vec::new()), ..request }.filter().is_err());
        assert!(BulkRequest { ids: Some(Vec::new()), ..BulkRequest::default() }.filter().is_ok());
        assert!(is_refused::<BulkRequest>(r#"{"states":["DEAD"]}"#));
    }

    #[test]
    fn counts_come_over_whole() {
        let took = Some(Percentiles { count: 3, p50_ms: 1, p95_ms: 2, p99_ms: 3 });
        let counts = BTreeMap::from([("DEAD".to_owned(), 7)]);
        let of = |count| TaskCount { task_type: TaskType::new("mail").unwrap(), state: TaskState::Dead, count };
        let by_type: Vec<TaskCount> = vec![of(Measured::Exact(0)), of(Measured::Approximate(7))];
        let rows = by_type.iter().cloned().map(TypeCount::from).collect();
        let counts = Counts { counts, looked_at: 9, complete: true, by_type: rows, waited: None, took };
        assert_eq!(over(&counts), counts);
        assert_eq!(
            json(&counts)["by_type"][1],
            serde_json::json!({"type": "mail", "state": "DEAD", "count": 7, "approximate": true})
        );
        assert_eq!(counts.by_type.into_iter().map(TaskCount::from).collect::<Vec<_>>(), by_type);
        let chosen = Chosen { tasks: vec![TaskId::generate()], processing: 1, skipped: vec![TaskId::generate()] };
        assert_eq!(over(&chosen), chosen);
    }
}
