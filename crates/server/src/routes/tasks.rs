//! Tasks: looking, calling off, bringing back.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::task::TaskFilter;
use postrider::tasks::ReplayOptions;
use postrider::{Deadline, MessagingError, TaskId, TaskState, TaskStore, TaskType};
use postrider_http::wire::job::JobKind;
use postrider_http::wire::task::{
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
use crate::jobs::{Job, check_rate, chunk};
use crate::live::Change;

const MOST_LISTED: usize = 1000;

/// So many tasks are named with one request.
const MOST_NAMED: usize = 10_000;

/// So many are brought back in one call to the store.
const CHUNK: usize = 500;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new((Verb::Get, "/v1/tasks"), (GROUP, "listTasks"), READ, "Tasks, newest first.", list)
            .parameters("state", text(), "In one of these states")
            .parameters("type", text(), "Of one of these types")
            .parameters("tag", text(), "With all of these tags")
            .parameter("schedule", text(), "Made by this schedule")
            .parameter("reason", text(), "That died for this reason")
            .parameter("error", text(), "Whose last error has this in it")
            .parameter("since", schemas::time(), "Made at this time or later")
            .parameter("before", schemas::time(), "Made before this time")
            .parameter("limit", limit(MOST_LISTED), "At most so many; 100 unless told otherwise")
            .parameter("after", text(), "The 'next' of the page before")
            .answers(
                200,
                "A page of tasks; it may be short and still not the last",
                Content::Json(page("tasks", named("TaskInfo"))),
            ),
        Route::new(
            (Verb::Get, "/v1/tasks/routes"),
            (GROUP, "getTaskRoutes"),
            ANY_ROLE,
            "How tasks reach their workers.",
            task_routes,
        )
        .answers(200, "The routes", Content::Json(named("TaskRoutes"))),
        Route::new(
            (Verb::Post, "/v1/tasks/replay"),
            (GROUP, "replayTasks"),
            OPERATE,
            "Brings dead tasks back, all at once; with 'dry_run', only tells which.",
            replay_many,
        )
        .takes(named("Replay"))
        .answers(200, "Which were brought back", Content::Json(named("Replayed"))),
        Route::new(
            (Verb::Post, "/v1/tasks/replay-job"),
            (GROUP, "startReplay"),
            OPERATE,
            "Begins to bring dead tasks back, at most 'rate' a second. Watch or cancel the job.",
            start_replay,
        )
        .takes(named("ReplayJob"))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Get, "/v1/tasks/{id}"),
            (GROUP, "getTask"),
            READ,
            "A task with its payload, its result, its attempts and the payloads that it had before.",
            get,
        )
        .answers(200, "It", Content::Json(named("Task"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/cancel"),
            (GROUP, "cancelTask"),
            OPERATE,
            "Calls a task off, wherever it is. A running handler is told.",
            cancel,
        )
        .answers(200, "As it is now, and the state that it left", Content::Json(named("ChangedTask"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/retry"),
            (GROUP, "retryTask"),
            OPERATE,
            "Has a task run now: one that waits does not wait any longer, one that is dead is replayed.",
            retry,
        )
        .answers(200, "As it is now", Content::Json(named("ChangedTask"))),
        Route::new(
            (Verb::Post, "/v1/tasks/{id}/replay"),
            (GROUP, "replayTask"),
            OPERATE,
            "Brings a dead task back, with all its attempts before it.",
            replay,
        )
        .answers(200, "As it is now", Content::Json(named("ChangedTask"))),
        Route::new(
            (Verb::Put, "/v1/tasks/{id}/payload"),
            (GROUP, "editTask"),
            OPERATE,
            "Changes the payload of a dead task; the one before is kept.",
            edit,
        )
        .takes(named("Payload"))
        .answers(200, "The number of the new one", Content::Json(named("Revision"))),
    ]
}

impl App {
    /// Whether somebody may see and use tasks of a type: those of the queue that it would be delivered by.
    pub(super) fn may_use_type(&self, caller: &Caller, task_type: &TaskType) -> bool {
        caller.queues.is_none()
            || self.client().store().routes().queue(task_type).is_ok_and(|queue| caller.may_use(&queue))
    }

    pub(super) fn check_type(&self, caller: &Caller, task_type: &TaskType) -> Result<(), ApiError> {
        match self.may_use_type(caller, task_type) {
            true => Ok(()),
            false => {
                Err(ApiError::forbidden(format!("this token is not for tasks of type '{task_type}'; use one that is")))
            }
        }
    }

    /// Refuses somebody whose token is not for a task's queue.
    pub(super) async fn check_task(&self, caller: &Caller, id: TaskId) -> Result<(), ApiError> {
        if caller.queues.is_none() {
            return Ok(());
        }
        let task = self.client().get(id, Deadline::default()).await?;
        self.check_type(caller, &task.info.task_type)
    }

    pub(super) fn tell_of_tasks(&self) {
        self.live.tell(Change::Tasks);
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    // An empty value says nothing, here as everywhere.
    let query = read_query(&params.said())?;
    let mut found = app.client().list(&query, Deadline::default()).await?;
    found.tasks.retain(|task| app.may_use_type(&caller, &task.task_type));
    answer(&Page::from(found))
}

async fn task_routes(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let store = app.client().store();
    answer(&Routes::new(store.routes(), store.max_payload_bytes(), store.store_name()))
}

async fn get(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    let (client, deadline) = (app.client(), Deadline::default());
    let task = client.get(id, deadline).await?;
    app.check_type(&caller, &task.info.task_type)?;
    let attempts = client.attempts(id, deadline).await?;
    let revisions = client.revisions(id, deadline).await?;
    answer(&Detail::new(task, attempts, revisions))
}

async fn info(app: &App, id: TaskId) -> Result<Info, ApiError> {
    Ok(Info::from(app.client().get(id, Deadline::default()).await?.info))
}

async fn cancel(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "cancel_task", &id.to_string(), json!({})).await?;
    let done = app.client().cancel(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |left: &TaskState| json!({ "left": left }))).await;
    let left = done?;
    app.tell_of_tasks();
    answer(&Canceled { info: info(&app, id).await?, left })
}

async fn retry(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "retry_task", &id.to_string(), json!({})).await?;
    let done = app.client().retry(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("retried"))).await;
    done?;
    app.tell_of_tasks();
    answer(&info(&app, id).await?)
}

