//! Tasks: list, get, cancel, retry, replay, edit.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::task::{Task, TaskCursor, TaskFilter, TaskInfo, TaskPage, TaskQuery};
use postrider::tasks::ReplayOptions;
use postrider::{Deadline, MessagingError, TaskId, TaskState, TaskStore, TaskType};
use postrider_wire::job::JobKind;
use postrider_wire::task::{
    Canceled, Detail, EditPayloadRequest, Edited, Info, Page, ReplayJobRequest, ReplayRequest, Replayed, Routes,
    read_query,
};
use serde_json::json;
use tokio::time::Instant;

use super::{ANY_ROLE, OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, limit, named, page, text};
use crate::api::{ApiError, Content, JsonBody, Params, Route, TaskPath, Verb, answer, answer_with};
use crate::app::App;
use crate::audit::outcome;
use crate::in_flight::InFlight;
use crate::jobs::{Job, check_rate, chunk_size};
use crate::row_sizes::{AnswerSpace, BY_ID, READ_AND_ENCODED};

const MAX_LISTED: usize = 1000;

/// Upper bound of the store's pages for one answer. Each reads thousands of rows, most of which may be hidden from the
/// caller: at the bound, the answer is short and its cursor continues where the search stopped.
const MAX_PAGES: usize = 20;

/// Name of the listing in its cursors.
const TASKS: &str = "tasks";

/// Upper bound of the ids of one request.
const MAX_NAMED: usize = 10_000;

