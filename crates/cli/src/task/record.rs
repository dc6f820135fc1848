//! A task with its full record, as JSON and as text.

use std::fmt::{self, Write};

use data_encoding::BASE64;
use postrider::task::{AttemptOutcome, DeadReason, Progress, Task, TaskAttempt, TaskInfo};
use postrider::{Bytes, RetryStrategy, TaskId, TaskState, TaskType, Timestamp};
use serde::Serialize;

use crate::text::{self, one_line};

/// One line of `--json` of `list` and `watch`: everything but the bytes.
#[derive(Debug, Serialize)]
pub(super) struct Info<'a> {
    id: TaskId,
    #[serde(rename = "type")]
    task_type: &'a TaskType,
    state: TaskState,
    priority: u8,
    attempt_count: u32,
    max_attempts: u32,
    created_at: Timestamp,
    scheduled_for: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enqueued_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<DeadReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    /// Whether the task waits for another one of its key; absent without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_strategy: Option<&'a RetryStrategy>,
    revision: u32,
    replay_count: u32,
}

impl<'a> Info<'a> {
    pub(super) fn of(task: &'a TaskInfo) -> Self {
        Self {
            id: task.id,
            task_type: &task.task_type,
            state: task.state,
            priority: task.priority.get(),
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            created_at: task.created_at,
            scheduled_for: task.scheduled_for,
            deadline: task.deadline,
            enqueued_at: task.enqueued_at,
            started_at: task.started_at,
            finished_at: task.finished_at,
            worker: task.worker.as_deref(),
            lease_expires_at: task.lease_expires_at,
            progress: task.progress.as_ref(),
            dead_reason: task.dead_reason,
            last_error: task.last_error.as_deref(),
            ordering_key: task.ordering_key.as_ref().map(|key| key.as_str()),
            blocked: task.ordering_key.as_ref().map(|_| task.is_blocked),
            idempotency_key: task.idempotency_key.as_ref().map(|key| key.as_str()),
            tags: &task.tags,
            schedule: task.schedule.as_deref(),
            retry_strategy: task.retry_strategy.as_ref(),
            revision: task.revision,
            replay_count: task.replay_count,
        }
    }
}

/// One line of `--json` of `get`.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    #[serde(flatten)]
    info: Info<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    attempts: Vec<Attempt<'a>>,
}

#[derive(Debug, Serialize)]
struct Attempt<'a> {
    attempt: u32,
    replay: u32,
    worker: &'a str,
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    outcome: AttemptOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> Record<'a> {
    pub(super) fn of(task: &'a Task, attempts: &'a [TaskAttempt]) -> Self {
        let (payload, payload_base64) = shown(Some(&task.payload));
        let (result, result_base64) = shown(task.result.as_ref());
        let attempts = attempts.iter().map(|attempt| Attempt {
            attempt: attempt.attempt,
            replay: attempt.replay,
            worker: &attempt.worker,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            outcome: attempt.outcome,
            error: attempt.error.as_deref(),
        });
        let attempts = attempts.collect();
        Self { info: Info::of(&task.info), payload, payload_base64, result, result_base64, attempts }
    }
}

/// Bytes as text when they are UTF-8, else in base64.
fn shown(bytes: Option<&Bytes>) -> (Option<&str>, Option<String>) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| BASE64.encode(bytes))) {
        Some(Ok(text)) => (Some(text), None),
        Some(Err(encoded)) => (None, Some(encoded)),
        None => (None, None),
    }
}

/// The attempt and the maximum, like `2/24`.
pub(super) fn attempts(task: &TaskInfo) -> String {
    match task.max_attempts {
        u32::MAX => task.attempt_count.to_string(),
        max => format!("{}/{max}", task.attempt_count),
    }
}

/// The progress on one line.
pub(super) fn progress(progress: &Progress) -> String {
    let percent = progress.fraction.map(|fraction| format!("{:.0} %", fraction * 100.0));
    let text = progress.text.as_deref().map(one_line);
    percent.into_iter().chain(text).collect::<Vec<_>>().join(" ")
}

/// The record as text: one line per field, then the attempts if given, the payload and the result.
pub(super) struct RecordText<'a> {
    pub(super) task: &'a Task,
    pub(super) attempts: Option<&'a [TaskAttempt]>,
}

impl fmt::Display for RecordText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Task { info, payload, result } = self.task;
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let text = |text: Option<&str>| text.map(str::to_owned);
        let times = |count: u32| (count > 0).then(|| text::counted(count.into(), "time", "times"));
        let fields = [
            ("id", Some(info.id.to_string())),
            ("type", Some(info.task_type.to_string())),
            ("state", Some(info.state.to_string())),
            ("reason", info.dead_reason.map(|reason| reason.to_string())),
            ("error", text(info.last_error.as_deref())),
            ("progress", info.progress.as_ref().map(progress)),
            ("attempts", Some(attempts(info))),
            ("worker", text(info.worker.as_deref())),
            ("created", time(Some(info.created_at))),
            ("due", time(Some(info.scheduled_for))),
            ("deadline", time(info.deadline)),
            ("enqueued", time(info.enqueued_at)),
            ("started", time(info.started_at)),
            ("finished", time(info.finished_at)),
            ("priority", Some(info.priority.get().to_string())),
            ("ordering key", text(info.ordering_key.as_ref().map(|key| key.as_str()))),
            ("waits for", info.is_blocked.then(|| "an earlier task of its key".into())),
            ("idempotency key", text(info.idempotency_key.as_ref().map(|key| key.as_str()))),
            ("schedule", text(info.schedule.as_deref())),
            ("edited", times(info.revision)),
            ("replayed", times(info.replay_count)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                f.write_str(&text::field(name, &value))?;
            }
        }
        for tag in &info.tags {
            writeln!(f, "{:<16} {}", "tag", one_line(tag))?;
        }
        for attempt in self.attempts.unwrap_or_default() {
            f.write_str(&text::field("attempt", &in_words(attempt)))?;
        }
        write!(f, "\npayload\n{}", text::body(payload))?;
        match result {
            Some(result) => write!(f, "\n\nresult\n{}", text::body(result)),
            None => Ok(()),
        }
    }
}

/// `2 failed after 1s by host:7: exit code 1`
fn in_words(attempt: &TaskAttempt) -> String {
    let TaskAttempt { attempt: number, replay, worker, started_at, ended_at, outcome, error } = attempt;
    let mut words = format!("{number} {outcome}");
    // Writing to a string cannot fail.
    if let Some(end) = ended_at {
        let _ = write!(words, " after {}", text::age(end.since(*started_at)));
    }
    let _ = write!(words, " by {}, from {started_at}", one_line(worker));
    if *replay > 0 {
        let _ = write!(words, ", replay {replay}");
    }
    if let Some(error) = error {
        let _ = write!(words, ": {error}");
    }
    words
}