async fn replay(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "replay_task", &id.to_string(), json!({})).await?;
    let done = app.client().replay(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("replayed"))).await;
    done?;
    app.tell_of_tasks();
    answer(&info(&app, id).await?)
}

async fn edit(
    State(app): State<Arc<App>>,
    caller: Caller,
    TaskPath(id): TaskPath,
    JsonBody(asked): JsonBody<EditPayloadRequest>,
) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let payload = asked.into_payload()?;
    let deed = app.audit.begin(&caller, "edit_task", &id.to_string(), json!({})).await?;
    let done = app.client().edit(id, payload, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |revision| json!({ "revision": revision }))).await;
    let revision = done?;
    app.tell_of_tasks();
    answer(&Edited { revision })
}

/// The tasks that a request means, and how the audit log calls them.
async fn meant(app: &App, caller: &Caller, asked: &ReplayRequest) -> Result<Vec<TaskId>, ApiError> {
    // Refuses ids beside a filter, which would be ignored.
    let filter: TaskFilter = asked.filter()?;
    if let Some(ids) = &asked.ids {
        if ids.len() > MOST_NAMED {
            return Err(ApiError::malformed(format!("ids: name at most {MOST_NAMED}")));
        }
        for id in ids {
            app.check_task(caller, *id).await?;
        }
        let limit = asked.limit.unwrap_or(usize::MAX);
        return Ok(ids.iter().take(limit).copied().collect());
    }
    if caller.queues.is_some() {
        if filter.types.is_empty() {
            return Err(ApiError::forbidden("this token is for some queues; name the types that are meant"));
        }
        for task_type in &filter.types {
            app.check_type(caller, task_type)?;
        }
    }
    let options = ReplayOptions { dry_run: true, rate: None, limit: asked.limit };
    Ok(app.client().replay_matching(filter, &options, |_| {}).await?.replayed)
}

fn chosen(asked: &ReplayRequest, tasks: &[TaskId]) -> serde_json::Value {
    json!({ "tasks": tasks.len(), "types": asked.types, "reason": asked.reason, "error": asked.error })
}

async fn replay_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<ReplayRequest>,
) -> Result<Response, ApiError> {
    let tasks = meant(&app, &caller, &asked).await?;
    if asked.dry_run.unwrap_or_default() {
        return answer(&Replayed { replayed: tasks, skipped: Vec::new() });
    }
    let deed = app.audit.begin(&caller, "replay_tasks", "tasks", chosen(&asked, &tasks)).await?;
    let done = app.client().replay_each(&tasks, None, |_| {}).await;
    let shown = |report: &postrider::tasks::ReplayReport| json!({ "replayed": report.replayed.len() });
    app.audit.done(deed, outcome(&done, shown)).await;
    let report = done?;
    app.tell_of_tasks();
    answer(&Replayed { replayed: report.replayed, skipped: report.skipped })
}

async fn start_replay(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<ReplayJobRequest>,
) -> Result<Response, ApiError> {
    check_rate(asked.rate)?;
    app.jobs.check_room()?;
    let chosen_tasks = asked.replay();
    let tasks = meant(&app, &caller, &chosen_tasks).await?;
    let deed = app.audit.begin(&caller, "replay_tasks", "tasks", chosen(&chosen_tasks, &tasks)).await?;
    let (own, rate) = (app.clone(), asked.rate);
    let job = app.jobs.begin(&caller, JobKind::Replay, None, move |job| async move {
        job.of(tasks.len());
        let done = bring_back(&own, &tasks, rate, &job).await;
        let view = job.view();
        own.audit.done(deed, outcome(&done, |()| json!({ "replayed": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Brings dead tasks back, a few at a time.
async fn bring_back(app: &App, tasks: &[TaskId], rate: Option<f64>, job: &Job) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for tasks in tasks.chunks(chunk(rate, CHUNK)) {
        if !job.goes_on(began, done + skipped, rate).await {
            break;
        }
        let report = app.client().replay_each(tasks, None, |_| {}).await?;
        done += report.replayed.len();
        skipped += report.skipped.len();
        job.progress(done, skipped);
        app.tell_of_tasks();
    }
    Ok(())
}