/// Tasks replayed by one call to the store.
const CHUNK: usize = 500;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new((Verb::Get, "/v1/tasks"), (GROUP, "listTasks"), READ, "Tasks, newest first.", list)
            .parameters("state", text(), "Only tasks in one of these states")
            .parameters("type", text(), "Only those of one of these types")
            .parameters(
                "within",
                text(),
                "Only those of a type with one of these names; 'mail.*' matches names that begin with 'mail.'",
            )
            .parameters("tag", text(), "Only those with all of these tags")
            .parameter("schedule", text(), "Only those created by this schedule")
            .parameter("reason", text(), "Only those that died for this reason")
            .parameter("error", text(), "Only those whose last error contains this text")
            .parameter("since", schemas::time(), "Only those created at this time or later")
            .parameter("before", schemas::time(), "Only those created before this time")
            .parameter("limit", limit(MAX_LISTED), "Rows of the page; default 100")
            .parameter("after", text(), "'next' of the previous page")
            .answers(
                200,
                "A page of tasks; it can be short and not the last",
                Content::Json(page("tasks", named("TaskInfo"))),
            ),
        Route::new(
            (Verb::Get, "/v1/tasks/routes"),
            (GROUP, "getTaskRoutes"),
            ANY_ROLE,
            "How tasks are delivered to workers.",
            task_routes,
        )
        .answers(200, "The routes", Content::Json(named("TaskRoutes"))),
        Route::new(
            (Verb::Post, "/v1/tasks/replay"),
            (GROUP, "replayTasks"),
            OPERATE,
            "Replays dead tasks, all at once; with 'dry_run', only lists them.",
            replay_many,
        )
        .takes(named("Replay"))
        .answers(200, "The replayed and the skipped tasks", Content::Json(named("Replayed"))),
        Route::new(
            (Verb::Post, "/v1/tasks/replay-job"),
            (GROUP, "startReplay"),
            OPERATE,
            "Starts a job that replays dead tasks, at most 'rate' per second.",
            start_replay,
        )
        .takes(named("ReplayJob"))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Get, "/v1/tasks/{id}"),
            (GROUP, "getTask"),
            READ,
            "A task with its payload, result, attempts and earlier payloads; only the newest of these, if all would be too \
             large.",
            get,
        )
        .answers(200, "The task", Content::Json(named("Task"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/cancel"),
            (GROUP, "cancelTask"),
            OPERATE,
            "Cancels a task in any state. A running handler is notified.",
            cancel,
        )
        .answers(200, "The task, and its previous state", Content::Json(named("ChangedTask"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/retry"),
            (GROUP, "retryTask"),
            OPERATE,
            "Makes a task run now: a waiting one becomes due, a dead one is replayed.",
            retry,
        )
        .answers(200, "The task", Content::Json(named("TaskInfo"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/replay"),
            (GROUP, "replayTask"),
            OPERATE,
            "Replays a dead task, with fresh attempts.",
            replay,
        )
        .answers(200, "The task", Content::Json(named("TaskInfo"))),
        Route::new(
            (Verb::Put, "/v1/tasks/{id}/payload"),
            (GROUP, "editTask"),
            OPERATE,
            "Changes the payload of a dead task; the previous one is kept.",
            edit,
        )
        .takes(named("Payload"))
        .answers(200, "The new revision", Content::Json(named("Revision"))),
    ]
}

impl App {
    /// Whether the caller may see and use tasks of a type: whether the token covers its queue.
    pub(super) fn may_use_type(&self, caller: &Caller, task_type: &TaskType) -> bool {
        caller.queues.is_none()
            || self.client().store().routes().queue(task_type).is_ok_and(|queue| caller.may_use(&queue))
    }

    pub(super) fn check_type(&self, caller: &Caller, task_type: &TaskType) -> Result<(), ApiError> {
        match self.may_use_type(caller, task_type) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!(
                "this token does not cover tasks of type '{task_type}'; use one that does"
            ))),
        }
    }

    /// Returns a task that the caller may see; a hidden one is reported as not found.
    async fn task(&self, caller: &Caller, id: TaskId) -> Result<Task, ApiError> {
        let task = self.client().get(id, Deadline::default()).await?;
        match self.may_use_type(caller, &task.info.task_type) {
            true => Ok(task),
            false => Err(MessagingError::TaskNotFound { id }.into()),
        }
    }

    /// Fails if the token does not cover the task's queue.
    pub(super) async fn check_task(&self, caller: &Caller, id: TaskId) -> Result<(), ApiError> {
        if caller.queues.is_none() {
            return Ok(());
        }
        self.task(caller, id).await.map(drop)
    }

    /// Returns a page of the tasks that the caller may see. Hidden tasks do not show in the size and the cursor of a
    /// page, except by [`MAX_PAGES`].
    pub(super) async fn visible_tasks(&self, caller: &Caller, query: &TaskQuery) -> Result<TaskPage, ApiError> {
        let deadline = Deadline::default();
        let Some(own) = caller.task_types(self.client().store().routes()) else {
            return Ok(self.client().list(query, deadline).await?);
        };
        let mut query = query.clone();
        let within = match query.filter.within.take() {
            Some(wanted) => wanted.iter().flat_map(|one| own.iter().filter_map(|own| one.and(own))).collect(),
            None => own,
        };
        let shown = query.after.take();
        let after = shown.map(|shown| self.seal.read_cursor(TASKS, &shown.0).map(TaskCursor)).transpose()?;
        if within.is_empty() {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        }
        query.filter.within = Some(within);
        let mut walk = Walk { limit: query.limit, after, ..Walk::default() };
        loop {
            (query.limit, query.after) = (walk.missing().max(1), walk.after.clone());
            if !walk.take(self.client().list(&query, deadline).await?) {
                break;
            }
        }
        let mut page = walk.finish();
        page.next = page.next.map(|next| TaskCursor(self.seal.hide_cursor(TASKS, &next.0)));
        Ok(page)
    }
}

/// Fills one page from several pages of the store. Each of those reads a bounded number of rows, visible or not.
#[derive(Debug, Default)]
struct Walk {
    limit: usize,
    pages: usize,
    tasks: Vec<TaskInfo>,
    after: Option<TaskCursor>,
    /// Cursor of the end of the page, once it is full.
    end: Option<TaskCursor>,
}

impl Walk {
    fn missing(&self) -> usize {
        self.limit.saturating_sub(self.tasks.len())
    }

    /// Adds a page of the store. Returns whether another is needed: after a full page, one more row shows whether there
    /// is a next page.
    fn take(&mut self, page: TaskPage) -> bool {
        if self.missing() == 0 && !page.tasks.is_empty() {
            return false;
        }
        self.pages += 1;
        self.tasks.extend(page.tasks);
        self.after = page.next;
        if self.end.is_none() && self.missing() == 0 {
            self.end.clone_from(&self.after);
        }
        self.after.is_some() && self.pages < MAX_PAGES
    }

    fn finish(self) -> TaskPage {
        let Self { tasks, after, end, .. } = self;
        TaskPage { tasks, next: after.and_then(|after| end.or(Some(after))) }
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    // Empty parameters are ignored, as in all routes.
    let query = read_query(&params.non_empty())?;
    answer(&Page::from(app.visible_tasks(&caller, &query).await?))
}

async fn task_routes(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let store = app.client().store();
    answer(&Routes::new(store.routes(), store.max_payload_bytes(), store.store_name()))
}

async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    in_flight: InFlight,
) -> Result<Response, ApiError> {
    let (client, deadline) = (app.client(), Deadline::default());
    // Reserved until the actual answer is counted.
    let size = app.size_by_id();
    in_flight.grow(size.saturating_mul(READ_AND_ENCODED)).await?;
    let task = app.task(&caller, id).await?;
    let own = task.payload.len() + task.result.as_ref().map_or(0, |result| result.len());
    in_flight.correct(size, size.max(own));
    app.task_sizes.record([(BY_ID, own)]);
    let attempts = client.attempts(id, deadline).await?;
    // One payload per earlier revision.
    let expected = size.max(own).saturating_mul(task.info.revision as usize);
    in_flight.grow(expected).await?;
    let mut revisions = client.revisions(id, deadline).await?;
    in_flight.correct(expected, revisions.iter().map(|revision| revision.payload.len()).sum());
    // Keeps the newest ones if not all fit into an answer.
    revisions.reverse();
    AnswerSpace::default().take(&mut revisions, |revision| revision.payload.len());
    revisions.reverse();
    answer(&Detail::new(task, attempts, revisions))
}

/// Returns a changed task, and publishes the change.
async fn changed(app: &App, id: TaskId) -> Result<Info, ApiError> {
    let info = app.client().get(id, Deadline::default()).await?.info;
    app.live.tasks_changed([&info.task_type]);
    Ok(Info::from(info))
}

async fn cancel(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let audited = app.audit.begin(&caller, "cancel_task", &id.to_string(), json!({})).await?;
    let done = app.client().cancel(id, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |left: &TaskState| json!({ "left": left }))).await;
    let left = done?;
    answer(&Canceled { info: changed(&app, id).await?, left })
}

