//! Many tasks at once: counted by state, canceled, or run now.

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
use crate::jobs::{Job, check_rate, chunk};
use crate::percentiles;

/// Tasks that are named with one request.
const MOST_NAMED: usize = 10_000;

/// Tasks that are changed in one call to the store.
const CHUNK: usize = 500;

/// Tasks of one page of the store.
const PAGE: usize = 1000;

/// Bound of the tasks that are looked at to be counted.
const MOST_COUNTED: usize = 20_000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new(
            (Verb::Get, "/v1/tasks/counts"),
            (GROUP, "countTasks"),
            READ,
            "How many tasks there are of each type and state, and how long those that ended lately waited and took. Of \
             very many, the newest are looked at; 'approximate' is a number that may be larger.",
            counts,
        )
        .parameters("type", text(), "Of one of these types")
        .parameters("tag", text(), "With all of these tags")
        .parameter("schedule", text(), "Made by this schedule")
        .parameter("reason", text(), "That died for this reason")
        .parameter("error", text(), "Whose last error has this in it")
        .parameter("since", schemas::time(), "Made at this time or later")
        .parameter("before", schemas::time(), "Made before this time")
        .answers(200, "The numbers", Content::Json(named("TaskCounts"))),
        Route::new(
            (Verb::Post, "/v1/tasks/cancel-job"),
            (GROUP, "startCancel"),
            OPERATE,
            "Begins to call tasks off, at most 'rate' a second; with 'dry_run', only tells which. Watch or cancel the job.",
            start_cancel,
        )
        .takes(named("BulkTasks"))
        .answers(200, "Which it would be", Content::Json(named("ChosenTasks")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/tasks/retry-job"),
            (GROUP, "startRetry"),
            OPERATE,
            "Begins to make tasks due that wait for their time, at most 'rate' a second; with 'dry_run', only tells \
             which. Watch or cancel the job.",
            start_retry,
        )
        .takes(named("BulkTasks"))
        .answers(200, "Which it would be", Content::Json(named("ChosenTasks")))
        .answers(202, "The job", Content::Json(named("Job"))),
    ]
}

/// Calls `see` with the tasks of a filter that the caller may see, newest first, up to `most`. Answers how many there
/// were, and whether those were all.
async fn each(
    app: &App,
    caller: &Caller,
    filter: TaskFilter,
    most: usize,
    mut see: impl FnMut(&TaskInfo),
) -> Result<(usize, bool), ApiError> {
    let mut query = TaskQuery { filter, limit: PAGE, after: None };
    let mut seen = 0;
    loop {
        let page = app.visible_tasks(caller, &query).await?;
        seen += page.tasks.len();
        page.tasks.iter().for_each(&mut see);
        match page.next {
            None => return Ok((seen, true)),
            Some(_) if seen >= most => return Ok((seen, false)),
            Some(next) => query.after = Some(next),
        }
    }
}

/// Tasks by type and state, and how long those that ended waited and took.
#[derive(Default)]
struct Seen {
    counts: BTreeMap<(TaskType, TaskState), u64>,
    waited: Vec<Duration>,
    took: Vec<Duration>,
}

impl Seen {
    fn time(&mut self, task: &TaskInfo) {
        if let (Some(started), Some(finished)) = (task.started_at, task.finished_at) {
            self.waited.push(started.since(task.scheduled_for));
            self.took.push(finished.since(started));
        }
    }
}

