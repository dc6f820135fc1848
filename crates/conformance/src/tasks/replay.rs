//! Replays of dead tasks, with another payload or the same.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{AttemptOutcome, DeadReason, TaskId, TaskOutcome, TaskState, TaskStore, TaskType};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, MANY, MINUTE};
use super::steps::{
    Between, cancel, claim_id, claim_this, dead, end, ensure_conflict, ensure_not_found, ensure_state, info, make,
    make_plain, plain, read, replay, retry, succeeded,
};
use crate::probe::{Check, Stop, ensure_same, soon};

async fn make_dead<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<TaskId, Stop> {
    let id = make_plain(store, task_type).await?;
    end(store, claim_id(store, id).await?.lease, dead(DeadReason::Permanent)).await?;
    Ok(id)
}

pub(super) async fn a_dead_task_can_be_replayed<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("replayed")?);
    let id = make(&store, plain(&task_type).max_attempts(2).deadline_in(HOUR)).await?;
    end(&store, claim_id(&store, id).await?.lease, retry(Duration::ZERO)).await?;
    end(&store, claim_id(&store, id).await?.lease, dead(DeadReason::MaxAttempts)).await?;
    fixture.elapse(HOUR * 2).await;
    let mut replaying = Between::begin(&store).await?;
    replay(&store, id).await??;
    let seen = info(&store, id).await?;
    ensure_same("the state", seen.state, TaskState::Pending)?;
    replaying.ensure(&store, "scheduled_for", Some(seen.scheduled_for), Duration::ZERO).await?;
    ensure_same("the counts", (seen.attempt_count, seen.max_attempts, seen.replay_count), (0, 2, 1))?;
    ensure_same("the deadline that it may have missed", seen.deadline, None)?;
    ensure_same("the end", (seen.finished_at, seen.dead_reason), (None, None))?;
    ensure_same("the last error", seen.last_error.as_deref(), Some("no such address"))?;
    ensure_same(
        "the tasks that died at their deadline",
        store.expire_overdue(MANY, soon()).await?.contains(&id),
        false,
    )?;

    let claimed = claim_this(&store, &task_type, id).await?;
    ensure_same("the attempt", (claimed.attempt_count, claimed.max_attempts), (1, 2))?;
    ensure_same("the time until the deadline", claimed.time_left, None)?;
    end(&store, claimed.lease, retry(Duration::ZERO)).await?;
    end(&store, claim_this(&store, &task_type, id).await?.lease, succeeded()).await?;
    let attempts = store.attempts(id, soon()).await?;
    let seen: Vec<_> = attempts.iter().map(|it| (it.replay, it.attempt, it.outcome)).collect();
    let (failed, succeeded) = (AttemptOutcome::Failed, AttemptOutcome::Succeeded);
    let expected = vec![(0, 1, failed), (0, 2, failed), (1, 1, failed), (1, 2, succeeded)];
    ensure_same("the history over a replay", seen, expected)
}

pub(super) async fn a_task_that_is_not_dead_is_not_replayed<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("other")?);
    let pending = make_plain(&store, &task_type).await?;
    let failed = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(Duration::ZERO)).await?;
    let running = make_plain(&store, &task_type).await?;
    drop(claim_id(&store, running).await?);
    let done = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, done).await?.lease, succeeded()).await?;
    let canceled = make_plain(&store, &task_type).await?;
    cancel(&store, canceled).await??;
    let (died, unknown) = (make_dead(&store, &task_type).await?, TaskId::generate());
    let others = [
        (pending, TaskState::Pending),
        (failed, TaskState::Enqueued),
        (running, TaskState::Processing),
        (done, TaskState::Succeeded),
        (canceled, TaskState::Canceled),
    ];
    let ids: Vec<TaskId> = others.iter().map(|(id, _)| *id).chain([unknown, died]).collect();
    let rows = store.replay(&ids, soon()).await?;
    ensure_same("the number of answers", rows.len(), ids.len())?;
    for ((id, state), row) in others.iter().zip(&rows) {
        ensure_conflict("a replay", row, *id, *state)?;
        ensure_state(&store, *id, *state).await?;
        let edited = store.edit_payload(*id, Bytes::from_static(b"other"), soon()).await;
        ensure_conflict("an edit", &edited, *id, *state)?;
        ensure_same("its payload", read(&store, *id).await?.payload, Bytes::from_static(br#"{"order":7}"#))?;
    }
    ensure_not_found("a replay", &rows[5], unknown)?;
    ensure_not_found("an edit", &store.edit_payload(unknown, Bytes::new(), soon()).await, unknown)?;
    ensure_same("the replay of a dead task, beside others,", rows[6].is_ok(), true)?;
    ensure_state(&store, died, TaskState::Pending).await
}

pub(super) async fn a_replayed_task_can_die_and_be_replayed_again<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("again")?);
    let id = make_dead(&store, &task_type).await?;
    for count in 1..=3 {
        replay(&store, id).await??;
        let lease = claim_this(&store, &task_type, id).await?.lease;
        let error = format!("death {count}");
        end(&store, lease, TaskOutcome::Dead { reason: DeadReason::Permanent, error: error.clone() }).await?;
        let seen = info(&store, id).await?;
        ensure_same("the replays", seen.replay_count, count)?;
        ensure_same("the attempts begun", seen.attempt_count, 1)?;
        ensure_same("the last error", seen.last_error, Some(error))?;
    }
    let attempts = store.attempts(id, soon()).await?;
    let seen: Vec<_> = attempts.iter().map(|it| (it.replay, it.attempt)).collect();
    ensure_same("the history", seen, vec![(0, 1), (1, 1), (2, 1), (3, 1)])
}

pub(super) async fn the_payload_of_a_dead_task_can_be_edited<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("edited")?);
    let id = make_dead(&store, &task_type).await?;
    let (first, second) = (Bytes::from_static(b"\x00first"), Bytes::from_static(b"second"));
    let mut editing = Between::begin(&store).await?;
    ensure_same("the first revision", store.edit_payload(id, first.clone(), soon()).await?, 1)?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("the second revision", store.edit_payload(id, second.clone(), soon()).await?, 2)?;
    let task = read(&store, id).await?;
    ensure_same("the payload", &task.payload, &second)?;
    ensure_same("the revision", task.info.revision, 2)?;
    ensure_same("the state", task.info.state, TaskState::Dead)?;

    let revisions = store.revisions(id, soon()).await?;
    let seen: Vec<_> = revisions.iter().map(|it| (it.revision, it.payload.clone())).collect();
    ensure_same("the payloads before", seen, vec![(0, Bytes::from_static(br#"{"order":7}"#)), (1, first)])?;
    let [made, edited] = [revisions[0].replaced_at, revisions[1].replaced_at];
    editing.ensure(&store, "when the first was replaced", Some(made), Duration::ZERO).await?;
    ensure_same("whether a minute passed between", edited.since(made) >= MINUTE, true)?;

    replay(&store, id).await??;
    let claimed = claim_this(&store, &task_type, id).await?;
    ensure_same("the payload of the new attempt", claimed.payload, second)?;
    end(&store, claimed.lease, succeeded()).await
}
