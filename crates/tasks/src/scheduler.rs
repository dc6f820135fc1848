//! What fires schedules. However many processes run, each time of a schedule makes its tasks once: who fires names the
//! version of the schedule that it has seen, and moving it on is part of the transaction that makes the tasks.

use std::time::Duration;

use postrider_core::task::{NewTask, Schedule, ScheduleStore};
use postrider_core::{Deadline, MessagingError, Timestamp};

use crate::delivered::is_lasting;
use crate::keeper::{Rest, Round};
use crate::timing::Times;

/// So many schedules are fired in one round.
const MOST_FIRED: usize = 100;

/// How long to wait for what cannot be seen to now.
const AGAIN: Duration = Duration::from_secs(1);

/// Fires schedules whose time has come.
#[derive(Debug)]
pub(crate) struct Fire<S> {
    pub(crate) store: S,
}

impl<S: ScheduleStore> Round for Fire<S> {
    const NAME: &'static str = "fire schedules";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        let due = self.store.due_schedules(MOST_FIRED, Deadline::default()).await?;
        let mut failed = None;
        if !due.is_empty() {
            let now = self.store.store_time(Deadline::default()).await?;
            for schedule in &due {
                // One that cannot be fired holds no other up.
                failed = self.fire(schedule, now).await.err().or(failed);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if due.len() >= MOST_FIRED {
            return Ok(Rest::None);
        }
        Ok(match self.store.next_schedule_due(Deadline::default()).await? {
            // Due, and yet not among those that were brought: it was written by a program that this one cannot read.
            Some(Duration::ZERO) if due.is_empty() => Rest::For(AGAIN),
            next => Rest::Until(next),
        })
    }
}

impl<S: ScheduleStore> Fire<S> {
    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<(), MessagingError> {
        let Some(next) = schedule.next_run_at else { return Ok(()) };
        let fired = match plan(schedule, next, now) {
            Ok((tasks, last, next)) => self.move_on(schedule, tasks, last, next).await,
            Err(error) => Err(error),
        };
        match fired {
            Err(error) if is_lasting(&error) => {
                // Its expression cannot be read, or its tasks are refused. Looked at again in a minute.
                tracing::error!(schedule = %schedule.definition.name, %error, "the schedule cannot be fired");
                self.move_on(schedule, Vec::new(), None, Some(now.saturating_add(AGAIN * 60))).await
            }
            fired => fired,
        }
    }

    async fn move_on(
        &self,
        schedule: &Schedule,
        tasks: Vec<NewTask>,
        last: Option<Timestamp>,
        next: Option<Timestamp>,
    ) -> Result<(), MessagingError> {
        let (name, version) = (&schedule.definition.name, schedule.version);
        if let Some(made) = self.store.fire_schedule(name, version, tasks, last, next, Deadline::default()).await? {
            tracing::debug!(schedule = %name, tasks = made.len(), "fired");
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
        // A second guard beside the version: the same time of the same schedule is one task. The time that it is for is
        // the time that it was due, also when it is made up for.
        let key = format!("schedule/{}/{time}", definition.name);
        definition.task.task(&definition.name)?.scheduled_at(*time).idempotency_key(key)
    });
    Ok((tasks.collect::<Result<_, _>>()?, firing.last, firing.next))
}
