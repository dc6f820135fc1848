//! The times of a schedule. Pure functions: the current time is an argument.

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use postrider_core::task::{MissedFire, Schedule, ScheduleTiming};
use postrider_core::{MessagingError, Timestamp};

/// Upper bound of tasks created at once for missed times; the rest follows in the next run.
const MAX_MISSED: usize = 1000;

/// A time at which a schedule will fire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextRun {
    /// The time.
    pub at: Timestamp,
    /// The same in the schedule's time zone: `Fri 20 Nov 2026 09:00 Europe/Berlin`.
    pub local: String,
}

/// The next times at which a schedule fires, at most `count`; none while it is paused.
pub fn next_runs(schedule: &Schedule, count: usize) -> Vec<NextRun> {
    let Some(first) = schedule.next_run_at.filter(|_| schedule.paused_at.is_none()) else { return Vec::new() };
    let timing = &schedule.definition.timing;
    let zone = match Times::read(timing) {
        Ok(Times::Cron { zone, .. }) => zone,
        Ok(Times::Every(_)) | Err(_) => TimeZone::UTC,
    };
    // A schedule of a newer program may be unreadable here; then only its next time is known.
    let times = next_times(timing, Some(first), count).unwrap_or_else(|_| vec![first]);
    times.into_iter().map(|at| NextRun { at, local: local(at, &zone) }).collect()
}

/// The next `count` times of a schedule, from `first` on, or from now on without it.
pub fn next_times(
    timing: &ScheduleTiming,
    first: Option<Timestamp>,
    count: usize,
) -> Result<Vec<Timestamp>, MessagingError> {
    let times = Times::read(timing)?;
    let first = first.or_else(|| times.after(Timestamp::now()));
    Ok(std::iter::successors(first, |time| times.after(*time)).take(count).collect())
}

/// The times of a schedule in words: `At 09:00, Monday through Friday.`; `None` for an interval, which is words
/// already.
pub fn in_words(timing: &ScheduleTiming) -> Option<String> {
    match Times::read(timing).ok()? {
        Times::Cron { cron, .. } => Some(cron.describe()),
        Times::Every(_) => None,
    }
}

fn local(time: Timestamp, zone: &TimeZone) -> String {
    let Ok(time_there) = jiff::Timestamp::from_microsecond(time.as_micros()) else { return time.to_string() };
    let time_there = time_there.to_zoned(zone.clone());
    let format = if time_there.second() == 0 { "%a %-d %b %Y %H:%M %Q" } else { "%a %-d %b %Y %H:%M:%S %Q" };
    time_there.strftime(format).to_string()
}

/// The parsed times of a schedule.
#[derive(Debug, Clone)]
pub(crate) enum Times {
    Cron { cron: Box<Cron>, zone: TimeZone },
    Every(std::time::Duration),
}

impl Times {
    /// Parses a timing.
    pub(crate) fn read(timing: &ScheduleTiming) -> Result<Self, MessagingError> {
        match timing {
            ScheduleTiming::Every(interval) => Ok(Self::Every(*interval)),
            ScheduleTiming::Cron { expression, time_zone } => {
                let cron = CronParser::builder().seconds(Seconds::Optional).build().parse(expression);
                let cron = cron.map_err(|error| {
                    let why = error.to_string();
                    let why = why.trim_start_matches("Component error: ").trim_end_matches('.');
                    let why = format!(
                        "'{}' cannot be read ({why}); write five fields (minute hour day month weekday), or six with \
                         seconds first",
                        expression.escape_debug()
                    );
                    MessagingError::invalid("cron expression", why)
                })?;
                let zone = TimeZone::get(time_zone).map_err(|_| {
                    let why = format!(
                        "'{}' is not known; use a name of the IANA database like Europe/Berlin, or UTC",
                        time_zone.escape_debug()
                    );
                    MessagingError::invalid("time zone", why)
                })?;
                Ok(Self::Cron { cron: Box::new(cron), zone })
            }
        }
    }

