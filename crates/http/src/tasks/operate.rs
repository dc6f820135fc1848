//! Creating, reading and changing tasks.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::Method;
use postrider_core::task::{Created, NewTask, ScheduleStore, TaskState};
use postrider_core::{Deadline, MessagingError, RowResults, TaskId};
use postrider_wire::Code;
use postrider_wire::task as wire;
use serde::de::IgnoredAny;

use super::HttpTasks;
use crate::PROVIDER;
use crate::failure::{Failure, from_server};
use crate::transport::{Request, Transport};

const CREATE: &str = "create";

/// Number of concurrent requests, where a request is about one task.
const CONCURRENCY: usize = 8;

impl HttpTasks {
    /// Sends a request for each task; the results are in the order of the ids.
    pub(super) async fn each<T, F>(&self, ids: &[TaskId], work: impl Fn(TaskId) -> F) -> RowResults<T>
    where
        F: Future<Output = Result<T, MessagingError>>,
    {
        stream::iter(ids.to_vec()).map(work).buffered(CONCURRENCY).collect().await
    }

    /// A task with its history.
    pub(super) async fn detail(
        &self,
        operation: &'static str,
        id: TaskId,
        deadline: Deadline,
    ) -> Result<Option<wire::Detail>, MessagingError> {
        match self.provider.call(operation, Request::get(format!("/v1/tasks/{id}")), deadline).await {
            Ok(detail) => Ok(Some(detail)),
            Err(MessagingError::TaskNotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create_all(
        &self,
        tasks: Vec<NewTask>,
        deadline: Deadline,
    ) -> Result<RowResults<Created>, MessagingError> {
        self.provider.begin(CREATE, deadline)?;
        let mut answers: Vec<Option<Result<Created, MessagingError>>> = Vec::with_capacity(tasks.len());
        let mut request = wire::NewTasksRequest { tasks: Vec::with_capacity(tasks.len()) };
        for task in tasks {
            match self.check(task) {
                Err(error) => answers.push(Some(Err(error))),
                Ok(task) if task.schedule.is_some() => answers.push(Some(self.trigger(task, deadline).await)),
                Ok(task) => {
                    request.tasks.push(task.into());
                    answers.push(None);
                }
            }
        }
        let mut created = Vec::new();
        if !request.tasks.is_empty() {
            let transport = self.provider.transport().clone();
            let work = async move {
                create_batch(&transport, request).await.map_err(|failure| failure.into_error(CREATE, Vec::new()))
            };
            created = self.provider.carry_out(CREATE, Vec::new(), deadline, work).await?;
        }
        let mut created = created.into_iter();
        let row = |answer: Option<_>| answer.or_else(|| created.next()).unwrap_or_else(unknown);
        Ok(answers.into_iter().map(row).collect())
    }

    /// Creates a task of a schedule: only the server can, by a trigger.
    async fn trigger(&self, task: NewTask, deadline: Deadline) -> Result<Created, MessagingError> {
        let name = task.schedule.clone().unwrap_or_default();
        let schedule = self.get_schedule(&name, deadline).await?;
        let template = schedule.map(|schedule| schedule.definition.task.task(&name)).transpose()?;
        let is_from_schedule = template.is_some_and(|template| NewTask { id: task.id, ..template } == task);
        if !is_from_schedule {
            let why = format!("a task of schedule '{name}' must equal its template; create it without the schedule");
            return Err(MessagingError::invalid("schedule", why));
        }
        let request = Request::bare(Method::POST, format!("/v1/schedules/{name}/trigger"));
        let created: wire::Created = self.provider.call_once(CREATE, Vec::new(), request, deadline).await?;
        Ok(created.into())
    }

    pub(super) async fn cancel_one(&self, id: TaskId, deadline: Deadline) -> Result<TaskState, MessagingError> {
        let request = Request::bare(Method::POST, format!("/v1/tasks/{id}/cancel"));
        let canceled: wire::Canceled = self.provider.call_once("cancel", Vec::new(), request, deadline).await?;
        Ok(canceled.left)
    }

    /// Makes a task due. The API's retry also replays dead tasks, which is not intended here.
    pub(super) async fn run_one_now(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        const RUN: &str = "run now";
        let detail = self.detail(RUN, id, deadline).await?.ok_or(MessagingError::TaskNotFound { id })?;
        if detail.info.state == TaskState::Dead {
            return Err(MessagingError::TaskConflict { id, state: TaskState::Dead, operation: RUN });
        }
        let request = Request::bare(Method::POST, format!("/v1/tasks/{id}/retry"));
        let IgnoredAny = self.provider.call_once(RUN, Vec::new(), request, deadline).await?;
        Ok(())
    }

    pub(super) async fn replay_one(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        let request = Request::bare(Method::POST, format!("/v1/tasks/{id}/replay"));
        let IgnoredAny = self.provider.call_once("replay", Vec::new(), request, deadline).await?;
        Ok(())
    }

    pub(super) async fn edit(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        let request = wire::EditPayloadRequest::from(payload);
        let request = Request::json(Method::PUT, format!("/v1/tasks/{id}/payload"), &request)?;
        let wire::Edited { revision } = self.provider.call_once("edit", Vec::new(), request, deadline).await?;
        Ok(revision)
    }
}

fn unknown() -> Result<Created, MessagingError> {
    Err(MessagingError::OutcomeUnknown { operation: CREATE, ids: Vec::new(), source: None })
}

/// Creates tasks; in two halves, one after the other, if they are too large for one request.
async fn create_batch(transport: &Transport, mut new: wire::NewTasksRequest) -> Result<RowResults<Created>, Failure> {
    let count = new.tasks.len();
    let request = Request::post("/v1/tasks/batch", &new).map_err(Failure::NotDone)?;
    let answer = match transport.call_once::<wire::CreatedBatch>(request).await {
        Err(failure) if failure.is_splittable(count) => {
            let rest = wire::NewTasksRequest { tasks: new.tasks.split_off(count / 2) };
            let mut rows = Vec::with_capacity(count);
            for half in [new, rest] {
                let count = half.tasks.len();
                match Box::pin(create_batch(transport, half)).await {
                    Ok(created) => rows.extend(created),
                    Err(failure) => {
                        rows.extend((0..count).map(|_| Err(failure.clone().into_error(CREATE, Vec::new()))));
                    }
                }
            }
            return Ok(rows);
        }
        answer => answer?,
    };
    let rows = transport.rows(answer.results, count)?;
    let row = |row: wire::CreatedRow| row.into_result(PROVIDER).map_or_else(unknown, |row| row.map_err(from_server));
    Ok(rows.into_iter().map(row).collect())
}

/// Whether the server reports that the object does not exist.
pub(super) fn is_absent(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(problem) => match problem.code {
            Code::NotFound => true,
            Code::InvalidInput => problem.what.as_deref() == Some("schedule"),
            _ => false,
        },
        Failure::NotDone(_) | Failure::Unknown(_) => false,
    }
}
