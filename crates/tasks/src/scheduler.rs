//! What fires schedules. However many processes run, each time of a schedule makes its tasks once: who fires names the
//! version of the schedule that it has seen, and moving it on is part of the transaction that makes the tasks.

use std::time::Duration;

use postrider_core::task::{NewTask, Schedule, ScheduleStore};
use postrider_core::{Deadline, MessagingError, Timestamp};

use crate::keeper::{Rest, Round};
use crate::timing::Times;

/// So many schedules are fired in one round.
const MOST_FIRED: usize = 100;

/// Fires schedules whose time has come.
#[derive(Debug)]
pub(crate) struct Fire<S> {
    pub(crate) store: S,
}

impl<S: ScheduleStore> Round for Fire<S> {
    const NAME: &'static str = "fire schedules";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        let due = self.store.due_schedules(MOST_FIRED, Deadline::default()).await?;
        let is_full = due.len() >= MOST_FIRED;
        if !due.is_empty() {
            let now = self.store.store_time(Deadline::default()).await?;
            for schedule in &due {
                self.fire(schedule, now).await?;
            }
        }
        if is_full {
            return Ok(Rest::None);
        }
        Ok(Rest::Until(self.store.next_schedule_due(Deadline::default()).await?))
    }
}

impl<S: ScheduleStore> Fire<S> {
    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<(), MessagingError> {
        let definition = &schedule.definition;
        let Some(next) = schedule.next_run_at else { return Ok(()) };
        let (tasks, last, next) = match plan(schedule, next, now) {
            Ok(planned) => planned,
            Err(error) => {
                // Written by a program that reads expressions which this one does not. Looked at again in a minute, and
                // the other schedules go on meanwhile.
                tracing::error!(schedule = %definition.name, %error, "the schedule cannot be read");
                (Vec::new(), None, Some(now.saturating_add(Duration::from_secs(60))))
            }
        };
        let fired = self
            .store
            .fire_schedule(&definition.name, schedule.version, tasks, last, next, Deadline::default())
            .await?;
        if let Some(made) = fired {
            tracing::debug!(schedule = %definition.name, tasks = made.len(), "fired");
        }
        Ok(())
    }
}

type Planned = (Vec<NewTask>, Option<Timestamp>, Option<Timestamp>);

/// The tasks of the times that have come, the last of these, and the next.
fn plan(schedule: &Schedule, next: Timestamp, now: Timestamp) -> Result<Planned, MessagingError> {
    let definition = &schedule.definition;
    let firing = Times::read(&definition.timing)?.fire(next, now, definition.missed);
    let tasks = firing.times.iter().map(|time| {
        // A second guard beside the version: the same time of the same schedule is one task.
        let key = format!("schedule/{}/{time}", definition.name);
        definition.task.task(&definition.name)?.idempotency_key(key)
    });
    Ok((tasks.collect::<Result<_, _>>()?, firing.last, firing.next))
}
