//! Schedules: each of their times creates its task once, whatever the number of keepers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{
    MissedFire, NewSchedule, ScheduleStore, ScheduleTiming, TaskFilter, TaskQuery, TaskTemplate, TaskType,
};
use postrider_core::{Clock, ManualClock, MessagingError, Timestamp};
use postrider_sqlite::SqliteOptions;
use postrider_tasks::Shutdown;

use crate::fixture::{Fixture, Route, System, start_keeper};
use crate::{TIME_LIMIT, soon, until};

fn schedule(timing: ScheduleTiming) -> NewSchedule {
    let task = TaskTemplate::new(TaskType::new("tick").unwrap(), "{}");
    NewSchedule { name: "nightly".into(), timing, task, missed: MissedFire::One }
}

fn every(interval: Duration) -> NewSchedule {
    schedule(ScheduleTiming::Every(interval))
}

async fn made(system: &System) -> Vec<postrider_core::task::TaskInfo> {
    let filter = TaskFilter { schedule: Some("nightly".into()), ..TaskFilter::default() };
    let query = TaskQuery { filter, limit: 1000, after: None };
    system.client().list(&query, soon()).await.unwrap().tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keepers_create_one_task_for_each_time() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    // A keeper that is late by more than a second makes up for each of its times.
    let each = NewSchedule { missed: MissedFire::All, ..every(Duration::from_secs(1)) };
    let first = system.client().put_schedule(&each, soon()).await.unwrap();
    let first = first.next_run_at.unwrap();
    let shutdown = Shutdown::new();
    let mut keepers = Vec::new();
    for _ in 0..4 {
        keepers.push(start_keeper(&fixture.system().await, &shutdown));
    }
    until("two times have come", TIME_LIMIT, || async { made(&system).await.len() >= 2 }).await;
    let paused = system.client().pause_schedule("nightly", soon()).await.unwrap();
    assert!(paused.paused_at.is_some());
    let count = made(&system).await.len();
    let last = paused.last_run_at.unwrap();
    let times = last.since(first).as_secs() + 1;
    assert_eq!(count as u64, times, "a task for each second from {first} to {last}");
    let keys: HashSet<_> = made(&system).await.into_iter().map(|task| task.idempotency_key.unwrap()).collect();
    assert_eq!(keys.len(), count);
    let times: HashSet<_> = made(&system).await.into_iter().map(|task| task.scheduled_for.since(first)).collect();
    let expected: HashSet<_> = (0..times.len() as u64).map(Duration::from_secs).collect();
    assert_eq!(times, expected, "each task has its time");

    // Paused, it creates no tasks, and the times of the pause are not made up for.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(made(&system).await.len(), count);
    let triggered = system.client().trigger_schedule("nightly", soon()).await.unwrap();
    assert!(made(&system).await.iter().any(|task| task.id == triggered.id));
    let resumed = system.client().resume_schedule("nightly", soon()).await.unwrap();
    assert!(
        resumed.paused_at.is_none()
            && resumed.next_run_at.unwrap() > Timestamp::now().saturating_sub(Duration::from_secs(1))
    );
    until("it fires again", TIME_LIMIT, || async { made(&system).await.len() > count + 1 }).await;
    system.client().delete_schedule("nightly", soon()).await.unwrap();
    shutdown.request();
    for keeper in keepers {
        keeper.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_times_are_made_up_for_by_the_policy() {
    for (missed, least, most) in [(MissedFire::Skip, 0, 1), (MissedFire::One, 1, 2), (MissedFire::All, 60, 61)] {
        let fixture = Fixture::new(Route::Polling);
        let system = fixture.system().await;
        let hourly = NewSchedule {
            missed,
            ..schedule(ScheduleTiming::Cron { expression: "0 * * * *".into(), time_zone: "Europe/Berlin".into() })
        };
        system.client().put_schedule(&hourly, soon()).await.unwrap();
        // Its next run was sixty hours and a half ago.
        let since = Timestamp::now().saturating_sub(Duration::from_secs(60 * 3600 - 1));
        let store = system.client().store();
        let whole_hour = Timestamp::from_micros(since.as_micros() / 3_600_000_000 * 3_600_000_000);
        store.put_schedule(&hourly, Some(whole_hour), soon()).await.unwrap();
        let shutdown = Shutdown::new();
        let keeper = start_keeper(&system, &shutdown);
        until("it has moved on", TIME_LIMIT, || async {
            let schedule = system.client().get_schedule("nightly", soon()).await.unwrap();
            schedule.next_run_at.unwrap() > Timestamp::now()
        })
        .await;
        let count = made(&system).await.len();
        assert!((least..=most).contains(&count), "{missed}: {count}");
        shutdown.request();
        keeper.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_is_skipped_from_fifteen_seconds_on_by_the_clock_of_the_store() {
    let late = Duration::from_secs(15);
    for (seen, tasks) in [(late, 1), (late + Duration::from_micros(1), 0)] {
        let (fixture, clock) = (Fixture::new(Route::Polling), ManualClock::default());
        let system =
            fixture.system_with(SqliteOptions { clock: Arc::new(clock.clone()), ..SqliteOptions::default() }).await;
        let daily = NewSchedule { missed: MissedFire::Skip, ..every(Duration::from_secs(24 * 3600)) };
        let due = clock.now();
        system.client().store().put_schedule(&daily, Some(due), soon()).await.unwrap();
        clock.advance(seen);
        let shutdown = Shutdown::new();
        let keeper = start_keeper(&system, &shutdown);
        until("it has moved on", TIME_LIMIT, || async {
            let schedule = system.client().get_schedule("nightly", soon()).await.unwrap();
            schedule.next_run_at == Some(due.saturating_add(Duration::from_secs(24 * 3600)))
        })
        .await;
        let made = made(&system).await;
        assert_eq!(made.len(), tasks, "seen {seen:?} late");
        assert!(made.iter().all(|task| task.scheduled_for == due));
        shutdown.request();
        keeper.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_is_put_while_keepers_pause_fires_at_its_time() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let far = NewSchedule { name: "far".into(), ..every(Duration::from_secs(24 * 3600)) };
    system.client().put_schedule(&far, soon()).await.unwrap();
    let shutdown = Shutdown::new();
    let keeper = start_keeper(&system, &shutdown);
    // The keeper has read that nothing is due for a day.
    tokio::time::sleep(Duration::from_millis(300)).await;
    system.client().put_schedule(&every(Duration::from_secs(1)), soon()).await.unwrap();
    until("the near one has fired", Duration::from_secs(10), || async { !made(&system).await.is_empty() }).await;
    shutdown.request();
    keeper.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_cannot_be_fired_does_not_stop_the_others() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let store = system.client().store();
    let past = Timestamp::now().saturating_sub(Duration::from_secs(60));
    // As another program may have written it: the longest due, with an unknown time zone.
    let zone = ScheduleTiming::Cron { expression: "* * * * *".into(), time_zone: "Mars/Olympus".into() };
    let odd = NewSchedule { name: "odd".into(), ..schedule(zone) };
    store.put_schedule(&odd, Some(past.saturating_sub(Duration::from_secs(60))), soon()).await.unwrap();
    store.put_schedule(&every(Duration::from_secs(3600)), Some(past), soon()).await.unwrap();
    let shutdown = Shutdown::new();
    let keeper = start_keeper(&system, &shutdown);
    until("the other has fired", TIME_LIMIT, || async { made(&system).await.len() == 1 }).await;
    shutdown.request();
    keeper.await.unwrap();
    let odd = system.client().get_schedule("odd", soon()).await.unwrap();
    assert!(odd.next_run_at.unwrap() > Timestamp::now() && odd.last_run_at.is_none(), "it is tried again later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_is_put_again_keeps_its_next_time() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let client = system.client();
    let hourly = every(Duration::from_secs(3600));
    let first = client.put_schedule(&hourly, soon()).await.unwrap();
    let changed = NewSchedule { missed: MissedFire::Skip, ..hourly.clone() };
    let again = client.put_schedule(&changed, soon()).await.unwrap();
    assert_eq!(again.next_run_at, first.next_run_at, "its times are the same");
    assert_eq!(again.definition.missed, MissedFire::Skip);
    let other = client.put_schedule(&every(Duration::from_secs(7200)), soon()).await.unwrap();
    assert!(other.next_run_at > first.next_run_at, "its times have changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_schedule_is_refused() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let client = system.client();
    let cron = |expression: &str, zone: &str| {
        schedule(ScheduleTiming::Cron { expression: expression.into(), time_zone: zone.into() })
    };
    for bad in [
        cron("often", "UTC"),
        cron("* * * * *", "Nowhere"),
        cron("0 0 30 2 *", "UTC"),
        every(Duration::from_millis(10)),
    ] {
        let refused = client.put_schedule(&bad, soon()).await;
        assert!(matches!(refused, Err(MessagingError::InvalidInput { .. })), "{refused:?}");
    }
    let missing = client.get_schedule("nightly", soon()).await.unwrap_err();
    assert!(missing.to_string().contains("there is no schedule 'nightly'"), "{missing}");
    for refused in [
        client.delete_schedule("nightly", soon()).await.map(drop),
        client.pause_schedule("nightly", soon()).await.map(drop),
        client.trigger_schedule("nightly", soon()).await.map(drop),
    ] {
        assert!(refused.is_err());
    }
}
