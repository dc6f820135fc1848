//! Schedules: each of their times makes its task once, however many keepers look.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::task::{
    MissedFire, NewSchedule, ScheduleStore, ScheduleTiming, TaskFilter, TaskQuery, TaskTemplate, TaskType,
};
use postrider_core::{MessagingError, Timestamp};
use postrider_tasks::Shutdown;

use crate::world::{System, Way, World, start_keeper};
use crate::{PATIENCE, soon, until};

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
async fn several_keepers_make_one_task_for_each_time() {
    let world = World::new(Way::Polling);
    let system = world.system().await;
    let first = system.client().put_schedule(&every(Duration::from_secs(1)), soon()).await.unwrap();
    let first = first.next_run_at.unwrap();
    let shutdown = Shutdown::new();
    let mut keepers = Vec::new();
    for _ in 0..4 {
        keepers.push(start_keeper(&world.system().await, &shutdown));
    }
    until("three times have come", PATIENCE, || async { made(&system).await.len() >= 3 }).await;
    let paused = system.client().pause_schedule("nightly", soon()).await.unwrap();
    assert!(paused.paused_at.is_some());
    let count = made(&system).await.len();
    let last = paused.last_run_at.unwrap();
    let times = last.since(first).as_secs() + 1;
    assert_eq!(count as u64, times, "a task for each second from {first} to {last}");
    let keys: HashSet<_> = made(&system).await.into_iter().map(|task| task.idempotency_key.unwrap()).collect();
    assert_eq!(keys.len(), count);

    // Paused, it makes none, and what it would have made is not made up for.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(made(&system).await.len(), count);
    let triggered = system.client().trigger_schedule("nightly", soon()).await.unwrap();
    assert!(made(&system).await.iter().any(|task| task.id == triggered.id));
    let resumed = system.client().resume_schedule("nightly", soon()).await.unwrap();
    assert!(
        resumed.paused_at.is_none()
            && resumed.next_run_at.unwrap() > Timestamp::now().saturating_sub(Duration::from_secs(1))
    );
    until("it goes on", PATIENCE, || async { made(&system).await.len() > count + 1 }).await;
    system.client().delete_schedule("nightly", soon()).await.unwrap();
    shutdown.request();
    for keeper in keepers {
        keeper.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_that_nobody_saw_are_made_up_for_as_was_asked() {
    for (missed, least, most) in [(MissedFire::Skip, 0, 1), (MissedFire::One, 1, 2), (MissedFire::All, 60, 61)] {
        let world = World::new(Way::Polling);
        let system = world.system().await;
        let hourly = NewSchedule {
            missed,
            ..schedule(ScheduleTiming::Cron { expression: "0 * * * *".into(), time_zone: "Europe/Berlin".into() })
        };
        system.client().put_schedule(&hourly, soon()).await.unwrap();
        // Sixty hours and a half ago by its time: nobody was there.
        let since = Timestamp::now().saturating_sub(Duration::from_secs(60 * 3600 - 1));
        let store = system.client().store();
        let whole_hour = Timestamp::from_micros(since.as_micros() / 3_600_000_000 * 3_600_000_000);
        store.put_schedule(&hourly, Some(whole_hour), soon()).await.unwrap();
        let shutdown = Shutdown::new();
        let keeper = start_keeper(&system, &shutdown);
        until("it has moved on", PATIENCE, || async {
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
async fn a_schedule_that_cannot_be_read_is_refused() {
    let world = World::new(Way::Polling);
    let system = world.system().await;
    let client = system.client();
    let cron = |expression: &str, zone: &str| {
        schedule(ScheduleTiming::Cron { expression: expression.into(), time_zone: zone.into() })
    };
    for bad in [cron("often", "UTC"), cron("* * * * *", "Nowhere"), every(Duration::from_millis(10))] {
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
