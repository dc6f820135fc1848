//! Hints to workers and the enqueuer.

use std::time::Duration;

use postrider_core::WakeUps;
use postrider_core::task::{
    DeadReason, MissedFire, NewSchedule, ScheduleStore, ScheduleTiming, TaskNotice, TaskOutcome, TaskStanding,
    TaskStore, TaskTemplate,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE};
use super::messages::enqueue_all;
use super::steps::{cancel, claim_id, dead, end, make, make_all, plain, reap, replay, retry, run_now, succeeded};
use crate::probe::{Check, TIME_LIMIT, ensure, ensure_same, soon, violation};

/// Time limit of a hint; a later one has another cause.
const QUIET: Duration = Duration::from_millis(100);

/// Drains hints of earlier calls. A stream that hints without end breaks the rule.
async fn settle(hints: &mut WakeUps) -> Check {
    for _ in 0..20 {
        if tokio::time::timeout(QUIET, hints.next()).await.is_err() {
            return Ok(());
        }
    }
    violation("hints come although nothing happens")
}

async fn ensure_woken(hints: &mut WakeUps, by: &str) -> Check {
    match tokio::time::timeout(TIME_LIMIT, hints.next()).await {
        Ok(Some(())) => Ok(()),
        Ok(None) => violation(format!("the hints ended before {by}")),
        Err(_) => violation(format!("no hint came within {TIME_LIMIT:?} of {by}")),
    }
}

pub(super) async fn every_claimable_task_wakes_its_workers<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("claim")?);
    let types = vec![fixture.task_type("quiet")?, task_type.clone()];
    let mut here = store.subscribe_tasks(TaskNotice::Claimable(types.clone()), soon()).await?;
    let mut there = other.subscribe_tasks(TaskNotice::Claimable(types), soon()).await?;
    macro_rules! wakes {
        ($by:literal, $done:expr) => {{
            settle(&mut here).await?;
            settle(&mut there).await?;
            let done = $done;
            ensure_woken(&mut here, $by).await?;
            ensure_woken(&mut there, concat!($by, ", on another connection,")).await?;
            done
        }};
    }
    let id = wakes!("a creation", make(&store, plain(&task_type).max_attempts(9)).await?);
    let lease = claim_id(&store, id).await?.lease;
    wakes!("a retry", end(&store, lease, retry(Duration::ZERO)).await?);
    let lease = claim_id(&store, id).await?.lease;
    wakes!("a release", end(&store, lease, TaskOutcome::Released).await?);
    let lease = claim_id(&store, id).await?.lease;
    end(&store, lease, retry(HOUR)).await?;
    wakes!("a run at once", run_now(&store, id).await??);
    let lease = claim_id(&store, id).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    let reaped = wakes!("a reaping", reap(&store, lease, retry(Duration::ZERO)).await?);
    ensure_same("the reaping", reaped, TaskStanding::Held)?;
    let lease = claim_id(&store, id).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    wakes!("a replay", replay(&store, id).await??);
    cancel(&store, id).await??;

    let name = fixture.schedule_name("fires");
    let definition = NewSchedule {
        name: name.clone(),
        timing: ScheduleTiming::Every(HOUR),
        task: TaskTemplate::new(task_type.clone(), "{}"),
        missed: MissedFire::One,
    };
    let put = store.put_schedule(&definition, None, soon()).await?;
    let tasks = vec![definition.task.task(&name)?];
    let fire = store.fire_schedule(&name, put.version, tasks, None, None, soon());
    let fired = wakes!("a schedule that fires", fire.await?);
    for id in fired.into_iter().flatten() {
        cancel(&store, id).await??;
    }

    let keyed = (0..3).map(|_| plain(&task_type).ordering_key("k")).collect::<Result<Vec<_>, _>>()?;
    let ids = make_all(&store, keyed).await?;
    let lease = claim_id(&store, ids[0]).await?.lease;
    wakes!("the end of the task before it", end(&store, lease, succeeded()).await?);
    wakes!("the cancel of the task before it", cancel(&store, ids[1]).await??);
    end(&store, claim_id(&store, ids[2]).await?.lease, succeeded()).await
}

pub(super) async fn every_task_to_send_wakes_the_enqueuer<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (routes, _) = fixture.with_dead_events(fixture.elsewhere())?;
    let (store, other) = (fixture.open_with(routes.clone()).await?, fixture.open_with(routes).await?);
    let task_type = fixture.task_type("send")?;
    let mut here = store.subscribe_tasks(TaskNotice::ToSend, soon()).await?;
    let mut there = other.subscribe_tasks(TaskNotice::ToSend, soon()).await?;
    macro_rules! wakes {
        ($by:literal, $done:expr) => {{
            settle(&mut here).await?;
            settle(&mut there).await?;
            let done = $done;
            ensure_woken(&mut here, $by).await?;
            ensure_woken(&mut there, concat!($by, ", on another connection,")).await?;
            done
        }};
    }
    let id = wakes!("a creation", make(&store, plain(&task_type)).await?);
    let sent = wakes!("a message in the outbox", enqueue_all(&store).await?);
    ensure(sent >= 1, || "a due task was not sent on its way".into())?;
    let lease = claim_id(&store, id).await?.lease;
    wakes!("the message of a retry", end(&store, lease, retry(Duration::ZERO)).await?);
    let lease = claim_id(&store, id).await?.lease;
    wakes!("the event of a dead task", end(&store, lease, dead(DeadReason::Permanent)).await?);
    wakes!("a replay", replay(&store, id).await??);
    Ok(())
}