async fn retry(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let audited = app.audit.begin(&caller, "retry_task", &id.to_string(), json!({})).await?;
    let done = app.client().retry(id, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("retried"))).await;
    done?;
    answer(&changed(&app, id).await?)
}

async fn replay(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let audited = app.audit.begin(&caller, "replay_task", &id.to_string(), json!({})).await?;
    let done = app.client().replay(id, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("replayed"))).await;
    done?;
    answer(&changed(&app, id).await?)
}

async fn edit(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    JsonBody(request): JsonBody<EditPayloadRequest>,
) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let payload = request.into_payload()?;
    let audited = app.audit.begin(&caller, "edit_task", &id.to_string(), json!({})).await?;
    let done = app.client().edit(id, payload, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |revision| json!({ "revision": revision }))).await;
    let revision = done?;
    changed(&app, id).await?;
    answer(&Edited { revision })
}

/// Returns the selected tasks.
async fn selected(app: &App, caller: &Caller, request: &ReplayRequest) -> Result<Vec<TaskId>, ApiError> {
    // Fails on ids beside a filter, which would be ignored.
    let filter: TaskFilter = request.filter()?;
    if let Some(ids) = &request.ids {
        if ids.len() > MAX_NAMED {
            return Err(ApiError::malformed(format!("too many ids; send at most {MAX_NAMED}")));
        }
        for id in ids {
            app.check_task(caller, *id).await?;
        }
        let limit = request.limit.unwrap_or(usize::MAX);
        return Ok(ids.iter().take(limit).copied().collect());
    }
    if caller.queues.is_some() {
        if filter.types.is_empty() {
            return Err(ApiError::forbidden("this token is limited to some queues; name the task types to replay"));
        }
        for task_type in &filter.types {
            app.check_type(caller, task_type)?;
        }
    }
    let options = ReplayOptions { dry_run: true, rate: None, limit: request.limit };
    Ok(app.client().replay_matching(filter, &options, |_| {}).await?.replayed)
}

