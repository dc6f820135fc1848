//! Bulk operations on tasks: count by state, cancel, run now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::task::{TaskFilter, TaskInfo, TaskQuery};
use postrider::{Deadline, MessagingError, TaskId, TaskState, TaskStore, TaskType};
use postrider_wire::job::JobKind;
use postrider_wire::task::{BulkRequest, Chosen, Counts, TypeCount, read_query};
use serde_json::json;
use tokio::time::Instant;

use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, named, text};
use crate::api::{ApiError, Content, JsonBody, Params, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::audit::outcome;
use crate::jobs::{Job, check_rate, chunk_size};
use crate::percentiles;

/// Upper bound of the ids of one request.
const MAX_NAMED: usize = 10_000;

/// Tasks changed by one call to the store.
const CHUNK: usize = 500;

/// Tasks of one page of the store.
const PAGE: usize = 1000;

/// Upper bound of the tasks that a count reads.
const MAX_COUNTED: usize = 20_000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new(
            (Verb::Get, "/v1/tasks/counts"),
            (GROUP, "countTasks"),
            READ,
            "The number of tasks by type and state, and how long recently ended ones waited and took. Of very many, only \
             the newest are counted; a number marked 'approximate' may be larger.",
            counts,
        )
        .parameters("type", text(), "Only tasks of one of these types")
        .parameters("tag", text(), "Only those with all of these tags")
        .parameter("schedule", text(), "Only those created by this schedule")
        .parameter("reason", text(), "Only those that died for this reason")
        .parameter("error", text(), "Only those whose last error contains this text")
        .parameter("since", schemas::time(), "Only those created at this time or later")
        .parameter("before", schemas::time(), "Only those created before this time")
        .answers(200, "The counts", Content::Json(named("TaskCounts"))),
        Route::new(
            (Verb::Post, "/v1/tasks/cancel-job"),
            (GROUP, "startCancel"),
            OPERATE,
            "Starts a job that cancels tasks, at most 'rate' per second; with 'dry_run', only lists them.",
            start_cancel,
        )
        .takes(named("BulkTasks"))
        .answers(200, "The tasks of a dry run", Content::Json(named("ChosenTasks")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/tasks/retry-job"),
            (GROUP, "startRetry"),
            OPERATE,
            "Starts a job that makes waiting tasks due, at most 'rate' per second; with 'dry_run', only lists them.",
            start_retry,
        )
        .takes(named("BulkTasks"))
        .answers(200, "The tasks of a dry run", Content::Json(named("ChosenTasks")))
        .answers(202, "The job", Content::Json(named("Job"))),
    ]
}

/// Calls `visit` with the visible tasks of a filter, newest first, up to `most`. Returns their number, and whether
/// those are all.
async fn for_each_task(
    app: &App,
    caller: &Caller,
    filter: TaskFilter,
    most: usize,
    mut visit: impl FnMut(&TaskInfo),
) -> Result<(usize, bool), ApiError> {
    let mut query = TaskQuery { filter, limit: PAGE, after: None };
    let mut seen = 0;
    loop {
        let page = app.visible_tasks(caller, &query).await?;
        seen += page.tasks.len();
        page.tasks.iter().for_each(&mut visit);
        match page.next {
            None => return Ok((seen, true)),
            Some(_) if seen >= most => return Ok((seen, false)),
            Some(next) => query.after = Some(next),
        }
    }
}

/// Counts of tasks by type and state, and waiting and run times of ended ones.
#[derive(Default)]
struct Totals {
    counts: BTreeMap<(TaskType, TaskState), u64>,
    waited: Vec<Duration>,
    took: Vec<Duration>,
}

impl Totals {
    fn time(&mut self, task: &TaskInfo) {
        if let (Some(started), Some(finished)) = (task.started_at, task.finished_at) {
            self.waited.push(started.since(task.scheduled_for));
            self.took.push(finished.since(started));
        }
    }
}

async fn counts(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    let mut filter = read_query(&params.non_empty())?.filter;
    let mut seen = Totals::default();
    let mut by_type: Vec<TypeCount>;
    // The store counts all types, so its count is only for callers that may see all of them.
    if filter == TaskFilter::default() && caller.queues.is_none() {
        let counts = app.client().store().counts(Deadline::default()).await?;
        by_type = counts.into_iter().map(TypeCount::from).collect();
        by_type.sort_by(|one, other| (&one.task_type, one.state).cmp(&(&other.task_type, other.state)));
        filter.states = TaskState::ALL.into_iter().filter(|state| state.is_terminal()).collect();
        let page = app.visible_tasks(&caller, &TaskQuery { filter, limit: PAGE, after: None }).await?;
        page.tasks.iter().for_each(|task| seen.time(task));
    } else {
        let visit = |task: &TaskInfo| {
            *seen.counts.entry((task.task_type.clone(), task.state)).or_default() += 1;
            seen.time(task);
        };
        let (_, complete) = for_each_task(&app, &caller, filter, MAX_COUNTED, visit).await?;
        let row = |((task_type, state), count)| TypeCount { task_type, state, count, approximate: !complete };
        by_type = std::mem::take(&mut seen.counts).into_iter().map(row).collect();
    }
    let mut counts: BTreeMap<String, u64> =
        TaskState::ALL.into_iter().map(|state| (state.as_str().to_owned(), 0)).collect();
    by_type.iter().for_each(|row| *counts.entry(row.state.as_str().to_owned()).or_default() += row.count);
    let looked_at = counts.values().sum();
    let complete = by_type.iter().all(|row| !row.approximate);
    let (waited, took) = (percentiles::of(seen.waited), percentiles::of(seen.took));
    answer(&Counts { counts, looked_at, complete, by_type, waited, took })
}

