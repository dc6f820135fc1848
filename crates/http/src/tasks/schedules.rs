//! `ScheduleStore` over HTTP.
//!
//! The server computes the next tick from the schedule and its own clock, so the caller's `next_run_at` is not sent. Versions
//! are not sent either: the server changes a schedule against the version that it reads.

use std::time::Duration;

use http::Method;
use postrider_core::task::{NewSchedule, NewTask, Schedule, ScheduleStore, TaskId};
use postrider_core::{Deadline, MessagingError, Timestamp, async_trait};
use postrider_wire::schedule as wire;
use postrider_wire::session::Session;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::HttpTasks;
use super::operate::is_absent;
use crate::transport::Request;

fn path(name: &str, rest: &str) -> String {
    format!("/v1/schedules/{name}{rest}")
}

impl HttpTasks {
    /// Sends an idempotent request about a schedule; `None` if it does not exist.
    async fn call_schedule<T: DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        request: Request,
        deadline: Deadline,
    ) -> Result<Option<T>, MessagingError> {
        let transport = self.provider.transport().clone();
        let work = async move {
            match transport.try_call(request).await {
                Ok(answer) => Ok(Some(answer)),
                Err(failure) if is_absent(&failure) => Ok(None),
                Err(failure) => Err(failure.into_connection_error()),
            }
        };
        self.provider.carry_out(operation, Vec::new(), deadline, work).await
    }
}

/// Whether a schedule can have this name. Another name could change the path of the request.
fn is_valid_name(name: &str) -> bool {
    NewSchedule::check_name(name).is_ok()
}

#[async_trait]
impl ScheduleStore for HttpTasks {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        let session: Session = self.provider.call("store time", Request::get("/v1/session"), deadline).await?;
        Ok(session.now)
    }

    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        _next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError> {
        const PUT: &str = "put a schedule";
        self.provider.begin(PUT, deadline)?;
        schedule.check(self.shared.max_payload_bytes)?;
        let request = Request::json(Method::PUT, path(&schedule.name, ""), &wire::PutScheduleRequest::from(schedule))?;
        let answer: wire::Schedule = self.provider.call(PUT, request, deadline).await?;
        answer.try_into().map_err(self.provider.malformed_answer(PUT))
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        const GET: &str = "get a schedule";
        self.provider.begin(GET, deadline)?;
        if !is_valid_name(name) {
            return Ok(None);
        }
        let answer: Option<wire::Schedule> = self.call_schedule(GET, Request::get(path(name, "")), deadline).await?;
        answer.map(Schedule::try_from).transpose().map_err(self.provider.malformed_answer(GET))
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        const LIST: &str = "list schedules";
        let wire::Schedules { schedules } = self.provider.call(LIST, Request::get("/v1/schedules"), deadline).await?;
        schedules
            .into_iter()
            .map(Schedule::try_from)
            .collect::<Result<_, _>>()
            .map_err(self.provider.malformed_answer(LIST))
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        const DELETE: &str = "delete a schedule";
        self.provider.begin(DELETE, deadline)?;
        if !is_valid_name(name) {
            return Ok(false);
        }
        let (transport, request) = (self.provider.transport().clone(), Request::bare(Method::DELETE, path(name, "")));
        // Sent once: a repetition would find no schedule.
        let work = async move {
            match transport.call_once::<IgnoredAny>(request).await {
                Ok(IgnoredAny) => Ok(true),
                Err(failure) if is_absent(&failure) => Ok(false),
                Err(failure) => Err(failure.into_error(DELETE, Vec::new())),
            }
        };
        self.provider.carry_out(DELETE, Vec::new(), deadline, work).await
    }

    async fn set_schedule_paused(
        &self,
        name: &str,
        _version: i64,
        is_paused: bool,
        _next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError> {
        const PAUSE: &str = "pause a schedule";
        self.provider.begin(PAUSE, deadline)?;
        if !is_valid_name(name) {
            return Ok(false);
        }
        let request = Request::bare(Method::POST, path(name, if is_paused { "/pause" } else { "/resume" }));
        let answer: Option<IgnoredAny> = self.call_schedule(PAUSE, request, deadline).await?;
        Ok(answer.is_some())
    }

    async fn due_schedules(&self, _: usize, _: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        Err(self.kept_by_the_server("finds due schedules"))
    }

    async fn fire_schedule(
        &self,
        _: &str,
        _: i64,
        _: Vec<NewTask>,
        _: Option<Timestamp>,
        _: Option<Timestamp>,
        _: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError> {
        Err(self.kept_by_the_server("fires schedules"))
    }

    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError> {
        let schedules = self.list_schedules(deadline).await?;
        let running = schedules.into_iter().filter(|schedule| schedule.paused_at.is_none());
        let Some(next) = running.filter_map(|schedule| schedule.next_run_at).min() else { return Ok(None) };
        Ok(Some(next.since(self.store_time(deadline).await?)))
    }
}