async fn counts(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    let mut filter = read_query(&params.said())?.filter;
    let mut seen = Seen::default();
    let mut by_type: Vec<TypeCount>;
    // A count of the store is of all types: who may not see them all is not told by it that there are others.
    if filter == TaskFilter::default() && caller.queues.is_none() {
        let counts = app.client().store().counts(Deadline::default()).await?;
        by_type = counts.into_iter().map(TypeCount::from).collect();
        by_type.sort_by(|one, other| (&one.task_type, one.state).cmp(&(&other.task_type, other.state)));
        filter.states = TaskState::ALL.into_iter().filter(|state| state.is_terminal()).collect();
        let page = app.visible_tasks(&caller, &TaskQuery { filter, limit: PAGE, after: None }).await?;
        page.tasks.iter().for_each(|task| seen.time(task));
    } else {
        let see = |task: &TaskInfo| {
            *seen.counts.entry((task.task_type.clone(), task.state)).or_default() += 1;
            seen.time(task);
        };
        let (_, complete) = each(&app, &caller, filter, MOST_COUNTED, see).await?;
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

/// What is done to many tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Cancel,
    Retry,
}

impl Change {
    /// The states of the tasks that it is for.
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

    /// Changes some; answers how many it did.
    async fn carry_out(self, app: &App, tasks: &[TaskId]) -> Result<usize, MessagingError> {
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
                // It has gone on, or is no more.
                Err(MessagingError::TaskConflict { .. } | MessagingError::TaskNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// The tasks that a request means, oldest first, and their types.
async fn meant(
    app: &App,
    caller: &Caller,
    change: Change,
    asked: &BulkRequest,
) -> Result<(Chosen, BTreeSet<TaskType>), ApiError> {
    let mut filter = asked.filter()?;
    let (mut chosen, mut types) = (Chosen::default(), BTreeSet::new());
    if let Some(ids) = &asked.ids {
        if ids.len() > MOST_NAMED {
            return Err(ApiError::malformed(format!("ids: name at most {MOST_NAMED}")));
        }
        for id in ids {
            match app.client().get(*id, Deadline::default()).await {
                // One that the caller may not see is as if it were not there.
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
    each(app, caller, filter, usize::MAX, |task| {
        chosen.tasks.push(task.id);
        chosen.processing += u64::from(task.state == TaskState::Processing);
        if !types.contains(&task.task_type) {
            types.insert(task.task_type.clone());
        }
    })
    .await?;
    // In the order in which they were made.
    chosen.tasks.reverse();
    Ok((chosen, types))
}

async fn start(app: &Arc<App>, caller: &Caller, change: Change, asked: BulkRequest) -> Result<Response, ApiError> {
    check_rate(asked.rate)?;
    if asked.dry_run.unwrap_or_default() {
        return answer(&meant(app, caller, change, &asked).await?.0);
    }
    app.jobs.check_room()?;
    let (Chosen { tasks, .. }, types) = meant(app, caller, change, &asked).await?;
    let detail = json!({ "tasks": tasks.len(), "types": asked.types, "reason": asked.reason, "error": asked.error });
    let deed = app.audit.begin(caller, change.action(), "tasks", detail).await?;
    let (own, rate) = (app.clone(), asked.rate);
    let kind = match change {
        Change::Cancel => JobKind::Cancel,
        Change::Retry => JobKind::Retry,
    };
    let job = app.jobs.begin(caller, kind, None, move |job| async move {
        job.of(tasks.len());
        let done = change_all(&own, change, (&tasks, &types), rate, &job).await;
        let view = job.view();
        own.audit.done(deed, outcome(&done, |()| json!({ "done": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Changes tasks, a few at a time.
async fn change_all(
    app: &App,
    change: Change,
    (tasks, types): (&[TaskId], &BTreeSet<TaskType>),
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for tasks in tasks.chunks(chunk(rate, CHUNK)) {
        if !job.goes_on(began, done + skipped, rate).await {
            break;
        }
        let changed = change.carry_out(app, tasks).await?;
        done += changed;
        skipped += tasks.len() - changed;
        job.progress(done, skipped);
        app.live.tell_of_tasks(types);
    }
    Ok(())
}

async fn start_cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<BulkRequest>,
) -> Result<Response, ApiError> {
    start(&app, &caller, Change::Cancel, asked).await
}

async fn start_retry(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<BulkRequest>,
) -> Result<Response, ApiError> {
    start(&app, &caller, Change::Retry, asked).await
}
