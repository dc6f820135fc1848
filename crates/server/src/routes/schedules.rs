//! Schedules: times at which tasks are made.

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
        Route::new((Verb::Get, "/v1/schedules"), (GROUP, "listSchedules"), READ, "Every schedule, by name.", list)
            .answers(200, "The schedules", Content::Json(only("schedules", listed(named("Schedule"))))),
        Route::new((Verb::Get, "/v1/schedules/{name}"), (GROUP, "getSchedule"), READ, "One schedule.", get).answers(
            200,
            "It",
            schedule(),
        ),
        Route::new(
            (Verb::Put, "/v1/schedules/{name}"),
            (GROUP, "putSchedule"),
            OPERATE,
            "Makes a schedule, or changes the one of that name.",
            put,
        )
        .takes(named("NewSchedule"))
        .answers(200, "As it is now", schedule()),
        Route::new(
            (Verb::Delete, "/v1/schedules/{name}"),
            (GROUP, "deleteSchedule"),
            OPERATE,
            "Removes a schedule. Its tasks stay.",
            delete,
        )
        .answers(204, "It is gone", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/pause"),
            (GROUP, "pauseSchedule"),
            OPERATE,
            "Holds a schedule back. Times that come meanwhile are not made up for.",
            pause,
        )
        .answers(200, "As it is now", schedule()),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/resume"),
            (GROUP, "resumeSchedule"),
            OPERATE,
            "Lets a schedule go on.",
            resume,
        )
        .answers(200, "As it is now", schedule()),
        Route::new(
            (Verb::Post, "/v1/schedules/{name}/trigger"),
            (GROUP, "triggerSchedule"),
            OPERATE,
            "Makes a task of a schedule now. Its times go on as they would have.",
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

    /// A schedule that somebody may see and change. One that they may not is as if it were not there.
    pub(super) async fn schedule(&self, caller: &Caller, name: &str) -> Result<postrider::task::Schedule, ApiError> {
        let found = self.find_schedule(name).await?;
        found.filter(|schedule| self.may_use_type(caller, &schedule.definition.task.task_type)).ok_or_else(|| {
            let why = format!("there is no schedule '{}'; GET /v1/schedules has those that are", name.escape_debug());
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
    JsonBody(asked): JsonBody<PutScheduleRequest>,
) -> Result<Response, ApiError> {
    let new = asked.into_schedule(&name)?;
    app.check_type(&caller, &new.task.task_type)?;
    if caller.queues.is_some()
        && let Some(other) = app.find_schedule(&name).await?
        && !app.may_use_type(&caller, &other.definition.task.task_type)
    {
        let why = format!("the name '{}' cannot be used by this token; choose another", name.escape_debug());
        return Err(ApiError::forbidden(why));
    }
    let deed = app.audit.begin(&caller, "put_schedule", &name, json!({ "type": new.task.task_type })).await?;
    let done = app.client().put_schedule(&new, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |made| json!({ "next_run_at": made.next_run_at }))).await;
    let made = done?;
    app.live.tell_of_schedules([&new.task.task_type]);
    answer(&Schedule::from(made))
}

async fn delete(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let meant = app.schedule(&caller, &name).await?.definition.task.task_type;
    let deed = app.audit.begin(&caller, "delete_schedule", &name, json!({})).await?;
    let done = app.client().delete_schedule(&name, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("deleted"))).await;
    done?;
    app.live.tell_of_schedules([&meant]);
    Ok(no_content())
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let meant = app.schedule(&caller, &name).await?.definition.task.task_type;
    let deed = app.audit.begin(&caller, "pause_schedule", &name, json!({})).await?;
    let done = app.client().pause_schedule(&name, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |_| json!("paused"))).await;
    let changed = done?;
    app.live.tell_of_schedules([&meant]);
    answer(&Schedule::from(changed))
}

async fn resume(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let meant = app.schedule(&caller, &name).await?.definition.task.task_type;
    let deed = app.audit.begin(&caller, "resume_schedule", &name, json!({})).await?;
    let done = app.client().resume_schedule(&name, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |_| json!("resumed"))).await;
    let changed = done?;
    app.live.tell_of_schedules([&meant]);
    answer(&Schedule::from(changed))
}

async fn trigger(State(app): State<Arc<App>>, caller: Caller, NamePath(name): NamePath) -> Result<Response, ApiError> {
    let meant = app.schedule(&caller, &name).await?.definition.task.task_type;
    let deed = app.audit.begin(&caller, "trigger_schedule", &name, json!({})).await?;
    let done = app.client().trigger_schedule(&name, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |made| json!({ "task": made.id }))).await;
    let made = done?;
    app.live.tell_of_tasks([&meant]);
    answer_with(StatusCode::CREATED, &Created::from(made))
}
