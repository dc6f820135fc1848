//! Schedules: list, create, pause, trigger.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{Deadline, MessagingError};
use postrider_wire::schedule::{PutScheduleRequest, Schedule, Schedules};
use postrider_wire::task::Created;
use serde_json::json;

use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{list as listed, named, only};
use crate::api::{ApiError, Content, JsonBody, NamePath, Route, Verb, answer, answer_with, no_content};
use crate::app::App;
use crate::audit::outcome;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Schedules";
    let schedule = || Content::Json(named("Schedule"));
    vec![
        Route::new((Verb::Get, "/v1/schedules"), (GROUP, "listSchedules"), READ, "All schedules, by name.", list)
            .answers(200, "The schedules", Content::Json(only("schedules", listed(named("Schedule"))))),
        Route::new((Verb::Get, "/v1/schedules/{name}"), (GROUP, "getSchedule"), READ, "One schedule.", get).answers(
            200,
            "The schedule",
            schedule(),
        ),
        Route::new(
            (Verb::Put, "/v1/schedules/{name}"),
            (GROUP, "putSchedule"),
            OPERATE,
            "Creates a schedule, or changes the one of that name.",
            put,
        )
        .takes(named("NewSchedule"))
        .answers(200, "The schedule", schedule()),
        Route::new(
            (Verb::Delete, "/v1/schedules/{name}"),
            (GROUP, "deleteSchedule"),
            OPERATE,
            "Deletes a schedule. Its tasks stay.",
            delete,
        )
        .answers(204, "The schedule is deleted", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/pause"),
            (GROUP, "pauseSchedule"),
            OPERATE,
            "Pauses a schedule. Ticks during the pause are skipped.",
            pause,
        )
        .answers(200, "The schedule", schedule()),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/resume"),
            (GROUP, "resumeSchedule"),
            OPERATE,
            "Resumes a schedule.",
            resume,
        )
        .answers(200, "The schedule", schedule()),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/trigger"),
            (GROUP, "triggerSchedule"),
            OPERATE,
            "Creates a task of a schedule now. Its ticks do not change.",
            trigger,
        )
        .answers(201, "The task", Content::Json(named("CreatedTask"))),
    ]
}

impl App {
    async fn find_schedule(&self, name: &str) -> Result<Option<postrider::task::Schedule>, MessagingError> {
        let schedules = self.client().list_schedules(Deadline::default()).await?;
        Ok(schedules.into_iter().find(|schedule| schedule.definition.name == name))
    }

    /// Returns a schedule that the caller may see and change; a hidden one is reported as not found.
    pub(super) async fn schedule(&self, caller: &Caller, name: &str) -> Result<postrider::task::Schedule, ApiError> {
        let found = self.find_schedule(name).await?;
        found.filter(|schedule| self.may_use_type(caller, &schedule.definition.task.task_type)).ok_or_else(|| {
            let why = format!("no schedule '{}'; see GET /v1/schedules", name.escape_debug());
            ApiError::not_found(why)
        })
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let schedules = app.client().list_schedules(Deadline::default()).await?;
    let visible = schedules.into_iter().filter(|one| app.may_use_type(&caller, &one.definition.task.task_type));
    answer(&Schedules { schedules: visible.map(Schedule::from).collect() })
}

async fn get(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    answer(&Schedule::from(app.schedule(&caller, &name).await?))
}

async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    JsonBody(request): JsonBody<PutScheduleRequest>,
) -> Result<Response, ApiError> {
    let new = request.into_schedule(&name)?;
    app.check_type(&caller, &new.task.task_type)?;
    if caller.queues.is_some()
        && let Some(other) = app.find_schedule(&name).await?
        && !app.may_use_type(&caller, &other.definition.task.task_type)
    {
        let why = format!("the name '{}' cannot be used by this token; choose another", name.escape_debug());
        return Err(ApiError::forbidden(why));
    }
    let audited = app.audit.begin(&caller, "put_schedule", &name, json!({ "type": new.task.task_type })).await?;
    let done = app.client().put_schedule(&new, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |created| json!({ "next_run_at": created.next_run_at }))).await;
    let created = done?;
    app.live.schedules_changed([&new.task.task_type]);
    answer(&Schedule::from(created))
}

async fn delete(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let task_type = app.schedule(&caller, &name).await?.definition.task.task_type;
    let audited = app.audit.begin(&caller, "delete_schedule", &name, json!({})).await?;
    let done = app.client().delete_schedule(&name, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("deleted"))).await;
    done?;
    app.live.schedules_changed([&task_type]);
    Ok(no_content())
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let task_type = app.schedule(&caller, &name).await?.definition.task.task_type;
    let audited = app.audit.begin(&caller, "pause_schedule", &name, json!({})).await?;
    let done = app.client().pause_schedule(&name, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |_| json!("paused"))).await;
    let changed = done?;
    app.live.schedules_changed([&task_type]);
    answer(&Schedule::from(changed))
}

async fn resume(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let task_type = app.schedule(&caller, &name).await?.definition.task.task_type;
    let audited = app.audit.begin(&caller, "resume_schedule", &name, json!({})).await?;
    let done = app.client().resume_schedule(&name, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |_| json!("resumed"))).await;
    let changed = done?;
    app.live.schedules_changed([&task_type]);
    answer(&Schedule::from(changed))
}

async fn trigger(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let task_type = app.schedule(&caller, &name).await?.definition.task.task_type;
    let audited = app.audit.begin(&caller, "trigger_schedule", &name, json!({})).await?;
    let done = app.client().trigger_schedule(&name, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |created| json!({ "task": created.id }))).await;
    let created = done?;
    app.live.tasks_changed([&task_type]);
    answer_with(StatusCode::CREATED, &Created::from(created))
}
