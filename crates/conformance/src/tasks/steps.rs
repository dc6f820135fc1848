//! The common steps of the tests.

use std::fmt::Debug;
use std::time::Duration;

use postrider_core::task::{
    ClaimAnswer, ClaimTasks, ClaimedTask, DeadReason, Finish, Heartbeat, NewTask, ScheduleStore, Task, TaskFilter,
    TaskId, TaskInfo, TaskLease, TaskOutcome, TaskQuery, TaskStanding, TaskState, TaskStore, TaskType,
};
use postrider_core::{MessagingError, Timestamp};

use super::fixture::{LEASE, MANY};
use crate::probe::{Check, Stop, TIME_LIMIT, ensure, ensure_same, soon, violation};

/// Every task that matches a filter, page by page.
pub(super) async fn list_all<S: TaskStore>(store: &S, filter: &TaskFilter) -> Result<Vec<TaskInfo>, MessagingError> {
    let mut tasks = Vec::new();
    let mut query = TaskQuery { filter: filter.clone(), limit: MANY, after: None };
    loop {
        let page = store.list(&query, soon()).await?;
        tasks.extend(page.tasks);
        if page.next.is_none() {
            return Ok(tasks);
        }
        query.after = page.next;
    }
}

/// Makes tasks and returns their ids in order.
pub(super) async fn make_all<S: TaskStore>(store: &S, tasks: Vec<NewTask>) -> Result<Vec<TaskId>, Stop> {
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let rows = store.create(tasks, soon()).await?;
    ensure_same("the number of answers", rows.len(), ids.len())?;
    for (row, id) in rows.into_iter().zip(&ids) {
        let created = row?;
        ensure_same("a new task's id", created.id, *id)?;
        ensure(created.is_new, || format!("task {id} was made before"))?;
        ensure_same("the state of a new task", created.state, TaskState::Pending)?;
    }
    Ok(ids)
}

pub(super) async fn make<S: TaskStore>(store: &S, task: NewTask) -> Result<TaskId, Stop> {
    let ids = make_all(store, vec![task]).await?;
    Ok(ids[0])
}

/// Makes a due task with default options.
pub(super) async fn make_plain<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<TaskId, Stop> {
    make(store, plain(task_type)).await
}

