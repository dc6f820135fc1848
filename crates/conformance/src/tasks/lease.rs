//! Who may say what became of an attempt, and for how long.

use std::time::Duration;

use postrider_core::RetryStrategy;
use postrider_core::task::{
    AttemptOutcome, ClaimTasks, DeadReason, Finish, Heartbeat, LostLease, Progress, TaskId, TaskInfo, TaskLease,
    TaskOutcome, TaskStanding, TaskState, TaskStore, TaskType,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::steps::{
    Between, asking, cancel, claim_id, claim_one, claim_this, dead, end, ensure_none, ensure_state, finish, heartbeat,
    info, make, make_plain, only, plain, reap, retry, standing, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

const STILL_PROCESSING: TaskStanding = TaskStanding::Lost(Some(TaskState::Processing));

/// The expired leases of one type, the earliest first.
async fn lost<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<Vec<LostLease>, Stop> {
    let lost = store.lost_leases(MANY, soon()).await?;
    Ok(lost.into_iter().filter(|lost| lost.task_type == *task_type).collect())
}

/// Lets the lease of an attempt expire and reaps it.
async fn lose<H: TaskHarness>(fixture: &Fixture<'_, H>, store: &H::Store, lease: TaskLease) -> Check {
    fixture.elapse(LEASE + INSTANT).await;
    ensure_same("the reaping of a lost lease", reap(store, lease, retry(Duration::ZERO)).await?, TaskStanding::Held)
}

/// Every call that takes a lease, with a stale one.
async fn ask_late<S: TaskStore>(store: &S, stale: TaskLease, expected: TaskStanding) -> Check {
    for outcome in [succeeded(), retry(Duration::ZERO), dead(DeadReason::Permanent), TaskOutcome::Released] {
        let what = format!("an end by a stale token, {outcome:?},");
        ensure_same(&what, finish(store, stale, outcome).await?, expected)?;
    }
    ensure_same("a heartbeat by a stale token", heartbeat(store, stale, HOUR).await?, expected)?;
    ensure_same("the standing of a stale token", standing(store, stale).await?, expected)?;
    for outcome in [retry(Duration::ZERO), dead(DeadReason::LeaseLost)] {
        ensure_same("a reaping by a stale token", reap(store, stale, outcome).await?, expected)?;
    }
    Ok(())
}

pub(super) async fn a_stale_token_changes_nothing<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("fenced")?);
    let id = make_plain(&store, &task_type).await?;
    let stale = claim_this(&store, &task_type, id).await?.lease;
    ensure_same("the standing of a holder", standing(&store, stale).await?, TaskStanding::Held)?;
    lose(fixture, &store, stale).await?;
    ask_late(&store, stale, TaskStanding::Lost(Some(TaskState::Enqueued))).await?;
    ensure_state(&store, id, TaskState::Enqueued).await?;

    let newer = claim_this(&other, &task_type, id).await?.lease;
    let before = info(&store, id).await?;
    ask_late(&store, stale, STILL_PROCESSING).await?;
    ensure_same("the task after every call with a stale token", info(&store, id).await?, before)?;
    // Also where the newer lease could be reaped.
    fixture.elapse(LEASE + INSTANT).await;
    ask_late(&store, stale, STILL_PROCESSING).await?;
    ensure_same("the standing of the holder", standing(&other, newer).await?, TaskStanding::Held)?;
    ensure_same("the number of ended attempts", store.attempts(id, soon()).await?.len(), 2)?;

    end(&other, newer, succeeded()).await?;
    ask_late(&store, stale, TaskStanding::Lost(Some(TaskState::Succeeded))).await?;
    ensure_state(&store, id, TaskState::Succeeded).await?;
    let unknown = TaskLease { id: TaskId::generate(), token: stale.token };
    ask_late(&store, unknown, TaskStanding::Lost(None)).await
}

pub(super) async fn every_lease_of_a_batch_has_its_own_answer<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("batch")?);
    let mut leases = Vec::new();
    for _ in 0..4 {
        let id = make_plain(&store, &task_type).await?;
        leases.push(claim_id(&store, id).await?.lease);
    }
    end(&store, leases[1], succeeded()).await?;
    cancel(&store, leases[2].id).await??;
    leases.push(TaskLease { id: TaskId::generate(), token: 7 });
    leases.push(TaskLease { token: leases[3].token, ..leases[0] });
    let expected = vec![
        TaskStanding::Held,
        TaskStanding::Lost(Some(TaskState::Succeeded)),
        TaskStanding::Lost(Some(TaskState::Canceled)),
        TaskStanding::Held,
        TaskStanding::Lost(None),
        STILL_PROCESSING,
    ];
    ensure_same("the standings", store.standings(&leases, soon()).await?, expected.clone())?;
    let heartbeats = leases.iter().map(|lease| Heartbeat { lease: *lease, progress: None }).collect();
    ensure_same("the answers to heartbeats", store.heartbeat(heartbeats, LEASE, soon()).await?, expected.clone())?;
    let ends = leases.iter().map(|lease| Finish { lease: *lease, outcome: retry(HOUR) }).collect();
    ensure_same("the answers to ends", store.finish(ends, soon()).await?, {
        let mut expected = expected;
        // The first lease of this task ended before, in the same batch.
        expected[5] = TaskStanding::Lost(Some(TaskState::Enqueued));
        expected
    })
}

