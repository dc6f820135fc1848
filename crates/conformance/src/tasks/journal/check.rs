//! The check of tasks after workers were killed.
//!
//! Journals have times of the host's clock, rows those of the store's. They are compared with a tolerance, [`SLACK`],
//! for differences of the clocks and for transactions that waited.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use postrider_core::Timestamp;
use postrider_core::task::{AttemptOutcome, DeadTaskEvent, TaskAttempt, TaskId, TaskInfo, TaskState};

use super::{Moment, TaskEntry, WorkEnd};

/// Largest difference between a time of the store and one of a journal or of another transaction.
const SLACK: Duration = Duration::from_secs(1);

/// An attempt in a worker's journal.
#[derive(Debug)]
struct Work<'j> {
    begin: &'j TaskEntry,
    end: Option<(WorkEnd, Timestamp)>,
}

/// Lists all violations. `journals` are the lines of each worker, `tasks` each task of the store with its attempts at
/// the end, `dead_events` the events sent for dead tasks, `lease` the length of a claim or a heartbeat.
pub fn judge_tasks(
    journals: &[Vec<TaskEntry>],
    tasks: &[(TaskInfo, Vec<TaskAttempt>)],
    dead_events: &[DeadTaskEvent],
    lease: Duration,
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut works: BTreeMap<TaskId, Vec<Work<'_>>> = BTreeMap::new();
    for work in journals.iter().flat_map(|journal| works_of(journal, &mut violations)) {
        works.entry(work.begin.task).or_default().push(work);
    }
    let mut known = HashSet::new();
    let mut spans: HashMap<String, Vec<Span>> = HashMap::new();
    for (task, attempts) in tasks {
        if !known.insert(task.id) {
            violations.push(format!("task {} is listed twice", task.id));
            continue;
        }
        judge_end(task, attempts, &mut violations);
        judge_history(task, attempts, &mut violations);
        let own = works.remove(&task.id).unwrap_or_default();
        let matched = judge_begins(task, attempts, &own, &mut violations);
        judge_success(task, attempts, &matched, &mut violations);
        let key = match &task.ordering_key {
            Some(key) => format!("key '{key}' of type {}", task.task_type),
            None => format!("task {}", task.id),
        };
        spans.entry(key).or_default().extend(matched.iter().filter_map(|(at, work)| {
            let end = protected_until(&attempts[*at], work, lease)?;
            Some(Span { task: task.id, attempt: work.begin.attempt, begin: work.begin.at, end })
        }));
    }
    for task in works.keys() {
        violations.push(format!("an attempt of task {task} began, and the store has no such task"));
    }
    judge_overlaps(spans, &mut violations);
    judge_events(tasks, dead_events, &mut violations);
    violations.sort();
    violations
}

/// The number of repeated events: the same death of the same task. A relay may send an event twice, never zero times.
pub fn repeated_events(dead_events: &[DeadTaskEvent]) -> usize {
    let deaths: HashSet<(TaskId, Timestamp)> = dead_events.iter().map(|it| (it.task_id, it.dead_at)).collect();
    dead_events.len() - deaths.len()
}

/// The attempts of a journal, each with its end if it had one.
fn works_of<'j>(journal: &'j [TaskEntry], violations: &mut Vec<String>) -> Vec<Work<'j>> {
    let mut works: Vec<Work<'j>> = Vec::new();
    let mut open: HashMap<(TaskId, u32, Option<i64>), usize> = HashMap::new();
    for entry in journal {
        let which = (entry.task, entry.attempt, entry.token);
        match entry.moment {
            Moment::Begin => {
                open.insert(which, works.len());
                works.push(Work { begin: entry, end: None });
            }
            Moment::End(end) => match open.remove(&which) {
                Some(at) => works[at].end = Some((end, entry.at)),
                None => violations.push(format!(
                    "worker '{}' ended attempt {} of task {} and never began it",
                    entry.worker, entry.attempt, entry.task
                )),
            },
        }
    }
    // A released attempt counts as never begun.
    works.retain(|work| !matches!(work.end, Some((WorkEnd::Released, _))));
    works
}

