//! Tasks that are too late.

use std::time::Duration;

use postrider_core::task::{AttemptOutcome, DeadReason, TaskId, TaskStanding, TaskState, TaskStore};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, MANY, MINUTE};
use super::steps::{
    Between, claim_id, claim_this, end, ensure_none, ensure_state, finish, heartbeat, info, make, plain, retry, sorted,
    standing, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon};

/// Expires all overdue tasks and returns those of the test.
async fn expire<S: TaskStore>(store: &S, own: &[TaskId]) -> Result<Vec<TaskId>, Stop> {
    let mut died = Vec::new();
    loop {
        let expired = store.expire_overdue(MANY, soon()).await?;
        died.extend(expired.iter().copied().filter(|id| own.contains(id)));
        if expired.len() < MANY {
            return Ok(sorted(died));
        }
    }
}

pub(super) async fn a_task_is_not_claimed_past_its_deadline<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("late")?);
    let late = make(&store, plain(&task_type).deadline_in(MINUTE)).await?;
    let failed = make(&store, plain(&task_type).deadline_in(MINUTE)).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(Duration::ZERO)).await?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_none(&store, &task_type, "its deadline has passed").await?;
    ensure_state(&store, late, TaskState::Pending).await?;
    ensure_state(&store, failed, TaskState::Enqueued).await?;
    let intime = make(&store, plain(&task_type).deadline_in(MINUTE)).await?;
    drop(claim_this(&store, &task_type, intime).await?);
    Ok(())
}

pub(super) async fn tasks_die_at_their_deadline_running_or_not<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("overdue")?);
    let with = |time| plain(&task_type).deadline_in(time);
    let waiting = make(&store, with(HOUR)).await?;
    let later = make(&store, with(HOUR).scheduled_in(HOUR * 2)).await?;
    let failed = make(&store, with(HOUR)).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(Duration::ZERO)).await?;
    let running = make(&store, with(HOUR)).await?;
    let lease = claim_id(&store, running).await?.lease;
    let done = make(&store, with(HOUR)).await?;
    end(&store, claim_id(&store, done).await?.lease, succeeded()).await?;
    let in_time = make(&store, with(HOUR * 2)).await?;
    let all = [waiting, later, failed, running, done, in_time];
    fixture.elapse(HOUR / 2).await;
    ensure_same("tasks that died before their deadline", expire(&store, &all).await?, Vec::new())?;

    fixture.elapse(HOUR / 2 + INSTANT).await;
    let mut dying = Between::begin(&store).await?;
    ensure_same("tasks that died", expire(&store, &all).await?, sorted([waiting, later, failed, running]))?;
    ensure_same("tasks that died twice", expire(&store, &all).await?, Vec::new())?;
    for (id, attempts) in [(waiting, 0), (later, 0), (failed, 1), (running, 1)] {
        let seen = info(&store, id).await?;
        ensure_same("the state of what is too late", seen.state, TaskState::Dead)?;
        ensure_same("the reason", seen.dead_reason, Some(DeadReason::Deadline))?;
        dying.ensure(&store, "finished_at", seen.finished_at, Duration::ZERO).await?;
        ensure(seen.last_error.is_some_and(|error| !error.is_empty()), || {
            "the error does not name the deadline".into()
        })?;
        ensure_same("the lease", seen.lease_expires_at, None)?;
        ensure_same("the attempts begun", seen.attempt_count, attempts)?;
        ensure_same("the number of attempts", store.attempts(id, soon()).await?.len(), attempts as usize)?;
    }
    let attempt = store.attempts(running, soon()).await?.pop().map(|attempt| attempt.outcome);
    ensure_same("the attempt under way", attempt, Some(AttemptOutcome::Deadline))?;
    let lost = TaskStanding::Lost(Some(TaskState::Dead));
    ensure_same("the standing of the worker", standing(&store, lease).await?, lost)?;
    ensure_same("its heartbeat", heartbeat(&store, lease, MINUTE).await?, lost)?;
    ensure_same("its end", finish(&store, lease, succeeded()).await?, lost)?;
    ensure_state(&store, running, TaskState::Dead).await?;
    ensure_state(&store, done, TaskState::Succeeded).await?;
    ensure_state(&store, in_time, TaskState::Pending).await
}

pub(super) async fn a_call_expires_at_most_its_limit<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("many")?);
    // What other tests have left is older than anything here.
    expire(&store, &[]).await?;
    for _ in 0..5 {
        make(&store, plain(&task_type).deadline_in(MINUTE)).await?;
    }
    fixture.elapse(MINUTE + INSTANT).await;
    for expected in [2, 2, 1, 0] {
        let died = store.expire_overdue(2, soon()).await?.len();
        ensure_same("the number of tasks that died, with a limit of two,", died, expected)?;
    }
    Ok(())
}
