//! How attempts end, and what is known of them afterwards.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{
    AttemptOutcome, DeadReason, Finish, TaskOutcome, TaskStanding, TaskState, TaskStore, TaskType,
};

use super::TaskHarness;
use super::fixture::{Fixture, INSTANT, LEASE, MINUTE};
use super::steps::{
    Between, asking, claim, claim_one, claim_this, dead, end, ensure_none, ensure_state, info, make, make_all,
    make_plain, plain, read, retry, succeeded,
};
use crate::probe::{Check, ensure, ensure_same, soon, violation};

pub(super) async fn a_task_that_succeeded_keeps_its_result<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("done")?);
    for result in [Some(Bytes::from_static(b"\x00\xffdone")), Some(Bytes::new()), None] {
        let id = make_plain(&store, &task_type).await?;
        let claimed = claim_this(&store, &task_type, id).await?;
        let mut ending = Between::begin(&store).await?;
        end(&store, claimed.lease, TaskOutcome::Succeeded { result: result.clone() }).await?;
        let task = read(&other, id).await?;
        ending.ensure(&store, "finished_at", task.info.finished_at, Duration::ZERO).await?;
        ensure_same("the result", task.result, result)?;
        ensure_same("the state", task.info.state, TaskState::Succeeded)?;
        ensure_same("the lease", task.info.lease_expires_at, None)?;
        ensure_same("the worker", task.info.worker.as_deref(), Some("worker-1"))?;
        ensure_same("the end", (task.info.dead_reason, task.info.last_error), (None, None))?;
        fixture.elapse(MINUTE * 10).await;
        ensure_none(&store, &task_type, "it has succeeded").await?;
    }
    Ok(())
}

pub(super) async fn a_failed_attempt_is_followed_by_another_after_its_delay<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("again")?);
    let id = make_plain(&store, &task_type).await?;
    let mut first = Between::begin(&store).await?;
    let claimed = claim_this(&store, &task_type, id).await?;
    let started_at = info(&store, id).await?.started_at;
    fixture.elapse(Duration::from_secs(1)).await;
    let mut ending = Between::begin(&store).await?;
    end(&store, claimed.lease, retry(MINUTE)).await?;
    let seen = info(&store, id).await?;
    ensure_same("the state", seen.state, TaskState::Enqueued)?;
    ending.ensure(&store, "scheduled_for", Some(seen.scheduled_for), MINUTE).await?;
    ensure_same("the last error", seen.last_error.as_deref(), Some("no route"))?;
    ensure_same("the lease", seen.lease_expires_at, None)?;
    ensure_same("the end", (seen.finished_at, seen.dead_reason), (None, None))?;
    ensure_same("the attempts begun", seen.attempt_count, 1)?;

    let attempts = store.attempts(id, soon()).await?;
    ensure_same("the number of attempts", attempts.len(), 1)?;
    let attempt = &attempts[0];
    ensure_same("the attempt", (attempt.attempt, attempt.replay), (1, 0))?;
    ensure_same("its worker", attempt.worker.as_str(), "worker-1")?;
    ensure_same("its outcome", attempt.outcome, AttemptOutcome::Failed)?;
    ensure_same("its error", attempt.error.as_deref(), Some("no route"))?;
    ensure_same("its beginning", Some(attempt.started_at), started_at)?;
    first.ensure(&store, "its beginning", Some(attempt.started_at), Duration::ZERO).await?;
    ending.ensure(&store, "its end", attempt.ended_at, Duration::ZERO).await?;

    fixture.elapse(MINUTE / 2).await;
    ensure_none(&store, &task_type, "its delay is not over").await?;
    fixture.elapse(MINUTE / 2 + INSTANT).await;
    let claimed = claim_this(&store, &task_type, id).await?;
    ensure_same("the attempt", claimed.attempt_count, 2)?;
    // Parts of a second count.
    end(&store, claimed.lease, retry(Duration::from_millis(1500))).await?;
    let left = info(&store, id).await?.scheduled_for.since(ending.to);
    ensure(left > MINUTE + Duration::from_secs(1), || format!("a delay of 1.5 s ends {left:?} after the last end"))
}