fn judge_end(task: &TaskInfo, attempts: &[TaskAttempt], violations: &mut Vec<String>) {
    let TaskInfo { id, state, .. } = task;
    if !state.is_terminal() {
        violations.push(format!("task {id} is {state} and has not ended"));
    }
    if task.attempt_count > task.max_attempts {
        violations.push(format!(
            "task {id} was tried {} times, at most {} are allowed",
            task.attempt_count, task.max_attempts
        ));
    }
    if task.finished_at.is_some() != state.is_terminal() {
        violations.push(format!("task {id} is {state} and finished_at is {:?}", task.finished_at));
    }
    let successes = attempts.iter().filter(|attempt| attempt.outcome == AttemptOutcome::Succeeded).count();
    if successes != usize::from(*state == TaskState::Succeeded) {
        violations.push(format!("task {id} is {state} and {successes} of its attempts succeeded"));
    }
}

fn judge_history(task: &TaskInfo, attempts: &[TaskAttempt], violations: &mut Vec<String>) {
    let id = task.id;
    let mut numbers: BTreeMap<u32, Vec<u32>> = BTreeMap::from([(task.replay_count, Vec::new())]);
    for attempt in attempts {
        numbers.entry(attempt.replay).or_default().push(attempt.attempt);
    }
    for (replay, numbers) in &numbers {
        if !numbers.iter().copied().eq(1..=u32::try_from(numbers.len()).unwrap_or(u32::MAX)) {
            violations
                .push(format!("the attempts of task {id} after {replay} replays are {numbers:?}, not one by one"));
        }
        if *replay > task.replay_count {
            violations
                .push(format!("task {id} was replayed {} times and has attempts after {replay}", task.replay_count));
        }
    }
    let counted = numbers.get(&task.replay_count).map_or(0, Vec::len);
    if counted != task.attempt_count as usize {
        violations.push(format!(
            "the attempt_count of task {id} is {} and its history has {counted} attempts",
            task.attempt_count
        ));
    }
    for attempt in attempts {
        let is_running = attempt.outcome == AttemptOutcome::Running;
        if is_running != attempt.ended_at.is_none() || (is_running && task.state != TaskState::Processing) {
            violations.push(format!(
                "attempt {} of task {id}, which is {}, is recorded as {} and as ended at {:?}",
                attempt.attempt, task.state, attempt.outcome, attempt.ended_at
            ));
        }
    }
    for pair in attempts.windows(2) {
        let is_before = pair[0].ended_at.is_none_or(|end| end <= pair[1].started_at.saturating_add(SLACK));
        if (pair[0].replay, pair[0].attempt) >= (pair[1].replay, pair[1].attempt) || !is_before {
            violations.push(format!(
                "attempts {} and {} of task {id} are not listed in the order of their starts",
                pair[0].attempt, pair[1].attempt
            ));
        }
    }
}

