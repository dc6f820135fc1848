//! Times at which the server makes tasks.
//!
//! Which time comes next the server reckons by itself, from the schedule and its own clock; what a caller has reckoned is
//! not told. For the same reason versions are not told: the server changes a schedule against the version that it sees.

use std::time::Duration;

use http::Method;
use postrider_core::task::{NewSchedule, NewTask, Schedule, ScheduleStore, TaskId};
use postrider_core::{Deadline, MessagingError, Timestamp, async_trait};
use postrider_wire::schedule as wire;
use postrider_wire::session::Session;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::HttpTasks;
use super::operate::is_absent;
use crate::transport::Ask;

fn path(name: &str, rest: &str) -> String {
    format!("/v1/schedules/{name}{rest}")
}

impl HttpTasks {
    /// Asks about a schedule; `None` when there is no such one.
    async fn ask_schedule<T: DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        ask: Ask,
        deadline: Deadline,
    ) -> Result<Option<T>, MessagingError> {
        let transport = self.provider.transport().clone();
        let work = async move {
            match transport.look_or_refuse(ask).await {
                Ok(answer) => Ok(Some(answer)),
                Err(undone) if is_absent(&undone) => Ok(None),
                Err(undone) => Err(undone.into_harmless()),
            }
        };
        self.provider.carry_out(operation, Vec::new(), deadline, work).await
    }
}

/// A name that no schedule can have would make another path of it.
fn is_name(name: &str) -> bool {
    NewSchedule::check_name(name).is_ok()
}

#[async_trait]
impl ScheduleStore for HttpTasks {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        let session: Session = self.provider.look("store time", Ask::get("/v1/session"), deadline).await?;
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
        let ask = Ask::json(Method::PUT, path(&schedule.name, ""), &wire::PutScheduleRequest::from(schedule))?;
        let answer: wire::Schedule = self.provider.look(PUT, ask, deadline).await?;
        answer.try_into().map_err(self.provider.garbled(PUT))
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        const GET: &str = "get a schedule";
        self.provider.begin(GET, deadline)?;
        if !is_name(name) {
            return Ok(None);
        }
        let answer: Option<wire::Schedule> = self.ask_schedule(GET, Ask::get(path(name, "")), deadline).await?;
        answer.map(Schedule::try_from).transpose().map_err(self.provider.garbled(GET))
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        const LIST: &str = "list schedules";
        let wire::Schedules { schedules } = self.provider.look(LIST, Ask::get("/v1/schedules"), deadline).await?;
        schedules.into_iter().map(Schedule::try_from).collect::<Result<_, _>>().map_err(self.provider.garbled(LIST))
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        const DELETE: &str = "delete a schedule";
        self.provider.begin(DELETE, deadline)?;
        if !is_name(name) {
            return Ok(false);
        }
        let (transport, ask) = (self.provider.transport().clone(), Ask::bare(Method::DELETE, path(name, "")));
        // Asked once: a second time would find nothing, and say that there was nothing.
        let work = async move {
            match transport.change::<IgnoredAny>(ask).await {
                Ok(IgnoredAny) => Ok(true),
                Err(undone) if is_absent(&undone) => Ok(false),
                Err(undone) => Err(undone.into_error(DELETE, Vec::new())),
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
        if !is_name(name) {
            return Ok(false);
        }
        let ask = Ask::bare(Method::POST, path(name, if is_paused { "/pause" } else { "/resume" }));
        let answer: Option<IgnoredAny> = self.ask_schedule(PAUSE, ask, deadline).await?;
        Ok(answer.is_some())
    }

    async fn due_schedules(&self, _: usize, _: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        Err(self.kept_by_the_server("looks for due schedules"))
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
