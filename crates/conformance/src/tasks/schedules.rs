//! Times at which tasks are made.

use std::time::Duration;

use futures_util::future::try_join_all;
use postrider_core::task::{
    MissedFire, NewSchedule, NewTask, Schedule, ScheduleStore, ScheduleTiming, TaskFilter, TaskId, TaskState,
    TaskTemplate, TaskType,
};
use postrider_core::{Priority, RetryStrategy, Timestamp};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, MANY, MINUTE};
use super::steps::{Between, ensure_left, ensure_refused, info, list_all, sorted};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

fn hourly(name: &str, task_type: &TaskType) -> NewSchedule {
    NewSchedule {
        name: name.to_owned(),
        timing: ScheduleTiming::Every(HOUR),
        task: TaskTemplate::new(task_type.clone(), "{}"),
        missed: MissedFire::One,
    }
}

async fn now<S: ScheduleStore>(store: &S) -> Result<Timestamp, Stop> {
    Ok(store.store_time(soon()).await?)
}

async fn read<S: ScheduleStore>(store: &S, name: &str) -> Result<Schedule, Stop> {
    match store.get_schedule(name, soon()).await? {
        Some(schedule) => Ok(schedule),
        None => violation(format!("schedule {name} cannot be read")),
    }
}

/// The names of the test's due schedules, in order.
async fn due<S: ScheduleStore>(store: &S, own: &[&str]) -> Result<Vec<String>, Stop> {
    let due = store.due_schedules(MANY, soon()).await?;
    Ok(due.into_iter().map(|it| it.definition.name).filter(|name| own.contains(&name.as_str())).collect())
}

pub(super) async fn a_schedule_is_read_back_as_it_was_put<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("put")?);
    let name = fixture.schedule_name("whole");
    let mut definition = NewSchedule {
        name: name.clone(),
        timing: ScheduleTiming::Cron { expression: "0 3 * * 1-5".to_owned(), time_zone: "Europe/Berlin".to_owned() },
        task: TaskTemplate {
            max_attempts: std::num::NonZeroU32::new(4),
            priority: Priority::new(8)?,
            ordering_key: Some("nightly ä".to_owned()),
            retry_strategy: Some(RetryStrategy::constant(Duration::from_millis(1500))),
            deadline: Some(HOUR),
            tags: vec!["it's".to_owned()],
            ..TaskTemplate::new(task_type.clone(), r#"{"report": "ä"}"#)
        },
        missed: MissedFire::All,
    };
    ensure_same("an unknown schedule", store.get_schedule(&name, soon()).await?, None)?;
    let next = now(&store).await?.saturating_add(HOUR);
    let mut putting = Between::begin(&store).await?;
    let put = store.put_schedule(&definition, Some(next), soon()).await?;
    ensure_same("what was put", &put.definition, &definition)?;
    putting.ensure(&store, "created_at", Some(put.created_at), Duration::ZERO).await?;
    ensure_same("next_run_at", put.next_run_at, Some(next))?;
    let unused = (put.paused_at, put.last_run_at, put.last_task);
    ensure_same("what has not happened", unused, (None, None, None))?;
    ensure_same("the schedule, as another reads it,", &read(&other, &name).await?, &put)?;

    fixture.elapse(MINUTE).await;
    definition.timing = ScheduleTiming::Every(HOUR);
    let changed = other.put_schedule(&definition, None, soon()).await?;
    ensure_same("the changed schedule", &read(&store, &name).await?, &changed)?;
    ensure_same("its timing", &changed.definition, &definition)?;
    ensure_same("its next time", changed.next_run_at, None)?;
    ensure_same("when it was made", changed.created_at, put.created_at)?;
    ensure(changed.version > put.version, || format!("its version is {}, not above {}", changed.version, put.version))?;
    let refused = store.put_schedule(&NewSchedule { name: "two words".to_owned(), ..definition }, None, soon()).await;
    ensure_refused("a name with a space", &refused)
}

pub(super) async fn schedules_are_listed_by_name_and_deleted<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("listed")?);
    let names = ["c", "a", "b"].map(|tag| fixture.schedule_name(tag));
    for name in &names {
        store.put_schedule(&hourly(name, &task_type), None, soon()).await?;
    }
    let listed = store.list_schedules(soon()).await?.into_iter().map(|it| it.definition.name);
    let own: Vec<String> = listed.filter(|name| names.contains(name)).collect();
    ensure_same("the schedules", own, sorted(names.clone()))?;
    ensure_same("the deletion", store.delete_schedule(&names[0], soon()).await?, true)?;
    ensure_same("a second deletion", store.delete_schedule(&names[0], soon()).await?, false)?;
    ensure_same("a deleted schedule", store.get_schedule(&names[0], soon()).await?, None)?;
    let left = store.list_schedules(soon()).await?.into_iter().filter(|it| names.contains(&it.definition.name)).count();
    ensure_same("the number of schedules that are left", left, 2)
}