/// Finds the attempt row of each journaled attempt; returns the index of the row with each.
fn judge_begins<'w, 'j>(
    task: &TaskInfo,
    attempts: &[TaskAttempt],
    works: &'w [Work<'j>],
    violations: &mut Vec<String>,
) -> Vec<(usize, &'w Work<'j>)> {
    let mut matched: Vec<(usize, &Work<'_>)> = Vec::new();
    for work in works {
        let TaskEntry { attempt, worker, at, .. } = work.begin;
        // A replay reuses attempt numbers: the last one that had begun is the right one.
        let row = attempts.iter().rposition(|row| {
            row.attempt == *attempt && row.worker == *worker && row.started_at <= at.saturating_add(SLACK)
        });
        match row {
            None => violations.push(format!(
                "worker '{worker}' began attempt {attempt} of task {}, and its history does not have it",
                task.id
            )),
            Some(row) if matched.iter().any(|(other, _)| *other == row) => {
                violations.push(format!("attempt {attempt} of task {} began twice", task.id));
            }
            Some(row) => matched.push((row, work)),
        }
    }
    matched
}

fn judge_success(
    task: &TaskInfo,
    attempts: &[TaskAttempt],
    matched: &[(usize, &Work<'_>)],
    violations: &mut Vec<String>,
) {
    if task.state != TaskState::Succeeded {
        return;
    }
    let last = attempts.len().checked_sub(1);
    let work = matched.iter().find(|(row, _)| Some(*row) == last).map(|(_, work)| work);
    if !work.is_some_and(|work| matches!(work.end, Some((WorkEnd::Ok, _)))) {
        violations.push(format!("task {} is SUCCEEDED and no worker finished its last attempt", task.id));
    }
}

/// The time in which no other worker may run the task.
#[derive(Debug)]
struct Span {
    task: TaskId,
    attempt: u32,
    begin: Timestamp,
    end: Timestamp,
}

/// Until when no other worker may have begun: the end of the work, but at most the end of its hold on the task.
fn protected_until(row: &TaskAttempt, work: &Work<'_>, lease: Duration) -> Option<Timestamp> {
    let end = work.end.map(|(_, at)| at);
    let taken_at = match row.outcome {
        AttemptOutcome::Succeeded | AttemptOutcome::Failed => return end,
        // Lower bound of the lease; heartbeats may have extended it.
        AttemptOutcome::LeaseLost => row.started_at.saturating_add(lease),
        AttemptOutcome::Canceled | AttemptOutcome::Deadline => row.ended_at?,
        AttemptOutcome::Running => return end,
    };
    let taken_at = taken_at.saturating_sub(SLACK);
    Some(end.map_or(taken_at, |end| end.min(taken_at)))
}

fn judge_overlaps(spans: HashMap<String, Vec<Span>>, violations: &mut Vec<String>) {
    for (whose, mut spans) in spans {
        spans.sort_by_key(|span| (span.begin, span.end));
        let mut longest: Option<Span> = None;
        for span in spans {
            if let Some(before) = &longest
                && span.begin < before.end
            {
                violations.push(format!(
                    "{whose}: attempt {} of task {} began at {} while attempt {} of task {} went on until {}",
                    span.attempt, span.task, span.begin, before.attempt, before.task, before.end
                ));
            }
            if longest.as_ref().is_none_or(|before| before.end < span.end) {
                longest = Some(span);
            }
        }
    }
}

fn judge_events(tasks: &[(TaskInfo, Vec<TaskAttempt>)], dead_events: &[DeadTaskEvent], violations: &mut Vec<String>) {
    let mut told: HashMap<TaskId, BTreeMap<Timestamp, &DeadTaskEvent>> = HashMap::new();
    for event in dead_events {
        told.entry(event.task_id).or_default().insert(event.dead_at, event);
    }
    for (task, _) in tasks {
        let deaths = told.remove(&task.id).unwrap_or_default();
        let is_dead = task.state == TaskState::Dead;
        // Only dead tasks are replayed, so each replay has a death before it.
        let expected = task.replay_count as usize + usize::from(is_dead);
        if deaths.len() != expected {
            violations.push(format!(
                "task {} is {} after {} replays and has {} dead-task events",
                task.id,
                task.state,
                task.replay_count,
                deaths.len()
            ));
        }
        let last = deaths.values().next_back();
        let is_right = last.is_some_and(|event| {
            (Some(event.reason), event.attempt_count, Some(&event.error))
                == (task.dead_reason, task.attempt_count, task.last_error.as_ref())
        });
        if is_dead && last.is_some() && !is_right {
            violations.push(format!("the dead-task event of task {} differs from its record: {last:?}", task.id));
        }
    }
    for task in told.keys() {
        violations.push(format!("task {task} has a dead-task event, and the store has no such task"));
    }
}