pub(super) async fn a_task_dies_with_a_reason<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("dead")?);
    for reason in DeadReason::ALL {
        let id = make_plain(&store, &task_type).await?;
        let claimed = claim_this(&store, &task_type, id).await?;
        let mut ending = Between::begin(&store).await?;
        end(&store, claimed.lease, dead(reason)).await?;
        let seen = info(&store, id).await?;
        ending.ensure(&store, "finished_at", seen.finished_at, Duration::ZERO).await?;
        ensure_same("the state", seen.state, TaskState::Dead)?;
        ensure_same("the reason", seen.dead_reason, Some(reason))?;
        ensure_same("the last error", seen.last_error.as_deref(), Some("no such address"))?;
        ensure_same("the lease", seen.lease_expires_at, None)?;
        let attempts = store.attempts(id, soon()).await?;
        ensure_same("the number of attempts", attempts.len(), 1)?;
        ensure_same("the attempt", attempts[0].outcome, AttemptOutcome::Failed)?;
        ensure_same("its error", attempts[0].error.as_deref(), Some("no such address"))?;
        fixture.elapse(MINUTE * 10).await;
        ensure_none(&store, &task_type, "it is dead").await?;
    }
    Ok(())
}

/// The store counts, and not the worker, which may be in another language and behind HTTP.
pub(super) async fn the_last_attempt_is_final_whatever_its_outcome<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("last")?);
    for is_reaped in [false, true] {
        let keyed = || plain(&task_type).ordering_key("k");
        let [spent, next, fresh] = [keyed()?.max_attempts(1), keyed()?, plain(&task_type).max_attempts(2)];
        let ids = make_all(&store, vec![spent, next, fresh]).await?;
        let claimed = claim(&store, &task_type, 3).await?;
        let leases: Vec<_> = claimed.iter().map(|task| task.lease).collect();
        ensure_same("the claimed tasks", leases.iter().map(|lease| lease.id).collect(), vec![ids[0], ids[2]])?;
        let ends: Vec<_> =
            leases.iter().map(|lease| Finish { lease: *lease, outcome: retry(Duration::ZERO) }).collect();
        let (standings, reason, outcome) = if is_reaped {
            fixture.elapse(LEASE + INSTANT).await;
            (store.reap(ends, soon()).await?, DeadReason::LeaseLost, AttemptOutcome::LeaseLost)
        } else {
            (store.finish(ends, soon()).await?, DeadReason::MaxAttempts, AttemptOutcome::Failed)
        };
        ensure_same("the standings of the ends", standings, vec![TaskStanding::Spent, TaskStanding::Held])?;

        let seen = info(&store, ids[0]).await?;
        ensure_same("the state after the last attempt", seen.state, TaskState::Dead)?;
        ensure_same("the reason", seen.dead_reason, Some(reason))?;
        ensure_same("the last error", seen.last_error.as_deref(), Some("no route"))?;
        let attempts = store.attempts(ids[0], soon()).await?;
        ensure_same("the attempts", attempts.iter().map(|attempt| attempt.outcome).collect(), vec![outcome])?;
        ensure_state(&store, ids[2], TaskState::Enqueued).await?;

        let claimed = claim(&store, &task_type, 3).await?;
        let mut left: Vec<_> = claimed.iter().map(|task| task.lease.id).collect();
        left.sort_unstable();
        let mut expected = vec![ids[1], ids[2]];
        expected.sort_unstable();
        ensure_same("the next of its key, and what had an attempt left", left, expected)?;
        for task in claimed {
            end(&store, task.lease, succeeded()).await?;
        }
    }
    Ok(())
}

pub(super) async fn attempts_are_counted_and_their_history_is_whole<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("story")?);
    let id = make(&store, plain(&task_type).max_attempts(4)).await?;
    for attempt in 1..=3 {
        let claimed = claim_this(&store, &task_type, id).await?;
        ensure_same("the attempt of the claim", claimed.attempt_count, attempt)?;
        ensure_same("the attempts begun", info(&store, id).await?.attempt_count, attempt)?;
        let error = format!("failure {attempt}");
        end(&store, claimed.lease, TaskOutcome::Retry { after: Duration::ZERO, error }).await?;
    }
    let claimed = claim_this(&store, &task_type, id).await?;
    let running = store.attempts(id, soon()).await?;
    end(&store, claimed.lease, succeeded()).await?;
    let over = store.attempts(id, soon()).await?;
    for (attempts, last) in [(running, AttemptOutcome::Running), (over, AttemptOutcome::Succeeded)] {
        let seen: Vec<_> = attempts.iter().map(|it| (it.attempt, it.outcome, it.error.clone())).collect();
        let mut expected: Vec<_> =
            (1..=3).map(|number| (number, AttemptOutcome::Failed, Some(format!("failure {number}")))).collect();
        expected.push((4, last, None));
        ensure_same("the history", seen, expected)?;
        ensure(attempts.iter().all(|it| it.worker == "worker-1" && it.replay == 0), || {
            format!("the history names other workers or replays: {attempts:?}")
        })?;
        let open = attempts.iter().filter(|it| it.ended_at.is_none()).count();
        ensure_same("attempts without an end", open, usize::from(last == AttemptOutcome::Running))?;
    }
    ensure_same("the attempts begun", info(&store, id).await?.attempt_count, 4)
}