    /// The first time after this one; `None` if there is none.
    pub(crate) fn after(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => Some(time.saturating_add(*interval)),
            Self::Cron { cron, zone } => {
                let time = jiff::Timestamp::from_microsecond(time.as_micros()).ok()?;
                let next = cron.find_next_occurrence(&time.to_zoned(zone.clone()), false).ok()?;
                Some(Timestamp::from_micros(next.timestamp().as_microsecond()))
            }
        }
    }

    /// The last time up to `now` of a schedule that is due at `next`. Computed without a step for each time between the
    /// two, which would be millions after a long absence.
    fn last_by(&self, next: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => {
                let step = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX).max(1);
                let behind = now.as_micros().saturating_sub(next.as_micros());
                Some(Timestamp::from_micros(next.as_micros() + behind / step * step))
            }
            Self::Cron { cron, zone } => {
                let now = jiff::Timestamp::from_microsecond(now.as_micros()).ok()?;
                let last = cron.find_previous_occurrence(&now.to_zoned(zone.clone()), true).ok()?;
                Some(Timestamp::from_micros(last.timestamp().as_microsecond()).max(next))
            }
        }
    }

    /// The times to fire now for a schedule that is due at `next`.
    pub(crate) fn fire(&self, next: Timestamp, now: Timestamp, missed: MissedFire) -> Firing {
        let mut firing = Firing { times: Vec::new(), next: Some(next), last: None };
        if next > now {
            return firing;
        }
        if missed == MissedFire::All {
            while let Some(time) = firing.next.filter(|time| *time <= now)
                && firing.times.len() < MAX_MISSED
            {
                firing.times.push(time);
                firing.next = self.after(time);
            }
            firing.last = firing.times.last().copied();
            return firing;
        }
        let last = self.last_by(next, now).unwrap_or(next);
        if missed == MissedFire::One || now.since(last) <= MAX_LATE {
            firing.times.push(last);
        }
        Firing { next: self.after(last), last: Some(last), ..firing }
    }
}

/// Delay up to which a time does not count as missed, because a keeper may restart or a store be busy. `docs/tasks.md`
/// and the texts of [`MissedFire::Skip`] name it.
const MAX_LATE: std::time::Duration = std::time::Duration::from_secs(15);

