//! Long work that the server does by itself: redrives and replays at a steady pace.

use postrider_core::{QueueName, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Brings dead letters back to life.
    Redrive,
    /// Brings dead tasks back to life.
    Replay,
    /// Calls tasks off.
    Cancel,
    /// Makes tasks due that wait for their time.
    Retry,
    /// Makes waiting messages due.
    DeliverNow,
    /// Moves waiting messages to the dead letters.
    DeadLetter,
    /// Removes waiting messages.
    Delete,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Under way.
    Running,
    /// All of it was done.
    Done,
    /// It could not go on.
    Failed,
    /// Somebody ended it.
    Canceled,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its identity.
    pub id: Uuid,
    /// What it does.
    pub kind: JobKind,
    /// On which queue; none for tasks.
    pub queue: Option<QueueName>,
    /// Where it is.
    pub state: JobState,
    /// How many it has to do, as far as is known.
    pub total: u64,
    /// How many it has done.
    pub done: u64,
    /// How many it has left as they were.
    pub skipped: u64,
    /// Why it could not go on.
    pub error: Option<String>,
    /// When it began.
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
    use crate::round_trip::over;

    #[test]
    fn jobs_come_over_whole() {
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
        assert_eq!(over(&jobs), jobs);
    }
}
