//! Tasks: looking, calling off, bringing back.

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
use crate::jobs::{Job, check_rate, chunk};
use crate::portions::{BY_ID, READ_AND_WRITTEN, Room};

const MOST_LISTED: usize = 1000;

/// Pages of the store that one answer is made of at most. Each looks at thousands of rows, most of which may be of others:
/// with more of them than this, a page is short and its cursor goes on where the look ended.
const MOST_PAGES: usize = 20;

/// The name of the listing, for its cursors.
const TASKS: &str = "tasks";

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
            .parameters(
                "within",
                text(),
                "And of a type of one of these names; 'mail.*' means all that begin with 'mail.'",
            )
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
            "A task with its payload, its result, its attempts and the payloads that it had before: the newest, where all of \
             them would be too large an answer.",
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

    /// A task that somebody may see. One of another queue than their token is for is as if it were not there.
    async fn task(&self, caller: &Caller, id: TaskId) -> Result<Task, ApiError> {
        let task = self.client().get(id, Deadline::default()).await?;
        match self.may_use_type(caller, &task.info.task_type) {
            true => Ok(task),
            false => Err(MessagingError::TaskNotFound { id }.into()),
        }
    }

    /// Refuses somebody whose token is not for a task's queue.
    pub(super) async fn check_task(&self, caller: &Caller, id: TaskId) -> Result<(), ApiError> {
        if caller.queues.is_none() {
            return Ok(());
        }
        self.task(caller, id).await.map(drop)
    }

    /// A page of the tasks that somebody may see. What they may not is never read, and makes no difference: the pages are
    /// as full, and end where they would, if it were not there, but for [`MOST_PAGES`].
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

/// A walk through pages of the store that fills one page. Each of them comes of so many rows, whoever may see them.
#[derive(Debug, Default)]
struct Walk {
    limit: usize,
    pages: usize,
    tasks: Vec<TaskInfo>,
    after: Option<TaskCursor>,
    /// Where the page ends, once it is full.
    end: Option<TaskCursor>,
}

impl Walk {
    fn missing(&self) -> usize {
        self.limit.saturating_sub(self.tasks.len())
    }

    /// Takes a page of the store. Answers whether another is needed: behind a full page one more row tells whether there
    /// is another page.
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
        self.after.is_some() && self.pages < MOST_PAGES
    }

    fn finish(self) -> TaskPage {
        let Self { tasks, after, end, .. } = self;
        TaskPage { tasks, next: after.and_then(|after| end.or(Some(after))) }
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    // An empty value says nothing, here as everywhere.
    let query = read_query(&params.said())?;
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
    // Until the answer is counted.
    let size = app.size_by_id();
    in_flight.grow(size.saturating_mul(READ_AND_WRITTEN)).await?;
    let task = app.task(&caller, id).await?;
    let own = task.payload.len() + task.result.as_ref().map_or(0, |result| result.len());
    in_flight.correct(size, size.max(own));
    app.portions_of_tasks.saw([(BY_ID, own)]);
    let attempts = client.attempts(id, deadline).await?;
    // As many payloads as the task had before.
    let expected = size.max(own).saturating_mul(task.info.revision as usize);
    in_flight.grow(expected).await?;
    let mut revisions = client.revisions(id, deadline).await?;
    in_flight.correct(expected, revisions.iter().map(|revision| revision.payload.len()).sum());
    // The newest, of those that do not all fit into an answer.
    revisions.reverse();
    Room::default().take(&mut revisions, |revision| revision.payload.len());
    revisions.reverse();
    answer(&Detail::new(task, attempts, revisions))
}

/// A task after it was changed, which is told to those who look.
async fn changed(app: &App, id: TaskId) -> Result<Info, ApiError> {
    let info = app.client().get(id, Deadline::default()).await?.info;
    app.live.tell_of_tasks([&info.task_type]);
    Ok(Info::from(info))
}

async fn cancel(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "cancel_task", &id.to_string(), json!({})).await?;
    let done = app.client().cancel(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |left: &TaskState| json!({ "left": left }))).await;
    let left = done?;
    answer(&Canceled { info: changed(&app, id).await?, left })
}

async fn retry(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "retry_task", &id.to_string(), json!({})).await?;
    let done = app.client().retry(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("retried"))).await;
    done?;
    answer(&changed(&app, id).await?)
}

async fn replay(State(app): State<Arc<App>>, caller: Caller, TaskPath(id): TaskPath) -> Result<Response, ApiError> {
    app.check_task(&caller, id).await?;
    let deed = app.audit.begin(&caller, "replay_task", &id.to_string(), json!({})).await?;
    let done = app.client().replay(id, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("replayed"))).await;
    done?;
    answer(&changed(&app, id).await?)
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
    changed(&app, id).await?;
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
    app.live.tell_of_tasks(&asked.types);
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
    let (own, rate, types) = (app.clone(), asked.rate, asked.types);
    let job = app.jobs.begin(&caller, JobKind::Replay, None, move |job| async move {
        job.of(tasks.len());
        let done = bring_back(&own, &tasks, &types, rate, &job).await;
        let view = job.view();
        own.audit.done(deed, outcome(&done, |()| json!({ "replayed": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Brings dead tasks back, a few at a time.
async fn bring_back(
    app: &App,
    tasks: &[TaskId],
    types: &[TaskType],
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for tasks in tasks.chunks(chunk(rate, CHUNK)) {
        if !job.goes_on(began, done + skipped, rate).await {
            break;
        }
        let report = app.client().replay_each(tasks, None, |_| {}).await?;
        done += report.replayed.len();
        skipped += report.skipped.len();
        job.progress(done, skipped);
        app.live.tell_of_tasks(types);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_few_rows_among_very_many_is_short_and_has_a_next() {
        let mut walk = Walk { limit: 10, ..Walk::default() };
        let nothing = |next: usize| TaskPage { tasks: Vec::new(), next: Some(TaskCursor(next.to_string())) };
        let pages = (1..).take_while(|page| walk.take(nothing(*page))).count() + 1;
        let page = walk.finish();
        let end = TaskCursor(MOST_PAGES.to_string());
        assert_eq!((pages, page.tasks.len(), page.next), (MOST_PAGES, 0, Some(end)));
    }
}