/// The result of firing a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Firing {
    /// The times to create a task for.
    pub(crate) times: Vec<Timestamp>,
    /// The next time.
    pub(crate) next: Option<Timestamp>,
    /// The last time that was handled.
    pub(crate) last: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::TaskType;
    use postrider_core::task::NewSchedule;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron(expression: &str, zone: &str) -> Times {
        let timing = ScheduleTiming::Cron { expression: expression.into(), time_zone: zone.into() };
        Times::read(&timing).unwrap()
    }

    fn next(times: &Times, from: &str, count: usize) -> Vec<String> {
        let mut time = at(from);
        (0..count)
            .map(|_| {
                time = times.after(time).unwrap();
                time.to_string()
            })
            .collect()
    }

    #[test]
    fn cron_is_read_in_its_time_zone() {
        let daily = cron("30 9 * * *", "Europe/Berlin");
        // Summer time ends on the 25th: the same local time is an hour later in UTC.
        assert_eq!(
            next(&daily, "2026-10-24T00:00:00Z", 3),
            ["2026-10-24T07:30:00Z", "2026-10-25T08:30:00Z", "2026-10-26T08:30:00Z"]
        );
        assert_eq!(
            next(&cron("*/20 * * * * *", "UTC"), "2026-01-01T00:00:00Z", 2),
            ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]
        );
    }

    fn schedule(timing: ScheduleTiming, next: &str) -> Schedule {
        let template = postrider_core::task::TaskTemplate::new(TaskType::new("report").unwrap(), "{}");
        Schedule {
            definition: NewSchedule { name: "nightly".into(), timing, task: template, missed: MissedFire::One },
            created_at: at("2026-01-01T00:00:00Z"),
            paused_at: None,
            next_run_at: Some(at(next)),
            last_run_at: None,
            last_task: None,
            version: 1,
        }
    }

    #[test]
    fn the_next_runs_are_shown_in_their_time_zone() {
        let timing = ScheduleTiming::Cron { expression: "30 9 * * *".into(), time_zone: "Europe/Berlin".into() };
        assert!(in_words(&timing).unwrap().contains("09:30"), "{:?}", in_words(&timing));
        let mut daily = schedule(timing, "2026-10-24T07:30:00Z");
        let runs = next_runs(&daily, 2);
        assert_eq!((runs[0].at, &*runs[0].local), (at("2026-10-24T07:30:00Z"), "Sat 24 Oct 2026 09:30 Europe/Berlin"));
        assert_eq!((runs[1].at, &*runs[1].local), (at("2026-10-25T08:30:00Z"), "Sun 25 Oct 2026 09:30 Europe/Berlin"));
        daily.paused_at = Some(at("2026-10-23T00:00:00Z"));
        assert_eq!(next_runs(&daily, 5), []);
        let every = ScheduleTiming::Every(Duration::from_secs(30));
        assert_eq!(in_words(&every), None);
        let runs = next_runs(&schedule(every, "2026-10-24T07:30:15Z"), 5);
        assert_eq!((runs.len(), &*runs[4].local), (5, "Sat 24 Oct 2026 07:32:15 UTC"));
    }

    #[test]
    fn a_time_that_does_not_exist_or_exists_twice_fires_once() {
        let gap = cron("30 2 * * *", "Europe/Berlin");
        let days = next(&gap, "2026-03-28T00:00:00Z", 3);
        assert_eq!((&*days[0], &*days[2]), ("2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"), "{days:?}");
        assert!(days[1].starts_with("2026-03-29T01:"), "{days:?}");
        let twice = cron("30 2 * * *", "Europe/Berlin");
        let days = next(&twice, "2026-10-24T12:00:00Z", 2);
        assert!(days[0].starts_with("2026-10-25T0") && days[1] == "2026-10-26T01:30:00Z", "{days:?}");
    }

    #[test]
    fn the_next_times_begin_with_the_one_that_is_due() {
        let timing = ScheduleTiming::Cron { expression: "0 9 * * mon".into(), time_zone: "Europe/Berlin".into() };
        let due = at("2026-11-23T08:00:00Z");
        let found: Vec<_> = next_times(&timing, Some(due), 3).unwrap().iter().map(Timestamp::to_string).collect();
        assert_eq!(found, ["2026-11-23T08:00:00Z", "2026-11-30T08:00:00Z", "2026-12-07T08:00:00Z"]);
        let every = ScheduleTiming::Every(Duration::from_secs(60));
        assert_eq!(next_times(&every, None, 2).unwrap().len(), 2);
    }

    #[test]
    fn invalid_expressions_and_time_zones_are_refused() {
        for (expression, zone) in [("* * *", "UTC"), ("61 * * * *", "UTC"), ("", "UTC"), ("* * * * *", "Mars/Olympus")]
        {
            let timing = ScheduleTiming::Cron { expression: expression.into(), time_zone: zone.into() };
            assert!(matches!(Times::read(&timing), Err(MessagingError::InvalidInput { .. })), "{expression} {zone}");
        }
    }

    #[test]
    fn missed_times_are_skipped_made_up_for_once_or_each() {
        let hourly = cron("0 * * * *", "UTC");
        let (due, now) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T04:00:05Z"));
        let fire = |missed| hourly.fire(due, now, missed);
        let all: Vec<Timestamp> = (1..=4).map(|hour| at(&format!("2026-01-01T0{hour}:00:00Z"))).collect();
        assert_eq!(fire(MissedFire::All).times, all);
        assert_eq!(fire(MissedFire::One).times, all[3..]);
        assert_eq!(fire(MissedFire::Skip).times, all[3..], "the time that is due now is not missed");
        for missed in MissedFire::ALL {
            assert_eq!(fire(missed).next, Some(at("2026-01-01T05:00:00Z")));
            assert_eq!(fire(missed).last, Some(all[3]));
        }
        let late = hourly.fire(due, at("2026-01-01T04:30:00Z"), MissedFire::Skip);
        assert_eq!((late.times.len(), late.next), (0, Some(at("2026-01-01T05:00:00Z"))));
        let now = |micros| at("2026-01-01T04:00:15Z").saturating_add(Duration::from_micros(micros));
        assert_eq!(hourly.fire(due, now(0), MissedFire::Skip).times, all[3..], "late by as much as is allowed");
        let missed = hourly.fire(due, now(1), MissedFire::Skip);
        assert_eq!((missed.times.len(), missed.last), (0, Some(all[3])), "and by a microsecond more");
        let early = hourly.fire(due, at("2026-01-01T00:59:59Z"), MissedFire::All);
        assert_eq!(early, Firing { times: vec![], next: Some(due), last: None });
    }

    #[test]
    fn an_interval_keeps_its_phase_over_a_long_absence() {
        let every = Times::read(&ScheduleTiming::Every(Duration::from_secs(1))).unwrap();
        let (due, now) = (at("2026-01-01T00:00:00Z"), at("2036-01-01T00:00:00.5Z"));
        let fired = every.fire(due, now, MissedFire::One);
        assert_eq!(fired.times, [at("2036-01-01T00:00:00Z")]);
        assert_eq!(fired.next, Some(at("2036-01-01T00:00:01Z")));
        let all = every.fire(due, now, MissedFire::All);
        assert_eq!(all.times.len(), MAX_MISSED);
        assert_eq!(all.next, Some(due.saturating_add(Duration::from_secs(MAX_MISSED as u64))));
        assert_eq!(all.last, all.times.last().copied());
    }
}
