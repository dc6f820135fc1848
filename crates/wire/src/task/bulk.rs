//! Canceling and running many tasks, and counting tasks by state.

use std::collections::BTreeMap;

use postrider_core::task::{DeadReason, TaskCount, TaskFilter};
use postrider_core::{Measured, MessagingError, TaskId, TaskState, TaskType, Timestamp};
use serde::{Deserialize, Serialize};

use crate::object;

/// `POST /v1/tasks/cancel-job` and `POST /v1/tasks/retry-job`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BulkTasks"))]
#[serde(default, deny_unknown_fields)]
pub struct BulkRequest {
    /// In one of these states; if absent, in any state that allows the change.
    #[serde(rename = "state", deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<TaskState>,
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
    /// Maximum rate, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub rate: Option<f64>,
    /// Only list them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl BulkRequest {
    /// The filter; matches all tasks if `ids` is set.
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
            return Err(MessagingError::invalid("choice", "`ids` cannot be combined with other filters"));
        }
        Ok(filter)
    }
}

/// Result of a dry run of a job on tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ChosenTasks"))]
pub struct Chosen {
    /// The chosen tasks.
    pub tasks: Vec<TaskId>,
    /// Number of them that a worker is processing.
    pub processing: u64,
    /// Given ids that are in another state or do not exist.
    #[serde(default)]
    pub skipped: Vec<TaskId>,
    /// Whether nothing was changed because the request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// `GET /v1/tasks/counts`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TaskCounts"))]
pub struct Counts {
    /// Number of tasks in each state.
    pub counts: BTreeMap<String, u64>,
    /// Number of tasks that were examined, newest first.
    pub looked_at: u64,
    /// Whether all tasks were examined.
    pub complete: bool,
    /// Counts by type and state; absent ones are zero.
    pub by_type: Vec<TypeCount>,
    /// Time from due to the start of the last attempt, of ended tasks.
    pub waited: Option<Percentiles>,
    /// Duration of the last attempt, of ended tasks.
    pub took: Option<Percentiles>,
}

/// Number of tasks of a type in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TaskCount"))]
pub struct TypeCount {
    /// The type.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// The state.
    pub state: TaskState,
    /// Number of tasks.
    pub count: u64,
    /// Whether there may be more, because not all tasks were examined.
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

/// Percentiles of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Percentiles {
    /// Number of durations.
    pub count: u64,
    /// Median, in milliseconds.
    pub p50_ms: u64,
    /// 95th percentile, in milliseconds.
    pub p95_ms: u64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    #[test]
    fn choices_round_trip() {
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
        assert_eq!(round_trip(&request), request);
        assert_eq!(request.filter().unwrap().states, [TaskState::Pending]);
        assert_eq!(json(&BulkRequest::default()), serde_json::json!({}));
        assert!(BulkRequest { ids: Some(Vec::new()), ..request }.filter().is_err());
        assert!(BulkRequest { ids: Some(Vec::new()), ..BulkRequest::default() }.filter().is_ok());
        assert!(is_refused::<BulkRequest>(r#"{"states":["DEAD"]}"#));
    }

    #[test]
    fn counts_round_trip() {
        let took = Some(Percentiles { count: 3, p50_ms: 1, p95_ms: 2, p99_ms: 3 });
        let counts = BTreeMap::from([("DEAD".to_owned(), 7)]);
        let of = |count| TaskCount { task_type: TaskType::new("mail").unwrap(), state: TaskState::Dead, count };
        let by_type: Vec<TaskCount> = vec![of(Measured::Exact(0)), of(Measured::Approximate(7))];
        let rows = by_type.iter().cloned().map(TypeCount::from).collect();
        let counts = Counts { counts, looked_at: 9, complete: true, by_type: rows, waited: None, took };
        assert_eq!(round_trip(&counts), counts);
        assert_eq!(
            json(&counts)["by_type"][1],
            serde_json::json!({"type": "mail", "state": "DEAD", "count": 7, "approximate": true})
        );
        assert_eq!(counts.by_type.into_iter().map(TaskCount::from).collect::<Vec<_>>(), by_type);
        let (tasks, skipped) = (vec![TaskId::generate()], vec![TaskId::generate()]);
        let chosen = Chosen { tasks, processing: 1, skipped, dry_run: true };
        assert_eq!(round_trip(&chosen), chosen);
    }
}