pub(super) async fn a_lease_that_ran_out_may_still_end_its_attempt<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("late")?);
    for outcome in [succeeded(), retry(Duration::ZERO), dead(DeadReason::Permanent), TaskOutcome::Released] {
        let id = make_plain(&store, &task_type).await?;
        let lease = claim_id(&store, id).await?.lease;
        fixture.elapse(LEASE * 3).await;
        ensure_none(&store, &task_type, "its lease was not reaped").await?;
        end(&store, lease, outcome).await?;
        // Now some leases are live and some are not.
        let _ = cancel(&store, id).await?;
    }
    Ok(())
}

pub(super) async fn a_heartbeat_sets_the_end_of_a_lease<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("alive")?);
    let id = make_plain(&store, &task_type).await?;
    let lease = claim_this(&store, &task_type, id).await?.lease;
    for (time, why) in [(HOUR, "a longer lease"), (LEASE, "the same lease"), (MINUTE / 2, "a shorter lease")] {
        fixture.elapse(MINUTE / 4).await;
        let mut beating = Between::begin(&store).await?;
        ensure_same("a heartbeat", heartbeat(&store, lease, time).await?, TaskStanding::Held)?;
        beating.ensure(&store, &format!("the end of {why}"), info(&store, id).await?.lease_expires_at, time).await?;
    }
    ensure(lost(&store, &task_type).await?.is_empty(), || "a renewed lease is listed as lost".into())?;
    fixture.elapse(MINUTE / 2 + INSTANT).await;
    ensure_same("the number of lost leases", lost(&store, &task_type).await?.len(), 1)?;
    end(&store, lease, succeeded()).await
}

pub(super) async fn a_heartbeat_keeps_progress<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("progress")?);
    let id = make_plain(&store, &task_type).await?;
    let lease = claim_this(&store, &task_type, id).await?.lease;
    for progress in [
        Progress::new(Some(0.25), Some("a quarter".to_owned()))?,
        Progress::new(Some(0.5), None)?,
        Progress::new(None, Some("nearly".to_owned()))?,
        Progress::new(Some(1.0), Some("done".to_owned()))?,
    ] {
        let beat = Heartbeat { lease, progress: Some(progress.clone()) };
        ensure_same("a heartbeat", only(store.heartbeat(vec![beat], LEASE, soon()).await?)?, TaskStanding::Held)?;
        ensure_same("the progress", info(&store, id).await?.progress, Some(progress.clone()))?;
        ensure_same("a heartbeat", heartbeat(&store, lease, LEASE).await?, TaskStanding::Held)?;
        ensure_same("the progress after silence", info(&store, id).await?.progress, Some(progress))?;
    }
    end(&store, lease, retry(Duration::ZERO)).await?;
    let lease = claim_this(&store, &task_type, id).await?.lease;
    ensure_same("the progress of a new attempt", info(&store, id).await?.progress, None)?;
    end(&store, lease, succeeded()).await
}

pub(super) async fn only_leases_that_ran_out_are_lost<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("lost")?);
    let strategy = RetryStrategy::constant(MINUTE).with_max_attempts(5);
    let claim_for = |lease: Duration| ClaimTasks { lease, worker: format!("{lease:?}"), ..asking(&[&task_type], 1) };
    let mut leases = Vec::new();
    for time in [LEASE * 3, LEASE * 2, HOUR] {
        make(&store, plain(&task_type).retry_strategy(strategy.clone())).await?;
        match store.claim(claim_for(time), soon()).await?.claimed.pop() {
            Some(claimed) => leases.push(claimed.lease),
            None => return violation("a due task could not be claimed"),
        }
    }
    let waiting = make(&store, plain(&task_type).scheduled_in(HOUR)).await?;
    ensure(lost(&store, &task_type).await?.is_empty(), || "a live lease is listed as lost".into())?;
    fixture.elapse(LEASE * 3 + INSTANT).await;
    let seen = lost(&store, &task_type).await?;
    let leases_seen: Vec<_> = seen.iter().map(|lost| lost.lease).collect();
    ensure_same("the expired leases, the earliest first,", leases_seen, vec![leases[1], leases[0]])?;
    let first = &seen[0];
    ensure_same("its worker", first.worker.as_str(), format!("{:?}", LEASE * 2).as_str())?;
    ensure_same("its attempt", (first.attempt_count, first.max_attempts), (1, 5))?;
    ensure_same("its retry strategy", &first.retry_strategy, &Some(strategy))?;
    ensure(first.since_first_attempt >= LEASE * 3, || {
        format!("its first attempt began {:?} ago, not {:?} or more", first.since_first_attempt, LEASE * 3)
    })?;
    let one = store.lost_leases(1, soon()).await?;
    ensure_same("the number of lost leases, with a limit of one,", one.len(), 1)?;
    for lease in leases {
        ensure_state(&store, lease.id, TaskState::Processing).await?;
        end(&store, lease, succeeded()).await?;
    }
    ensure(lost(&store, &task_type).await?.is_empty(), || "the lease of an ended task is listed as lost".into())?;
    ensure_state(&store, waiting, TaskState::Pending).await
}

