//! Claims of tasks by id.

use futures_util::future::try_join_all;
use postrider_core::task::{ClaimAnswer, DeadReason, TaskId, TaskState};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, MINUTE};
use super::steps::{
    cancel, claim_id, claim_ids, dead, end, ensure_left, ensure_state, info, make, make_plain, plain, retry, succeeded,
};
use crate::probe::{Check, ensure, ensure_same, violation};

pub(super) async fn a_task_is_claimed_by_its_id<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    for (mode, routes) in [("polling", fixture.polling()), ("queue", fixture.here())] {
        let (store, task_type) = (fixture.open_with(routes).await?, fixture.task_type(mode)?);
        let (first, second) = (make_plain(&store, &task_type).await?, make_plain(&store, &task_type).await?);
        let mut answers = claim_ids(&store, &[second, first]).await?.into_iter();
        for id in [second, first] {
            let Some(ClaimAnswer::Claimed(claimed)) = answers.next() else {
                return violation(format!("in {mode} mode, a due task was not claimed by its id"));
            };
            ensure_same("the task", claimed.lease.id, id)?;
            ensure_same("the attempt", claimed.attempt_count, 1)?;
            let seen = info(&store, id).await?;
            ensure_same("the state", seen.state, TaskState::Processing)?;
            ensure_same("the worker", seen.worker.as_deref(), Some("worker-1"))?;
            end(&store, claimed.lease, succeeded()).await?;
        }
    }
    Ok(())
}

pub(super) async fn a_task_that_is_not_due_reports_the_time_left<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("early")?);
    let later = make(&store, plain(&task_type).scheduled_in(HOUR)).await?;
    let failed = make_plain(&store, &task_type).await?;
    let lease = claim_id(&store, failed).await?.lease;
    end(&store, lease, retry(HOUR)).await?;
    fixture.elapse(HOUR - MINUTE).await;
    for answer in claim_ids(&store, &[later, failed]).await? {
        let ClaimAnswer::NotDue(left) = answer else {
            return violation(format!("a claim of a task that is due in a minute was answered {answer:?}"));
        };
        ensure_left("the time until it is due", Some(left), MINUTE)?;
    }
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("the attempt", claim_id(&store, later).await?.attempt_count, 1)?;
    ensure_same("the attempt", claim_id(&store, failed).await?.attempt_count, 2)
}

pub(super) async fn held_ended_or_blocked_tasks_are_not_claimed_by_id<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("not")?);
    let held = make_plain(&store, &task_type).await?;
    let lease = claim_id(&store, held).await?.lease;
    let done = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, done).await?.lease, succeeded()).await?;
    let died = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, died).await?.lease, dead(DeadReason::Permanent)).await?;
    let canceled = make_plain(&store, &task_type).await?;
    cancel(&store, canceled).await??;
    let head = make(&store, plain(&task_type).ordering_key("k")?).await?;
    let blocked = make(&store, plain(&task_type).ordering_key("k")?).await?;
    let late = make(&store, plain(&task_type).deadline_in(MINUTE)).await?;
    fixture.elapse(MINUTE + INSTANT).await;
    let due = make_plain(&store, &task_type).await?;
    let ids = [TaskId::generate(), held, done, died, canceled, blocked, late, due];
    let answers = claim_ids(&store, &ids).await?;
    let names = ["unknown", "held", "succeeded", "dead", "canceled", "blocked", "past its deadline"];
    for (name, answer) in names.iter().zip(&answers) {
        ensure_same(&format!("a claim of a task that is {name}"), answer, &ClaimAnswer::NotClaimable)?;
    }
    ensure(matches!(&answers[7], ClaimAnswer::Claimed(task) if task.lease.id == due), || {
        format!("a claim of a due task, beside others, was answered {:?}", answers[7])
    })?;
    // Its lease has expired but was not reaped: it is still held.
    end(&store, lease, succeeded()).await?;
    ensure_state(&store, head, TaskState::Pending).await
}

pub(super) async fn an_id_twice_in_a_call_is_claimed_once<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("twice")?);
    let (id, other) = (make_plain(&store, &task_type).await?, make_plain(&store, &task_type).await?);
    let answers = claim_ids(&store, &[id, other, id]).await?;
    let is_claimed = |answer: &ClaimAnswer| matches!(answer, ClaimAnswer::Claimed(_));
    ensure(is_claimed(&answers[1]) && is_claimed(&answers[0]) != is_claimed(&answers[2]), || {
        format!("a call with an id twice was answered {answers:?}")
    })?;
    ensure_same("the attempts begun", info(&store, id).await?.attempt_count, 1)
}

pub(super) async fn concurrent_claims_of_an_id_yield_one_worker<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("race")?);
    for _ in 0..10 {
        let id = make_plain(&stores[0], &task_type).await?;
        let ids = [id];
        let claims = try_join_all((0..8).map(|worker| claim_ids(&stores[worker % 4], &ids))).await?;
        let claimed = claims.iter().flatten().filter(|answer| matches!(answer, ClaimAnswer::Claimed(_))).count();
        ensure_same("the number of workers that have one task", claimed, 1)?;
    }
    Ok(())
}