/// A bulk operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Cancel,
    Retry,
}

impl Change {
    /// States of the tasks that it applies to.
    fn states(self) -> &'static [TaskState] {
        match self {
            Self::Cancel => &[TaskState::Pending, TaskState::Enqueued, TaskState::Processing],
            Self::Retry => &[TaskState::Pending, TaskState::Enqueued],
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::Cancel => "cancel_tasks",
            Self::Retry => "retry_tasks",
        }
    }

    /// Changes tasks; returns the number of changed ones.
    async fn apply(self, app: &App, tasks: &[TaskId]) -> Result<usize, MessagingError> {
        let store = app.client().store();
        let rows: Vec<Result<(), MessagingError>> = match self {
            Self::Cancel => {
                let rows = store.cancel(tasks, Deadline::default()).await?;
                rows.into_iter().map(|row| row.map(|_| ())).collect()
            }
            Self::Retry => store.run_now(tasks, Deadline::default()).await?,
        };
        let mut done = 0;
        for row in rows {
            match row {
                Ok(()) => done += 1,
                // The task has changed meanwhile, or was removed.
                Err(MessagingError::TaskConflict { .. } | MessagingError::TaskNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// Returns the selected tasks, oldest first, and their types.
async fn selected(
    app: &App,
    caller: &Caller,
    change: Change,
    request: &BulkRequest,
) -> Result<(Chosen, BTreeSet<TaskType>), ApiError> {
    let mut filter = request.filter()?;
    let (mut chosen, mut types) = (Chosen::default(), BTreeSet::new());
    if let Some(ids) = &request.ids {
        if ids.len() > MAX_NAMED {
            return Err(ApiError::malformed(format!("too many ids; send at most {MAX_NAMED}")));
        }
        for id in ids {
            match app.client().get(*id, Deadline::default()).await {
                // A hidden task is treated like a missing one.
                Ok(task) if !app.may_use_type(caller, &task.info.task_type) => chosen.skipped.push(*id),
                Ok(task) => {
                    if change.states().contains(&task.info.state) {
                        chosen.tasks.push(*id);
                        chosen.processing += u64::from(task.info.state == TaskState::Processing);
                        types.insert(task.info.task_type);
                    } else {
                        chosen.skipped.push(*id);
                    }
                }
                Err(MessagingError::TaskNotFound { .. }) => chosen.skipped.push(*id),
                Err(error) => return Err(error.into()),
            }
        }
        return Ok((chosen, types));
    }
    let all = change.states();
    match filter.states.is_empty() {
        true => filter.states = all.to_vec(),
        false => filter.states.retain(|state| all.contains(state)),
    }
    if filter.states.is_empty() {
        return Ok((chosen, types));
    }
    for_each_task(app, caller, filter, usize::MAX, |task| {
        chosen.tasks.push(task.id);
        chosen.processing += u64::from(task.state == TaskState::Processing);
        if !types.contains(&task.task_type) {
            types.insert(task.task_type.clone());
        }
    })
    .await?;
    // In the order of their creation.
    chosen.tasks.reverse();
    Ok((chosen, types))
}

async fn start(app: &Arc<App>, caller: &Caller, change: Change, request: BulkRequest) -> Result<Response, ApiError> {
    check_rate(request.rate)?;
    if request.dry_run.unwrap_or_default() {
        let (chosen, _) = selected(app, caller, change, &request).await?;
        return answer(&Chosen { dry_run: true, ..chosen });
    }
    app.jobs.check_room()?;
    let (Chosen { tasks, .. }, types) = selected(app, caller, change, &request).await?;
    let detail =
        json!({ "tasks": tasks.len(), "types": request.types, "reason": request.reason, "error": request.error });
    let audited = app.audit.begin(caller, change.action(), "tasks", detail).await?;
    let (own, rate) = (app.clone(), request.rate);
    let kind = match change {
        Change::Cancel => JobKind::Cancel,
        Change::Retry => JobKind::Retry,
    };
    let job = app.jobs.begin(caller, kind, None, move |job| async move {
        job.set_total(tasks.len());
        let done = change_all(&own, change, (&tasks, &types), rate, &job).await;
        let view = job.view();
        own.audit.finish(audited, outcome(&done, |()| json!({ "done": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Changes tasks in chunks.
async fn change_all(
    app: &App,
    change: Change,
    (tasks, types): (&[TaskId], &BTreeSet<TaskType>),
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for tasks in tasks.chunks(chunk_size(rate, CHUNK)) {
        if !job.wait_for_rate(began, done + skipped, rate).await {
            break;
        }
        let changed = change.apply(app, tasks).await?;
        done += changed;
        skipped += tasks.len() - changed;
        job.progress(done, skipped);
        app.live.tasks_changed(types);
    }
    Ok(())
}

async fn start_cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Response, ApiError> {
    start(&app, &caller, Change::Cancel, request).await
}

async fn start_retry(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Response, ApiError> {
    start(&app, &caller, Change::Retry, request).await
}
