//! Fires schedules. Each time of a schedule creates its tasks once, whatever the number of processes: a fire names the
//! version of the schedule that was read, and sets its next run in the transaction that creates the tasks.

use std::time::Duration;

use postrider_core::task::{NewTask, Schedule, ScheduleStore};
use postrider_core::{Deadline, MessagingError, Timestamp};

use crate::delivered::is_lasting;
use crate::keeper::{Chore, Pause};
use crate::timing::Times;

/// Upper bound of schedules fired in one run.
const MAX_FIRED: usize = 100;

/// Pause while a due schedule cannot be read.
const RETRY: Duration = Duration::from_secs(1);

/// Fires schedules whose time has come.
#[derive(Debug)]
pub(crate) struct Fire<S> {
    pub(crate) store: S,
}

impl<S: ScheduleStore> Chore for Fire<S> {
    const NAME: &'static str = "fire schedules";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        let due = self.store.due_schedules(MAX_FIRED, Deadline::default()).await?;
        let mut failed = None;
        if !due.is_empty() {
            let now = self.store.store_time(Deadline::default()).await?;
            for schedule in &due {
                // A schedule that cannot be fired must not stop the others.
                failed = self.fire(schedule, now).await.err().or(failed);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if due.len() >= MAX_FIRED {
            return Ok(Pause::None);
        }
        Ok(match self.store.next_schedule_due(Deadline::default()).await? {
            // Due, but not among the schedules that were read: a newer program has written it.
            Some(Duration::ZERO) if due.is_empty() => Pause::For(RETRY),
            next => Pause::Until(next),
        })
    }
}

impl<S: ScheduleStore> Fire<S> {
    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<(), MessagingError> {
        let Some(next) = schedule.next_run_at else { return Ok(()) };
        let fired = match plan(schedule, next, now) {
            Ok((tasks, last, next)) => self.set_next(schedule, tasks, last, next).await,
            Err(error) => Err(error),
        };
        match fired {
            Err(error) if is_lasting(&error) => {
                // Its expression cannot be read, or its tasks are refused. Tried again in a minute.
                tracing::error!(schedule = %schedule.definition.name, %error, "the schedule cannot be fired");
                self.set_next(schedule, Vec::new(), None, Some(now.saturating_add(RETRY * 60))).await
            }
            fired => fired,
        }
    }

    async fn set_next(
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

/// The tasks of the due times, the last of these times, and the next one.
fn plan(schedule: &Schedule, next: Timestamp, now: Timestamp) -> Result<Planned, MessagingError> {
    let definition = &schedule.definition;
    let firing = Times::read(&definition.timing)?.fire(next, now, definition.missed);
    let tasks = firing.times.iter().map(|time| {
        // A second guard beside the version: the same time of the same schedule gives one task. The task is scheduled
        // at its due time, also when it is made up for.
        let key = format!("schedule/{}/{time}", definition.name);
        definition.task.task(&definition.name)?.scheduled_at(*time).idempotency_key(key)
    });
    Ok((tasks.collect::<Result<_, _>>()?, firing.last, firing.next))
}
