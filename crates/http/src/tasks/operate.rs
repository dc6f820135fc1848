//! What applications and people ask of tasks, one by one.

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
use crate::failure::{Undone, of_here};
use crate::transport::{Ask, Transport};

const CREATE: &str = "create";

/// So many tasks are asked for at the same time, where the API takes one a request.
const AT_ONCE: usize = 8;

impl HttpTasks {
    /// Asks for each task by itself; the answers are in the order of the ids.
    pub(super) async fn each<T, F>(&self, ids: &[TaskId], work: impl Fn(TaskId) -> F) -> RowResults<T>
    where
        F: Future<Output = Result<T, MessagingError>>,
    {
        stream::iter(ids.to_vec()).map(work).buffered(AT_ONCE).collect().await
    }

    /// A task with its history.
    pub(super) async fn detail(
        &self,
        operation: &'static str,
        id: TaskId,
        deadline: Deadline,
    ) -> Result<Option<wire::Detail>, MessagingError> {
        match self.provider.look(operation, Ask::get(format!("/v1/tasks/{id}")), deadline).await {
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
        let mut made = Vec::new();
        if !request.tasks.is_empty() {
            let transport = self.provider.transport().clone();
            let work =
                async move { make(&transport, request).await.map_err(|undone| undone.into_error(CREATE, Vec::new())) };
            made = self.provider.carry_out(CREATE, Vec::new(), deadline, work).await?;
        }
        let mut made = made.into_iter();
        let row = |answer: Option<_>| answer.or_else(|| made.next()).unwrap_or_else(unknown);
        Ok(answers.into_iter().map(row).collect())
    }

    /// A task of a schedule is made by the server, which knows the schedule.
    async fn trigger(&self, task: NewTask, deadline: Deadline) -> Result<Created, MessagingError> {
        let name = task.schedule.clone().unwrap_or_default();
        let schedule = self.get_schedule(&name, deadline).await?;
        let template = schedule.map(|schedule| schedule.definition.task.task(&name)).transpose()?;
        let is_its_own = template.is_some_and(|template| NewTask { id: task.id, ..template } == task);
        if !is_its_own {
            let why = format!("only the server makes tasks of schedule '{name}', as the schedule says");
            return Err(MessagingError::invalid("schedule", why));
        }
        let ask = Ask::bare(Method::POST, format!("/v1/schedules/{name}/trigger"));
        let created: wire::Created = self.provider.change(CREATE, Vec::new(), ask, deadline).await?;
        Ok(created.into())
    }

    pub(super) async fn cancel_one(&self, id: TaskId, deadline: Deadline) -> Result<TaskState, MessagingError> {
        let ask = Ask::bare(Method::POST, format!("/v1/tasks/{id}/cancel"));
        let canceled: wire::Canceled = self.provider.change("cancel", Vec::new(), ask, deadline).await?;
        Ok(canceled.left)
    }

    /// The API's retry brings dead tasks back as well, which is not what is asked for here.
    pub(super) async fn run_one_now(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        const RUN: &str = "run now";
        let detail = self.detail(RUN, id, deadline).await?.ok_or(MessagingError::TaskNotFound { id })?;
        if detail.info.state == TaskState::Dead {
            return Err(MessagingError::TaskConflict { id, state: TaskState::Dead, operation: RUN });
        }
        let ask = Ask::bare(Method::POST, format!("/v1/tasks/{id}/retry"));
        let IgnoredAny = self.provider.change(RUN, Vec::new(), ask, deadline).await?;
        Ok(())
    }

    pub(super) async fn replay_one(&self, id: TaskId, deadline: Deadline) -> Result<(), MessagingError> {
        let ask = Ask::bare(Method::POST, format!("/v1/tasks/{id}/replay"));
        let IgnoredAny = self.provider.change("replay", Vec::new(), ask, deadline).await?;
        Ok(())
    }

    pub(super) async fn edit(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        let request = wire::EditPayloadRequest::from(payload);
        let ask = Ask::json(Method::PUT, format!("/v1/tasks/{id}/payload"), &request)?;
        let wire::Edited { revision } = self.provider.change("edit", Vec::new(), ask, deadline).await?;
        Ok(revision)
    }
}

fn unknown() -> Result<Created, MessagingError> {
    Err(MessagingError::OutcomeUnknown { operation: CREATE, ids: Vec::new(), source: None })
}

/// Asks for tasks to be made; in halves where that is too much for one request, one after the other.
async fn make(transport: &Transport, mut request: wire::NewTasksRequest) -> Result<RowResults<Created>, Undone> {
    let asked = request.tasks.len();
    let ask = Ask::post("/v1/tasks/batch", &request).map_err(Undone::NotDone)?;
    let answer = match transport.change::<wire::CreatedBatch>(ask).await {
        Err(undone) if undone.is_too_much(asked) => {
            let rest = wire::NewTasksRequest { tasks: request.tasks.split_off(asked / 2) };
            let mut rows = Vec::with_capacity(asked);
            for half in [request, rest] {
                let asked = half.tasks.len();
                match Box::pin(make(transport, half)).await {
                    Ok(made) => rows.extend(made),
                    Err(undone) => {
                        rows.extend((0..asked).map(|_| Err(undone.clone().into_error(CREATE, Vec::new()))));
                    }
                }
            }
            return Ok(rows);
        }
        answer => answer?,
    };
    let rows = transport.rows(answer.results, asked)?;
    let row = |row: wire::CreatedRow| row.into_result(PROVIDER).map_or_else(unknown, |row| row.map_err(of_here));
    Ok(rows.into_iter().map(row).collect())
}

/// Whether the server says that there is no such thing.
pub(super) fn is_absent(undone: &Undone) -> bool {
    match undone {
        Undone::Refused(problem) => match problem.code {
            Code::NotFound => true,
            Code::InvalidInput => problem.what.as_deref() == Some("schedule"),
            _ => false,
        },
        Undone::NotDone(_) | Undone::Unknown(_) => false,
    }
}
