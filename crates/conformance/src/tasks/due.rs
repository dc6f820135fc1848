//! When a task may be claimed, and how its time can be moved.

use std::time::Duration;

use postrider_core::Priority;
use postrider_core::task::{DeadReason, ScheduleStore, TaskId, TaskState, TaskStore};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, MINUTE};
use super::steps::{
    asking, cancel, claim_id, claim_one, claim_this, dead, end, ensure_conflict, ensure_left, ensure_none,
    ensure_not_found, ensure_state, info, make, make_plain, plain, retry, run_now, succeeded,
};
use crate::probe::{Check, ensure, ensure_same, soon};

pub(super) async fn a_task_is_not_claimed_before_its_time<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("later")?);
    let later = make(&store, plain(&task_type).scheduled_in(MINUTE * 2)).await?;
    ensure_none(&store, &task_type, "it is due in two minutes").await?;
    fixture.elapse(MINUTE).await;
    let nothing = store.claim(asking(&[&task_type], 5), soon()).await?;
    ensure(nothing.claimed.is_empty(), || format!("it was claimed a minute too soon: {:?}", nothing.claimed))?;
    ensure_left("the time until it is due", nothing.next_due, MINUTE)?;
    fixture.elapse(MINUTE + INSTANT).await;
    let claimed = claim_this(&store, &task_type, later).await?;
    end(&store, claimed.lease, succeeded()).await?;

    let now = store.store_time(soon()).await?;
    let at = make(&store, plain(&task_type).scheduled_at(now.saturating_add(HOUR))).await?;
    ensure_same("scheduled_for", info(&store, at).await?.scheduled_for, now.saturating_add(HOUR))?;
    ensure_none(&store, &task_type, "it is due in an hour").await?;
    fixture.elapse(HOUR + INSTANT).await;
    let claimed = claim_this(&store, &task_type, at).await?;
    end(&store, claimed.lease, succeeded()).await?;
    let past = make(&store, plain(&task_type).scheduled_at(now)).await?;
    drop(claim_this(&store, &task_type, past).await?);
    Ok(())
}

pub(super) async fn an_empty_claim_returns_the_next_due_time<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, first, second) = (fixture.open().await?, fixture.task_type("first")?, fixture.task_type("second")?);
    let third = fixture.task_type("third")?;
    make(&store, plain(&first).scheduled_in(HOUR).priority(Priority::HIGHEST)).await?;
    make(&store, plain(&first).scheduled_in(HOUR * 2).priority(Priority::LOWEST)).await?;
    make(&store, plain(&second).scheduled_in(MINUTE * 3).priority(Priority::LOWEST)).await?;
    make(&store, plain(&third).scheduled_in(MINUTE)).await?;
    let nothing = store.claim(asking(&[&first, &second], 5), soon()).await?;
    ensure(nothing.claimed.is_empty(), || format!("a task was claimed too soon: {:?}", nothing.claimed))?;
    ensure_left("the time until a task of these types is due", nothing.next_due, MINUTE * 3)?;
    // One that failed is waited for as one that is new.
    let failed = make_plain(&store, &first).await?;
    let claimed = claim_this(&store, &first, failed).await?;
    end(&store, claimed.lease, retry(MINUTE)).await?;
    let nothing = store.claim(asking(&[&first, &second], 5), soon()).await?;
    ensure_left("the time until the failed task is due", nothing.next_due, MINUTE)
}

pub(super) async fn a_task_that_waits_for_its_time_can_be_run_now<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("now")?);
    let later = make(&store, plain(&task_type).scheduled_in(HOUR)).await?;
    run_now(&store, later).await??;
    let seen = info(&store, later).await?;
    ensure_same("the state", seen.state, TaskState::Pending)?;
    ensure(seen.scheduled_for <= store.store_time(soon()).await?, || {
        format!("it is still due at {}", seen.scheduled_for)
    })?;
    let claimed = claim_this(&store, &task_type, later).await?;
    ensure_conflict("running now", &run_now(&store, later).await?, later, TaskState::Processing)?;

    end(&store, claimed.lease, retry(HOUR)).await?;
    ensure_none(&store, &task_type, "it is tried again in an hour").await?;
    run_now(&store, later).await??;
    ensure_state(&store, later, TaskState::Pending).await?;
    let claimed = claim_this(&store, &task_type, later).await?;
    ensure_same("the attempt", claimed.attempt_count, 2)?;
    end(&store, claimed.lease, succeeded()).await?;
    ensure_conflict("running now", &run_now(&store, later).await?, later, TaskState::Succeeded)
}

pub(super) async fn a_task_that_is_due_or_done_is_not_changed_by_running_it_now<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("due")?);
    let due = make_plain(&store, &task_type).await?;
    let before = info(&store, due).await?;
    fixture.elapse(MINUTE).await;
    run_now(&store, due).await??;
    ensure_same("a task that was due already", info(&store, due).await?, before)?;
    let lease = claim_one(&store, &task_type).await?.lease;
    end(&store, lease, retry(Duration::ZERO)).await?;
    run_now(&store, due).await??;
    ensure_state(&store, due, TaskState::Enqueued).await?;
    cancel(&store, due).await??;
    ensure_conflict("running now", &run_now(&store, due).await?, due, TaskState::Canceled)?;
    let died = make_plain(&store, &task_type).await?;
    let lease = claim_id(&store, died).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    ensure_conflict("running now", &run_now(&store, died).await?, died, TaskState::Dead)?;
    let unknown = TaskId::generate();
    ensure_not_found("running now", &run_now(&store, unknown).await?, unknown)
}