/// A due task with default options.
pub(super) fn plain(task_type: &TaskType) -> NewTask {
    NewTask::of(task_type.clone(), r#"{"order":7}"#)
}

pub(super) fn asking(types: &[&TaskType], max: usize) -> ClaimTasks {
    ClaimTasks { types: types.iter().copied().cloned().collect(), max, lease: LEASE, worker: "worker-1".to_owned() }
}

/// Claims up to `max` due tasks of a type.
pub(super) async fn claim<S: TaskStore>(store: &S, task_type: &TaskType, max: usize) -> Result<Vec<ClaimedTask>, Stop> {
    let claimed = store.claim(asking(&[task_type], max), soon()).await?.claimed;
    ensure(claimed.len() <= max, || format!("{} tasks were claimed, but at most {max} were requested", claimed.len()))?;
    for task in &claimed {
        ensure_same("the type of a claimed task", &task.task_type, task_type)?;
    }
    Ok(claimed)
}

/// Claims the one task of a type that must be claimable.
pub(super) async fn claim_one<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<ClaimedTask, Stop> {
    let mut claimed = claim(store, task_type, 1).await?;
    match claimed.pop() {
        Some(task) => Ok(task),
        None => violation(format!("no task of type {task_type} could be claimed")),
    }
}

/// Claims the task, which must be the next one of its type.
pub(super) async fn claim_this<S: TaskStore>(store: &S, task_type: &TaskType, id: TaskId) -> Result<ClaimedTask, Stop> {
    let claimed = claim_one(store, task_type).await?;
    ensure_same("the claimed task", claimed.lease.id, id)?;
    Ok(claimed)
}

/// Ends the test if a task of the type can be claimed.
pub(super) async fn ensure_none<S: TaskStore>(store: &S, task_type: &TaskType, why: &str) -> Check {
    let claimed = claim(store, task_type, 1).await?;
    ensure(claimed.is_empty(), || format!("task {} was claimed although {why}", claimed[0].lease.id))
}

pub(super) async fn claim_ids<S: TaskStore>(store: &S, ids: &[TaskId]) -> Result<Vec<ClaimAnswer>, Stop> {
    let answers = store.claim_by_id(ids, LEASE, "worker-1", soon()).await?;
    ensure_same("the number of answers to a claim by id", answers.len(), ids.len())?;
    Ok(answers)
}

/// Claims a task by its id, which must be possible.
pub(super) async fn claim_id<S: TaskStore>(store: &S, id: TaskId) -> Result<ClaimedTask, Stop> {
    match claim_ids(store, &[id]).await?.pop() {
        Some(ClaimAnswer::Claimed(task)) => {
            ensure_same("the task that was claimed by its id", task.lease.id, id)?;
            Ok(*task)
        }
        other => violation(format!("a claim of task {id} by its id was answered {other:?}")),
    }
}

pub(super) fn succeeded() -> TaskOutcome {
    TaskOutcome::Succeeded { result: None }
}

pub(super) fn retry(after: Duration) -> TaskOutcome {
    TaskOutcome::Retry { after, error: "no route".to_owned() }
}

pub(super) fn dead(reason: DeadReason) -> TaskOutcome {
    TaskOutcome::Dead { reason, error: "no such address".to_owned() }
}

pub(super) async fn finish<S: TaskStore>(
    store: &S,
    lease: TaskLease,
    outcome: TaskOutcome,
) -> Result<TaskStanding, Stop> {
    only(store.finish(vec![Finish { lease, outcome }], soon()).await?)
}

/// Ends a held attempt.
pub(super) async fn end<S: TaskStore>(store: &S, lease: TaskLease, outcome: TaskOutcome) -> Check {
    let what = format!("an end by its holder, {outcome:?},");
    ensure_same(&what, finish(store, lease, outcome).await?, TaskStanding::Held)
}

pub(super) async fn heartbeat<S: TaskStore>(store: &S, lease: TaskLease, time: Duration) -> Result<TaskStanding, Stop> {
    only(store.heartbeat(vec![Heartbeat { lease, progress: None }], time, soon()).await?)
}

pub(super) async fn reap<S: TaskStore>(
    store: &S,
    lease: TaskLease,
    outcome: TaskOutcome,
) -> Result<TaskStanding, Stop> {
    only(store.reap(vec![Finish { lease, outcome }], soon()).await?)
}

pub(super) async fn standing<S: TaskStore>(store: &S, lease: TaskLease) -> Result<TaskStanding, Stop> {
    only(store.standings(&[lease], soon()).await?)
}

/// The answer of a batch of one row.
pub(super) fn only<T>(mut rows: Vec<T>) -> Result<T, Stop> {
    ensure_same("the number of answers", rows.len(), 1)?;
    Ok(rows.remove(0))
}

pub(super) async fn cancel<S: TaskStore>(store: &S, id: TaskId) -> Result<Result<TaskState, MessagingError>, Stop> {
    only(store.cancel(&[id], soon()).await?)
}

pub(super) async fn run_now<S: TaskStore>(store: &S, id: TaskId) -> Result<Result<(), MessagingError>, Stop> {
    only(store.run_now(&[id], soon()).await?)
}

pub(super) async fn replay<S: TaskStore>(store: &S, id: TaskId) -> Result<Result<(), MessagingError>, Stop> {
    only(store.replay(&[id], soon()).await?)
}

pub(super) async fn read<S: TaskStore>(store: &S, id: TaskId) -> Result<Task, Stop> {
    match store.get(id, soon()).await? {
        Some(task) => Ok(task),
        None => violation(format!("task {id} cannot be read")),
    }
}

pub(super) async fn info<S: TaskStore>(store: &S, id: TaskId) -> Result<TaskInfo, Stop> {
    Ok(read(store, id).await?.info)
}

pub(super) async fn ensure_state<S: TaskStore>(store: &S, id: TaskId, expected: TaskState) -> Check {
    ensure_same("the task's state", info(store, id).await?.state, expected)
}

/// Ends the test unless the call was refused because of the task's state.
pub(super) fn ensure_conflict<T: Debug>(
    what: &str,
    answer: &Result<T, MessagingError>,
    id: TaskId,
    state: TaskState,
) -> Check {
    let is_conflict =
        matches!(answer, Err(MessagingError::TaskConflict { id: of, state: is, .. }) if (*of, *is) == (id, state));
    ensure(is_conflict, || format!("{what}, of a task that is {state}, was answered {answer:?}, not TaskConflict"))
}

/// Ends the test unless the call was refused because the task does not exist.
pub(super) fn ensure_not_found<T: Debug>(what: &str, answer: &Result<T, MessagingError>, id: TaskId) -> Check {
    let is_not_found = matches!(answer, Err(MessagingError::TaskNotFound { id: of }) if *of == id);
    ensure(is_not_found, || format!("{what} of an unknown task was answered {answer:?}, not TaskNotFound"))
}

/// Ends the test unless the call was refused for its arguments.
pub(super) fn ensure_refused<T: Debug>(what: &str, answer: &Result<T, MessagingError>) -> Check {
    ensure(matches!(answer, Err(MessagingError::InvalidInput { .. })), || {
        format!("{what} was answered {answer:?}, not InvalidInput")
    })
}

/// Reads the store's clock before and after an event, whose time must be between.
pub(super) struct Between {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

impl Between {
    /// Reads the clock before the event; [`ensure`](Self::ensure) reads it after.
    pub(super) async fn begin<S: ScheduleStore>(store: &S) -> Result<Self, Stop> {
        let now = store.store_time(soon()).await?;
        Ok(Self { from: now, to: now })
    }

    /// Ends the test unless `time` is `after` the event since the first reading.
    pub(super) async fn ensure<S: ScheduleStore>(
        &mut self,
        store: &S,
        what: &str,
        time: Option<Timestamp>,
        after: Duration,
    ) -> Check {
        self.to = store.store_time(soon()).await?;
        let (earliest, latest) = (self.from.saturating_add(after), self.to.saturating_add(after));
        ensure(time.is_some_and(|time| earliest <= time && time <= latest), || {
            format!("{what} is {time:?}, not between {earliest} and {latest}")
        })
    }
}

/// Ends the test unless a remaining time is the expected one, minus at most the duration of the call.
pub(super) fn ensure_left(what: &str, left: Option<Duration>, expected: Duration) -> Check {
    let is_right = left.is_some_and(|left| left <= expected && left + TIME_LIMIT >= expected);
    ensure(is_right, || format!("{what} is {left:?}, not about {expected:?}"))
}

/// The values sorted, to compare sets.
pub(super) fn sorted<T: Ord>(things: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut things: Vec<T> = things.into_iter().collect();
    things.sort();
    things
}
