//! Tasks: making them.

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
use crate::api::schemas::{asks_only, list, named, only};
use crate::api::{ApiError, Content, JsonBody, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::repeat::RepeatKey;

/// So many tasks are made with one request.
const MOST_CREATED: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Tasks";
    vec![
        Route::new(
            (Verb::Post, "/v1/tasks"),
            (GROUP, "createTask"),
            PRODUCE,
            "Makes a task. One whose idempotency key is taken answers the task that has it.",
            create,
        )
        .repeatable()
        .takes(named("NewTask"))
        .answers(201, "It was made", Content::Json(named("CreatedTask")))
        .answers(200, "It was there", Content::Json(named("CreatedTask"))),
        Route::new(
            (Verb::Post, "/v1/tasks/batch"),
            (GROUP, "createTasks"),
            PRODUCE,
            "Makes tasks, in their order. Each has an answer of its own.",
            create_batch,
        )
        .repeatable()
        .takes(asks_only("tasks", list(named("NewTask"))))
        .answers(200, "What became of each", Content::Json(only("results", list(named("CreatedRow"))))),
    ]
}

/// A task to be made, and its id if that is made from the request's key.
struct Meant {
    task: NewTask,
    own_id: Option<TaskId>,
}

impl Meant {
    fn new(new: wire::NewTask, key: Option<&RepeatKey>, row: usize) -> Result<Self, MessagingError> {
        let own_id = key.filter(|_| new.id.is_none()).map(|key| TaskId::from_uuid(key.id(row)));
        let mut task = NewTask::try_from(new)?;
        task.id = own_id.unwrap_or(task.id);
        Ok(Self { task, own_id })
    }
}

/// Makes tasks. One that is there under an id which only this request has was made when the request was carried out
/// before, and its answer was lost.
async fn make(app: &App, meant: Vec<Meant>) -> Result<RowResults<postrider::task::Created>, MessagingError> {
    let types: Vec<TaskType> = meant.iter().map(|meant| meant.task.task_type.clone()).collect();
    let (tasks, own_ids): (_, Vec<_>) = meant.into_iter().map(|meant| (meant.task, meant.own_id)).unzip();
    let mut rows = app.client().create_many(tasks, Deadline::default()).await?;
    // One for all of them: however many there are, the answer does not wait for longer.
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
            app.meter.task_created(task_type);
        }
    }
    app.live.tell_of_tasks(types.iter().collect::<BTreeSet<_>>());
    Ok(rows)
}

fn lost() -> MessagingError {
    MessagingError::OutcomeUnknown { operation: "create a task", ids: Vec::new(), source: None }
}

async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    key: Option<Extension<RepeatKey>>,
    JsonBody(new): JsonBody<wire::NewTask>,
) -> Result<Response, ApiError> {
    let meant = Meant::new(new, key.as_deref(), 0)?;
    app.check_type(&caller, &meant.task.task_type)?;
    let created = make(&app, vec![meant]).await?.pop().unwrap_or_else(|| Err(lost()))?;
    let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
    answer_with(status, &wire::Created::from(created))
}

async fn create_batch(
    State(app): State<Arc<App>>,
    caller: Caller,
    key: Option<Extension<RepeatKey>>,
    JsonBody(NewTasksRequest { tasks }): JsonBody<NewTasksRequest>,
) -> Result<Response, ApiError> {
    if tasks.len() > MOST_CREATED {
        return Err(ApiError::malformed(format!("at most {MOST_CREATED} tasks are made at once; make the rest apart")));
    }
    let mut rows: Vec<Option<CreatedRow>> = Vec::with_capacity(tasks.len());
    let mut fine = Vec::with_capacity(tasks.len());
    for (row, new) in tasks.into_iter().enumerate() {
        if let Some(done) = key.as_deref().and_then(|key| key.done(row)) {
            rows.push(Some(done));
            continue;
        }
        match Meant::new(new, key.as_deref(), row) {
            Ok(meant) => {
                app.check_type(&caller, &meant.task.task_type)?;
                fine.push(meant);
                rows.push(None);
            }
            Err(error) => rows.push(Some(CreatedRow::from(Err(error)))),
        }
    }
    let made = if fine.is_empty() { Vec::new() } else { make(&app, fine).await? };
    let mut made = made.into_iter();
    let mut next = || CreatedRow::from(made.next().unwrap_or_else(|| Err(lost())));
    answer(&CreatedBatch { results: rows.into_iter().map(|row| row.unwrap_or_else(&mut next)).collect() })
}