pub(super) async fn a_schedule_is_due_at_its_time_and_not_while_it_is_paused<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("due")?);
    let names = ["late", "soon", "never", "paused"].map(|tag| fixture.schedule_name(tag));
    let own = names.each_ref().map(String::as_str);
    let begin = now(&store).await?;
    for (name, next) in own.iter().zip([Some(HOUR), Some(MINUTE), None, Some(MINUTE)]) {
        let next = next.map(|time| begin.saturating_add(time));
        store.put_schedule(&hourly(name, &task_type), next, soon()).await?;
    }
    let paused = read(&store, own[3]).await?;
    let was_paused = store.set_schedule_paused(own[3], paused.version, true, paused.next_run_at, soon()).await?;
    ensure_same("the pause", was_paused, true)?;
    ensure_same("what is due at the beginning", due(&store, &own).await?, Vec::<String>::new())?;
    ensure_left("the time until one is due", store.next_schedule_due(soon()).await?, MINUTE)?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("what is due after a minute", due(&store, &own).await?, vec![own[1].to_owned()])?;
    ensure_same("the time until one is due", store.next_schedule_due(soon()).await?, Some(Duration::ZERO))?;
    fixture.elapse(HOUR).await;
    let both = vec![own[1].to_owned(), own[0].to_owned()];
    ensure_same("what is due after an hour, the longest first,", due(&store, &own).await?, both)?;
    ensure_same("the number of due schedules, with a limit of one,", store.due_schedules(1, soon()).await?.len(), 1)?;
    for name in [own[0], own[1]] {
        store.delete_schedule(name, soon()).await?;
    }
    ensure_same("what is due after all were deleted or paused", due(&store, &own).await?, Vec::<String>::new())?;
    ensure_same("the time until one is due then", store.next_schedule_due(soon()).await?, None)
}

pub(super) async fn a_schedule_is_paused_and_resumed_by_its_version<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type, name) = (fixture.open().await?, fixture.task_type("paused")?, fixture.schedule_name("held"));
    let next = Some(now(&store).await?);
    let first = store.put_schedule(&hourly(&name, &task_type), next, soon()).await?;
    let refused = store.set_schedule_paused(&name, first.version + 7, true, next, soon()).await?;
    ensure_same("a pause by another version", refused, false)?;
    ensure_same("the schedule after it", &read(&store, &name).await?, &first)?;
    let unknown = fixture.schedule_name("unknown");
    let refused = store.set_schedule_paused(&unknown, 1, true, next, soon()).await?;
    ensure_same("a pause of an unknown schedule", refused, false)?;

    let mut pausing = Between::begin(&store).await?;
    ensure_same("the pause", store.set_schedule_paused(&name, first.version, true, next, soon()).await?, true)?;
    let paused = read(&store, &name).await?;
    pausing.ensure(&store, "paused_at", paused.paused_at, Duration::ZERO).await?;
    ensure(paused.version > first.version, || "a pause leaves the version as it was".into())?;
    ensure_same("what is due while it is paused", due(&store, &[&name]).await?, Vec::<String>::new())?;
    let fired = fire(&store, &name, paused.version, &task_type, None).await?;
    ensure_same("a firing while it is paused", fired, None)?;
    // A change of it does not let it go on.
    let changed = store.put_schedule(&hourly(&name, &task_type), next, soon()).await?;
    ensure(changed.paused_at.is_some(), || "a change of a paused schedule lets it go on".into())?;

    let later = Some(now(&store).await?.saturating_add(MINUTE));
    let refused = store.set_schedule_paused(&name, paused.version, false, later, soon()).await?;
    ensure_same("a resumption by an old version", refused, false)?;
    ensure_same(
        "the resumption",
        store.set_schedule_paused(&name, changed.version, false, later, soon()).await?,
        true,
    )?;
    let resumed = read(&store, &name).await?;
    ensure_same("the schedule", (resumed.paused_at, resumed.next_run_at), (None, later))?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("what is due when it goes on", due(&store, &[&name]).await?, vec![name])
}