async fn release<S: TaskStore>(store: &S, task_type: &TaskType, back: TaskState) -> Check {
    let id = make(store, plain(task_type).max_attempts(2)).await?;
    for failures in 0..2 {
        for _ in 0..3 {
            let claimed = claim_this(store, task_type, id).await?;
            ensure_same("the attempt", claimed.attempt_count, failures + 1)?;
            end(store, claimed.lease, TaskOutcome::Released).await?;
            let seen = info(store, id).await?;
            ensure_same("the state of what was released", seen.state, back)?;
            ensure_same("the attempts begun", seen.attempt_count, failures)?;
            ensure_same("the lease", seen.lease_expires_at, None)?;
            ensure_same("the history", store.attempts(id, soon()).await?.len(), failures as usize)?;
        }
        let claimed = claim_this(store, task_type, id).await?;
        end(store, claimed.lease, if failures == 0 { retry(Duration::ZERO) } else { succeeded() }).await?;
    }
    ensure_same("the history", store.attempts(id, soon()).await?.len(), 2)
}

pub(super) async fn a_released_task_is_back_at_once_and_uncounted<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    release(&fixture.open().await?, &fixture.task_type("polling")?, TaskState::Pending).await?;
    release(&fixture.open_with(fixture.here()).await?, &fixture.task_type("queue")?, TaskState::Enqueued).await
}

pub(super) async fn a_lease_ends_once_within_a_batch<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("once")?);
    let (first, second) = (make_plain(&store, &task_type).await?, make_plain(&store, &task_type).await?);
    let claimed = store.claim(asking(&[&task_type], 2), soon()).await?.claimed;
    ensure_same("the number of claimed tasks", claimed.len(), 2)?;
    let lease = |id| claimed.iter().find(|task| task.lease.id == id).map(|task| task.lease);
    let (Some(one), Some(two)) = (lease(first), lease(second)) else {
        return violation("a claim of two returned other tasks");
    };
    let ends = vec![
        Finish { lease: one, outcome: succeeded() },
        Finish { lease: two, outcome: retry(Duration::ZERO) },
        Finish { lease: one, outcome: dead(DeadReason::Permanent) },
        Finish { lease: two, outcome: succeeded() },
    ];
    let seen = store.finish(ends, soon()).await?;
    let expected = vec![
        TaskStanding::Held,
        TaskStanding::Held,
        TaskStanding::Lost(Some(TaskState::Succeeded)),
        TaskStanding::Lost(Some(TaskState::Enqueued)),
    ];
    ensure_same("what became of two leases that ended twice", seen, expected)?;
    ensure_state(&store, first, TaskState::Succeeded).await?;
    ensure_state(&store, second, TaskState::Enqueued).await?;
    let claimed = claim_one(&store, &task_type).await?;
    ensure_same("the attempt", (claimed.lease.id, claimed.attempt_count), (second, 2))
}

pub(super) async fn many_attempts_end_in_one_call_with_their_own_outcomes<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("mixed")?);
    let tasks = (0..200).map(|_| plain(&task_type)).collect();
    make_all(&store, tasks).await?;
    let claimed = claim(&store, &task_type, 200).await?;
    ensure_same("the number of claimed tasks", claimed.len(), 200)?;
    let outcome = |number: usize| match number % 4 {
        0 => TaskOutcome::Succeeded { result: Some(Bytes::from(number.to_string())) },
        1 => TaskOutcome::Retry { after: MINUTE, error: format!("failure {number}") },
        2 => TaskOutcome::Dead { reason: DeadReason::Permanent, error: format!("death {number}") },
        _ => TaskOutcome::Released,
    };
    let ends = claimed.iter().enumerate().map(|(at, task)| Finish { lease: task.lease, outcome: outcome(at) });
    let standings = store.finish(ends.collect(), soon()).await?;
    ensure_same("the number of answers", standings.len(), 200)?;
    ensure(standings.iter().all(|standing| *standing == TaskStanding::Held), || {
        format!("not every end of 200 was accepted: {standings:?}")
    })?;
    for (number, task) in claimed.iter().enumerate() {
        let seen = read(&store, task.lease.id).await?;
        let expected = match outcome(number) {
            TaskOutcome::Succeeded { result } => (TaskState::Succeeded, result, None, 1),
            TaskOutcome::Retry { error, .. } => (TaskState::Enqueued, None, Some(error), 1),
            TaskOutcome::Dead { error, .. } => (TaskState::Dead, None, Some(error), 1),
            TaskOutcome::Released => (TaskState::Pending, None, None, 0),
        };
        let seen = (seen.info.state, seen.result, seen.info.last_error, seen.info.attempt_count);
        ensure_same(&format!("task {number} of a batch"), seen, expected)?;
    }
    Ok(())
}