fn chosen(request: &ReplayRequest, tasks: &[TaskId]) -> serde_json::Value {
    json!({ "tasks": tasks.len(), "types": request.types, "reason": request.reason, "error": request.error })
}

async fn replay_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<ReplayRequest>,
) -> Result<Response, ApiError> {
    let tasks = selected(&app, &caller, &request).await?;
    if request.dry_run.unwrap_or_default() {
        return answer(&Replayed { replayed: tasks, skipped: Vec::new(), dry_run: true });
    }
    let audited = app.audit.begin(&caller, "replay_tasks", "tasks", chosen(&request, &tasks)).await?;
    let done = app.client().replay_each(&tasks, None, |_| {}).await;
    let shown = |report: &postrider::tasks::ReplayReport| json!({ "replayed": report.replayed.len() });
    app.audit.finish(audited, outcome(&done, shown)).await;
    let report = done?;
    app.live.tasks_changed(&request.types);
    answer(&Replayed { replayed: report.replayed, skipped: report.skipped, dry_run: false })
}

async fn start_replay(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<ReplayJobRequest>,
) -> Result<Response, ApiError> {
    check_rate(request.rate)?;
    app.jobs.check_room()?;
    let chosen_tasks = request.replay();
    let tasks = selected(&app, &caller, &chosen_tasks).await?;
    let audited = app.audit.begin(&caller, "replay_tasks", "tasks", chosen(&chosen_tasks, &tasks)).await?;
    let (own, rate, types) = (app.clone(), request.rate, request.types);
    let job = app.jobs.begin(&caller, JobKind::Replay, None, move |job| async move {
        job.set_total(tasks.len());
        let done = replay_all(&own, &tasks, &types, rate, &job).await;
        let view = job.view();
        own.audit.finish(audited, outcome(&done, |()| json!({ "replayed": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Replays dead tasks in chunks.
async fn replay_all(
    app: &App,
    tasks: &[TaskId],
    types: &[TaskType],
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for tasks in tasks.chunks(chunk_size(rate, CHUNK)) {
        if !job.wait_for_rate(began, done + skipped, rate).await {
            break;
        }
        let report = app.client().replay_each(tasks, None, |_| {}).await?;
        done += report.replayed.len();
        skipped += report.skipped.len();
        job.progress(done, skipped);
        app.live.tasks_changed(types);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_with_many_hidden_rows_is_short_and_has_a_next() {
        let mut walk = Walk { limit: 10, ..Walk::default() };
        let nothing = |next: usize| TaskPage { tasks: Vec::new(), next: Some(TaskCursor(next.to_string())) };
        let pages = (1..).take_while(|page| walk.take(nothing(*page))).count() + 1;
        let page = walk.finish();
        let end = TaskCursor(MAX_PAGES.to_string());
        assert_eq!((pages, page.tasks.len(), page.next), (MAX_PAGES, 0, Some(end)));
    }
}
