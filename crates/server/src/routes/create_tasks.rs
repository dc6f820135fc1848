//! Creating tasks.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::task::NewTask;
use postrider::{Deadline, MessagingError, RowResults, TaskId, TaskType};
use postrider_wire::task::{self as wire, CreatedBatch, CreatedRow, NewTasksRequest};

use super::PRODUCE;
use crate::access::Caller;
use crate::api::schemas::{list, named, only, request_only};
use crate::api::{ApiError, Content, JsonBody, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::idempotency::IdempotencyKey;

/// Upper bound of the tasks of one request.
const MAX_CREATED: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new(
            (Verb::Post, "/v1/tasks"),
            (GROUP, "createTask"),
            PRODUCE,
            "Creates a task. If its idempotency key is in use, returns the task that has it.",
            create,
        )
        .repeatable()
        .takes(named("NewTask"))
        .answers(201, "The task was created", Content::Json(named("CreatedTask")))
        .answers(200, "The task existed", Content::Json(named("CreatedTask"))),
        Route::new(
            (Verb::Post, "/v1/tasks/batch"),
            (GROUP, "createTasks"),
            PRODUCE,
            "Creates tasks, in their order. Each has its own result.",
            create_batch,
        )
        .repeatable()
        .takes(request_only("tasks", list(named("NewTask"))))
        .answers(200, "The result of each", Content::Json(only("results", list(named("CreatedRow"))))),
    ]
}

/// A task to be created, and its id if that is derived from the idempotency key.
struct PlannedTask {
    task: NewTask,
    own_id: Option<TaskId>,
}

impl PlannedTask {
    fn new(new: wire::NewTask, key: Option<&IdempotencyKey>, row: usize) -> Result<Self, MessagingError> {
        let own_id = key.filter(|_| new.id.is_none()).map(|key| TaskId::from_uuid(key.id(row)));
        let mut task = NewTask::try_from(new)?;
        task.id = own_id.unwrap_or(task.id);
        Ok(Self { task, own_id })
    }
}

/// Creates tasks. A task that exists with an id derived from the idempotency key was created by an earlier try of the
/// request, whose answer was lost.
async fn create_all(
    app: &App,
    planned: Vec<PlannedTask>,
) -> Result<RowResults<postrider::task::Created>, MessagingError> {
    let types: Vec<TaskType> = planned.iter().map(|planned| planned.task.task_type.clone()).collect();
    let (tasks, own_ids): (_, Vec<_>) = planned.into_iter().map(|planned| (planned.task, planned.own_id)).unzip();
    let mut rows = app.client().create_many(tasks, Deadline::default()).await?;
    // One deadline for all lookups bounds the wait.
    let deadline = Deadline::default();
    for (row, own_id) in rows.iter_mut().zip(own_ids) {
        if let Err(MessagingError::InvalidInput { what: "task id", .. }) = row
            && let Some(id) = own_id
            && let Ok(task) = app.client().get(id, deadline).await
        {
            *row = Ok(postrider::task::Created { id, is_new: true, state: task.info.state });
        }
    }
    for (task_type, row) in types.iter().zip(&rows) {
        if row.as_ref().is_ok_and(|created| created.is_new) {
            app.metrics.task_created(task_type);
        }
    }
    app.live.tasks_changed(types.iter().collect::<BTreeSet<_>>());
    Ok(rows)
}

fn lost() -> MessagingError {
    MessagingError::OutcomeUnknown { operation: "create a task", ids: Vec::new(), source: None }
}

async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    key: Option<Extension<IdempotencyKey>>,
    JsonBody(new): JsonBody<wire::NewTask>,
) -> Result<Response, ApiError> {
    let planned = PlannedTask::new(new, key.as_deref(), 0)?;
    app.check_type(&caller, &planned.task.task_type)?;
    let created = create_all(&app, vec![planned]).await?.pop().unwrap_or_else(|| Err(lost()))?;
    let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
    answer_with(status, &wire::Created::from(created))
}

async fn create_batch(
    State(app): State<Arc<App>>,
    caller: Caller,
    key: Option<Extension<IdempotencyKey>>,
    JsonBody(NewTasksRequest { tasks }): JsonBody<NewTasksRequest>,
) -> Result<Response, ApiError> {
    if tasks.len() > MAX_CREATED {
        return Err(ApiError::malformed(format!("too many tasks; send at most {MAX_CREATED} with one request")));
    }
    let mut rows: Vec<Option<CreatedRow>> = Vec::with_capacity(tasks.len());
    let mut valid = Vec::with_capacity(tasks.len());
    for (row, new) in tasks.into_iter().enumerate() {
        if let Some(done) = key.as_deref().and_then(|key| key.done(row)) {
            rows.push(Some(done));
            continue;
        }
        match PlannedTask::new(new, key.as_deref(), row) {
            Ok(planned) => {
                app.check_type(&caller, &planned.task.task_type)?;
                valid.push(planned);
                rows.push(None);
            }
            Err(error) => rows.push(Some(CreatedRow::from(Err(error)))),
        }
    }
    let created = if valid.is_empty() { Vec::new() } else { create_all(&app, valid).await? };
    let mut created = created.into_iter();
    let mut next = || CreatedRow::from(created.next().unwrap_or_else(|| Err(lost())));
    answer(&CreatedBatch { results: rows.into_iter().map(|row| row.unwrap_or_else(&mut next)).collect() })
}
