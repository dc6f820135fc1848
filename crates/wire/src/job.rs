//! Jobs: long operations of the server, at a steady rate.

use postrider_core::{QueueName, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Redrives dead letters.
    Redrive,
    /// Replays dead tasks.
    Replay,
    /// Cancels tasks.
    Cancel,
    /// Makes scheduled and retryable tasks due.
    Retry,
    /// Makes waiting messages due.
    DeliverNow,
    /// Dead-letters waiting messages.
    DeadLetter,
    /// Deletes waiting messages.
    Delete,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Running.
    Running,
    /// Finished.
    Done,
    /// Ended by an error.
    Failed,
    /// Canceled by a client.
    Canceled,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Job {
    /// Its id.
    pub id: Uuid,
    /// Its kind.
    pub kind: JobKind,
    /// Its queue; none for tasks.
    pub queue: Option<QueueName>,
    /// Its state.
    pub state: JobState,
    /// Number of items to do, as far as known.
    pub total: u64,
    /// Number of items done.
    pub done: u64,
    /// Number of items left unchanged.
    pub skipped: u64,
    /// The error that ended it.
    pub error: Option<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// `GET /v1/jobs`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    /// The jobs.
    pub jobs: Vec<Job>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::round_trip;

    #[test]
    fn jobs_round_trip() {
        let job = Job {
            id: Uuid::now_v7(),
            kind: JobKind::Redrive,
            queue: Some(QueueName::new("orders").unwrap()),
            state: JobState::Canceled,
            total: 120,
            done: 40,
            skipped: 2,
            error: None,
            started_at: Timestamp::from_micros(1),
            ended_at: Some(Timestamp::from_micros(2)),
        };
        let jobs = Jobs { jobs: vec![job] };
        assert_eq!(round_trip(&jobs), jobs);
    }
}