async fn fire<S: ScheduleStore>(
    store: &S,
    name: &str,
    version: i64,
    task_type: &TaskType,
    next_run_at: Option<Timestamp>,
) -> Result<Option<Vec<TaskId>>, Stop> {
    let mut task = NewTask::of(task_type.clone(), "{}");
    task.schedule = Some(name.to_owned());
    let last_run_at = Some(now(store).await?);
    Ok(store.fire_schedule(name, version, vec![task], last_run_at, next_run_at, soon()).await?)
}

pub(super) async fn a_schedule_that_fires_makes_its_tasks_and_moves_on<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type, name) = (fixture.open().await?, fixture.task_type("fired")?, fixture.schedule_name("fires"));
    let first_time = now(&store).await?;
    let mut definition = hourly(&name, &task_type);
    definition.task.ordering_key = Some("one at a time".to_owned());
    let put = store.put_schedule(&definition, Some(first_time), soon()).await?;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(put.definition.task.task(&name)?);
    }
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let next = first_time.saturating_add(HOUR);
    let fired = store.fire_schedule(&name, put.version, tasks, Some(first_time), Some(next), soon()).await?;
    ensure_same("the tasks that were made", fired, Some(ids.clone()))?;
    for id in &ids {
        let seen = info(&store, *id).await?;
        ensure_same("the state", seen.state, TaskState::Pending)?;
        ensure_same("the schedule of a task", seen.schedule.as_deref(), Some(name.as_str()))?;
        ensure_same("whether it waits for another of its key", seen.is_blocked, *id != ids[0])?;
    }
    let seen = read(&store, &name).await?;
    ensure_same("last_run_at", seen.last_run_at, Some(first_time))?;
    ensure_same("next_run_at", seen.next_run_at, Some(next))?;
    ensure_same("the last task", seen.last_task, ids.last().copied())?;
    ensure(seen.version > put.version, || "a firing leaves the version as it was".into())?;
    ensure_same("what is due after that", due(&store, &[&name]).await?, Vec::<String>::new())?;

    // All of its times were skipped: it moves on, and what it did last stays.
    let skipped = store.fire_schedule(&name, seen.version, Vec::new(), None, None, soon()).await?;
    ensure_same("the tasks of skipped times", skipped, Some(Vec::new()))?;
    let after = read(&store, &name).await?;
    let expected = (Some(first_time), seen.last_task, None);
    ensure_same("the schedule", (after.last_run_at, after.last_task, after.next_run_at), expected)?;
    let unknown = fixture.schedule_name("unknown");
    ensure_same("a firing of an unknown schedule", fire(&store, &unknown, 1, &task_type, None).await?, None)
}

pub(super) async fn a_schedule_fires_once_for_a_version<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("race")?);
    let name = fixture.schedule_name("race");
    let store = &stores[0];
    let mut put = store.put_schedule(&hourly(&name, &task_type), Some(now(store).await?), soon()).await?;
    for round in 1..=3 {
        let firers = (0..16).map(|firer| {
            let next = put.next_run_at.map(|time| time.saturating_add(HOUR));
            fire(&stores[firer % 4], &name, put.version, &task_type, next)
        });
        let fired = try_join_all(firers).await?;
        ensure_same("the number of firers that fired", fired.iter().flatten().count(), 1)?;
        let filter = TaskFilter { schedule: Some(name.clone()), ..TaskFilter::default() };
        let made = list_all(store, &filter).await?.len();
        ensure_same("the number of tasks that were made", made, round)?;
        put = read(store, &name).await?;
    }
    let old = put.version;
    let changed = store.put_schedule(&hourly(&name, &task_type), put.next_run_at, soon()).await?;
    ensure_same("a firing of what has changed", fire(store, &name, old, &task_type, None).await?, None)?;
    let after = read(store, &name).await?;
    ensure_same("the schedule after it", &after, &changed)?;
    // One of the same name that was made anew is another.
    store.delete_schedule(&name, soon()).await?;
    fixture.harness.elapse(Duration::from_millis(1)).await;
    let anew = store.put_schedule(&hourly(&name, &task_type), changed.next_run_at, soon()).await?;
    for old in [changed.version, old, put.version] {
        ensure_same("a firing of what was deleted", fire(store, &name, old, &task_type, None).await?, None)?;
    }
    ensure_same("the schedule that was made anew", read(store, &name).await?, anew)
}