/// The task after a reap, apart from its state.
async fn ensure_reaped<S: TaskStore>(store: &S, id: TaskId, state: TaskState) -> Result<TaskInfo, Stop> {
    let seen = info(store, id).await?;
    ensure_same("the state of what was reaped", seen.state, state)?;
    ensure_same("its lease", seen.lease_expires_at, None)?;
    let attempts = store.attempts(id, soon()).await?;
    let last = attempts.last().map(|attempt| (attempt.outcome, attempt.worker.as_str(), attempt.ended_at.is_some()));
    ensure_same("its last attempt", last, Some((AttemptOutcome::LeaseLost, "worker-1", true)))?;
    Ok(seen)
}

pub(super) async fn a_lost_attempt_is_followed_by_another<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("reaped")?);
    let id = make_plain(&store, &task_type).await?;
    let lease = claim_this(&store, &task_type, id).await?.lease;
    ensure_same("a reaping of a live lease", reap(&store, lease, retry(MINUTE)).await?, STILL_PROCESSING)?;
    fixture.elapse(LEASE + INSTANT).await;
    let mut reaping = Between::begin(&store).await?;
    ensure_same("the reaping", reap(&store, lease, retry(MINUTE)).await?, TaskStanding::Held)?;
    let seen = ensure_reaped(&store, id, TaskState::Enqueued).await?;
    reaping.ensure(&store, "scheduled_for", Some(seen.scheduled_for), MINUTE).await?;
    ensure_same("the last error", seen.last_error.as_deref(), Some("no route"))?;
    ensure_none(&store, &task_type, "its delay is not over").await?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("the attempt", claim_this(&store, &task_type, id).await?.attempt_count, 2)
}

pub(super) async fn a_lease_that_was_renewed_or_ended_is_not_reaped<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("renewed")?);
    let id = make_plain(&store, &task_type).await?;
    let lease = claim_this(&store, &task_type, id).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    let seen: Vec<_> = lost(&other, &task_type).await?.iter().map(|lost| lost.lease).collect();
    ensure_same("the lost leases", seen, vec![lease])?;
    ensure_same("a late heartbeat", heartbeat(&store, lease, LEASE).await?, TaskStanding::Held)?;
    for outcome in [retry(Duration::ZERO), dead(DeadReason::LeaseLost)] {
        ensure_same("the reaping of a renewed lease", reap(&other, lease, outcome).await?, STILL_PROCESSING)?;
    }
    ensure_same("the standing of the holder", standing(&store, lease).await?, TaskStanding::Held)?;
    fixture.elapse(LEASE + INSTANT).await;
    end(&store, lease, succeeded()).await?;
    let reaped = reap(&other, lease, retry(Duration::ZERO)).await?;
    ensure_same("the reaping of what ended", reaped, TaskStanding::Lost(Some(TaskState::Succeeded)))?;
    ensure_state(&store, id, TaskState::Succeeded).await
}

pub(super) async fn a_lost_last_attempt_is_a_death<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("last")?);
    let id = make(&store, plain(&task_type).max_attempts(1)).await?;
    let lease = claim_one(&store, &task_type).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    let mut reaping = Between::begin(&store).await?;
    ensure_same("the reaping", reap(&store, lease, dead(DeadReason::LeaseLost)).await?, TaskStanding::Held)?;
    let seen = ensure_reaped(&store, id, TaskState::Dead).await?;
    reaping.ensure(&store, "finished_at", seen.finished_at, Duration::ZERO).await?;
    ensure_same("the reason", seen.dead_reason, Some(DeadReason::LeaseLost))?;
    ensure_same("the last error", seen.last_error.as_deref(), Some("no such address"))?;
    ensure_none(&store, &task_type, "it is dead").await
}
