//! Cancellation of tasks.

use std::time::Duration;

use postrider_core::task::{AttemptOutcome, DeadReason, TaskId, TaskStanding, TaskState, TaskStore};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, MINUTE};
use super::messages::enqueue_all;
use super::steps::{
    Between, cancel, claim_id, dead, end, ensure_conflict, ensure_none, ensure_not_found, ensure_state, finish,
    heartbeat, info, make, make_plain, plain, retry, standing, succeeded,
};
use crate::probe::{Check, ensure, ensure_same, soon};

pub(super) async fn a_task_can_be_canceled_in_every_state_but_its_last<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("live")?);
    let due = make_plain(&store, &task_type).await?;
    let later = make(&store, plain(&task_type).scheduled_in(HOUR)).await?;
    let failed = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(Duration::ZERO)).await?;
    let running = make_plain(&store, &task_type).await?;
    drop(claim_id(&store, running).await?);
    let ids = [due, later, failed, running];
    let mut canceling = Between::begin(&store).await?;
    let rows = store.cancel(&ids, soon()).await?;
    let left: Vec<Option<TaskState>> = rows.iter().map(|row| row.as_ref().ok().copied()).collect();
    let expected = [TaskState::Pending, TaskState::Pending, TaskState::Enqueued, TaskState::Processing].map(Some);
    ensure(left == expected, || format!("four live tasks were canceled with the answers {rows:?}"))?;
    for id in ids {
        let seen = info(&store, id).await?;
        ensure_same("the state", seen.state, TaskState::Canceled)?;
        canceling.ensure(&store, "finished_at", seen.finished_at, Duration::ZERO).await?;
        ensure_same("the lease", seen.lease_expires_at, None)?;
        ensure_same("the dead reason", seen.dead_reason, None)?;
    }
    fixture.elapse(HOUR * 2).await;
    ensure_none(&store, &task_type, "all were canceled").await?;

    let queued = fixture.open_with(fixture.here()).await?;
    let sent = make_plain(&queued, &task_type).await?;
    enqueue_all(&queued).await?;
    ensure_same("the state that was left", cancel(&queued, sent).await??, TaskState::Enqueued)
}

pub(super) async fn the_worker_of_a_canceled_task_has_lost_it<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("running")?);
    let id = make_plain(&store, &task_type).await?;
    let lease = claim_id(&store, id).await?.lease;
    ensure_same("the state that was left", cancel(&other, id).await??, TaskState::Processing)?;
    let lost = TaskStanding::Lost(Some(TaskState::Canceled));
    ensure_same("the standing", standing(&store, lease).await?, lost)?;
    ensure_same("a heartbeat", heartbeat(&store, lease, MINUTE).await?, lost)?;
    for outcome in [succeeded(), retry(Duration::ZERO), dead(DeadReason::Permanent)] {
        ensure_same("an end", finish(&store, lease, outcome).await?, lost)?;
    }
    ensure_state(&store, id, TaskState::Canceled).await?;
    let attempts = store.attempts(id, soon()).await?;
    let seen: Vec<_> = attempts.iter().map(|it| (it.attempt, it.outcome, it.ended_at.is_some())).collect();
    ensure_same("the history", seen, vec![(1, AttemptOutcome::Canceled, true)])
}

pub(super) async fn a_task_that_has_ended_is_not_canceled<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("ended")?);
    let done = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, done).await?.lease, succeeded()).await?;
    let died = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, died).await?.lease, dead(DeadReason::Permanent)).await?;
    let canceled = make_plain(&store, &task_type).await?;
    cancel(&store, canceled).await??;
    let (unknown, live) = (TaskId::generate(), make_plain(&store, &task_type).await?);
    let rows = store.cancel(&[done, unknown, died, live, canceled], soon()).await?;
    ensure_same("the number of answers", rows.len(), 5)?;
    ensure_conflict("a cancel", &rows[0], done, TaskState::Succeeded)?;
    ensure_not_found("a cancel", &rows[1], unknown)?;
    ensure_conflict("a cancel", &rows[2], died, TaskState::Dead)?;
    ensure(matches!(rows[3], Ok(TaskState::Pending)), || format!("a live task among others: {:?}", rows[3]))?;
    ensure_conflict("a cancel", &rows[4], canceled, TaskState::Canceled)?;
    ensure_state(&store, done, TaskState::Succeeded).await?;
    ensure_state(&store, died, TaskState::Dead).await?;
    ensure_state(&store, live, TaskState::Canceled).await
}
