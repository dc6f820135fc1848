//! Claims of tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use postrider_core::task::{
    ClaimTasks, Finish, Heartbeat, NewTask, TaskId, TaskOutcome, TaskStanding, TaskState, TaskStore,
};
use postrider_core::{Priority, RetryStrategy};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, LEASE, MINUTE};
use super::steps::{
    Between, asking, claim, claim_one, claim_this, end, ensure_left, ensure_none, ensure_refused, ensure_state, info,
    make, make_all, make_plain, only, plain, retry, sorted, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

pub(super) async fn a_claim_returns_all_that_a_worker_needs<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("told")?);
    let strategy = RetryStrategy::constant(Duration::from_secs(5)).with_max_attempts(4);
    let task = NewTask::of(task_type.clone(), "{}")
        .priority(Priority::new(3)?)
        .retry_strategy(strategy.clone())
        .ordering_key("customer-7")?
        .deadline_in(HOUR)
        .tag("vip");
    let id = make(&store, task.clone()).await?;
    let made = info(&store, id).await?;
    let mut claiming = Between::begin(&store).await?;
    let claimed = claim_this(&store, &task_type, id).await?;
    let seen = info(&store, id).await?;
    claiming.ensure(&store, "started_at", seen.started_at, Duration::ZERO).await?;
    claiming.ensure(&store, "lease_expires_at", seen.lease_expires_at, LEASE).await?;
    ensure_same("the state", seen.state, TaskState::Processing)?;
    ensure_same("the worker", seen.worker.as_deref(), Some("worker-1"))?;
    ensure_same("the attempts begun", seen.attempt_count, 1)?;

    ensure_same("the payload", &claimed.payload, &task.payload)?;
    ensure_same("the attempt", (claimed.attempt_count, claimed.max_attempts), (1, 4))?;
    ensure_same("the retry strategy", claimed.retry_strategy, Some(strategy))?;
    ensure_same("the priority", claimed.priority, task.priority)?;
    ensure_same("the ordering key", claimed.ordering_key, task.ordering_key)?;
    ensure_same("the tags", claimed.tags, task.tags)?;
    ensure_same("when it was made", claimed.created_at, made.created_at)?;
    ensure_same("when it was due", claimed.scheduled_for, made.scheduled_for)?;
    ensure(claimed.since_first_attempt < MINUTE, || {
        format!("the first attempt, which is this one, began {:?} ago", claimed.since_first_attempt)
    })?;
    ensure_left("the time until the deadline", claimed.time_left, HOUR)?;

    end(&store, claimed.lease, retry(Duration::ZERO)).await?;
    fixture.elapse(MINUTE).await;
    let again = claim_this(&store, &task_type, id).await?;
    ensure(again.since_first_attempt >= MINUTE, || {
        format!("the first attempt began {:?} ago, not a minute or more", again.since_first_attempt)
    })?;
    ensure_left("the time until the deadline", again.time_left, HOUR - MINUTE)?;
    ensure(again.lease.token != claimed.lease.token, || "two claims have the same token".into())
}

pub(super) async fn every_claim_goes_to_one_worker<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("race")?);
    let ids = make_all(&stores[0], (0..200).map(|_| plain(&task_type)).collect()).await?;
    let claimers = (0..8).map(|worker| {
        let (store, task_type) = (&stores[worker % stores.len()], &task_type);
        async move {
            let mut claimed: Vec<TaskId> = Vec::new();
            loop {
                let more = claim(store, task_type, 7).await?;
                if more.is_empty() {
                    return Ok::<_, Stop>(claimed);
                }
                claimed.extend(more.iter().map(|task| task.lease.id));
            }
        }
    });
    let mut claims: BTreeMap<TaskId, usize> = ids.iter().map(|id| (*id, 0)).collect();
    for id in try_join_all(claimers).await?.into_iter().flatten() {
        *claims.entry(id).or_default() += 1;
    }
    let wrong: Vec<_> = claims.iter().filter(|(_, count)| **count != 1).take(5).collect();
    ensure(wrong.is_empty(), || format!("tasks and how often they were claimed, which should be once: {wrong:?}"))
}

pub(super) async fn only_requested_types_are_claimed<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let store = fixture.open().await?;
    let (a, b, c) = (fixture.task_type("a")?, fixture.task_type("b")?, fixture.task_type("c")?);
    let mut ids = Vec::new();
    for task_type in [&a, &b, &c] {
        ids.push(make_plain(&store, task_type).await?);
    }
    let claimed = store.claim(asking(&[&a, &c], 10), soon()).await?.claimed;
    let seen = sorted(claimed.iter().map(|task| task.lease.id));
    ensure_same("what was claimed of two types", seen, sorted([ids[0], ids[2]]))?;
    ensure_state(&store, ids[1], TaskState::Pending).await?;
    let nothing = store.claim(asking(&[], 10), soon()).await?.claimed;
    ensure(nothing.is_empty(), || format!("a claim of no type returned {nothing:?}"))?;
    drop(claim_this(&store, &b, ids[1]).await?);
    Ok(())
}

pub(super) async fn a_claim_returns_at_most_its_maximum<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, a, b) = (fixture.open().await?, fixture.task_type("a")?, fixture.task_type("b")?);
    let tasks = (0..6).map(|number| plain(if number % 2 == 0 { &a } else { &b }));
    make_all(&store, tasks.collect()).await?;
    for expected in [4, 2, 0] {
        let claimed = store.claim(asking(&[&a, &b], 4), soon()).await?.claimed;
        ensure_same("the number of tasks of a claim of four", claimed.len(), expected)?;
    }
    Ok(())
}

pub(super) async fn urgent_tasks_go_first<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("urgent")?);
    for priority in [4, 9, 0, 7, 2, 8, 1, 6, 3, 5] {
        make(&store, plain(&task_type).priority(Priority::new(priority)?)).await?;
    }
    let mut order = Vec::new();
    for _ in 0..10 {
        order.push(claim_one(&store, &task_type).await?.priority.get());
    }
    // Sometimes the least urgent goes first, so one of ten may be out of order.
    let falls_but_for = |left_out: usize| {
        let rest: Vec<u8> = order.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, p)| *p).collect();
        rest.is_sorted_by(|a, b| a > b)
    };
    ensure((0..10).any(falls_but_for), || format!("tasks of priorities 0 to 9 were claimed in the order {order:?}"))
}

pub(super) async fn the_least_urgent_is_not_starved<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("starved")?);
    let patient = make(&store, plain(&task_type).priority(Priority::LOWEST)).await?;
    let urgent = || plain(&task_type).priority(Priority::HIGHEST);
    make_all(&store, (0..4).map(|_| urgent()).collect()).await?;
    for _ in 0..100 {
        make(&store, urgent()).await?;
        let claimed = claim_one(&store, &task_type).await?;
        end(&store, claimed.lease, succeeded()).await?;
        if claimed.lease.id == patient {
            return Ok(());
        }
    }
    violation("a hundred urgent tasks were claimed, and the least urgent never")
}

pub(super) async fn attempts_are_ended_and_claimed_in_one_call<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("both")?);
    // One key: the second can only be claimed if the first has ended before.
    let tasks = (0..3).map(|_| plain(&task_type).ordering_key("k")).collect::<Result<Vec<_>, _>>()?;
    let ids = make_all(&store, tasks).await?;
    let mut claimed = claim_this(&store, &task_type, ids[0]).await?;
    for next in [Some(ids[1]), Some(ids[2]), None] {
        let finished = vec![Finish { lease: claimed.lease, outcome: succeeded() }];
        let both = store.finish_and_claim(finished, Some(asking(&[&task_type], 5)), soon()).await?;
        ensure_same("the end", only(both.finished)?, TaskStanding::Held)?;
        let seen: Vec<TaskId> = both.claimed.iter().map(|task| task.lease.id).collect();
        ensure_same("what was claimed with it", seen, next.into_iter().collect())?;
        match both.claimed.into_iter().next() {
            Some(task) => claimed = task,
            None => break,
        }
    }
    ensure_none(&store, &task_type, "all three have succeeded").await
}

pub(super) async fn a_lease_without_length_is_refused<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("zero")?);
    let id = make_plain(&store, &task_type).await?;
    for lease in [Duration::ZERO, Duration::MAX] {
        let claim = ClaimTasks { lease, ..asking(&[&task_type], 1) };
        ensure_refused(&format!("a claim for {lease:?}"), &store.claim(claim, soon()).await)?;
        let by_id = store.claim_by_id(&[id], lease, "worker-1", soon()).await;
        ensure_refused(&format!("a claim by id for {lease:?}"), &by_id)?;
    }
    ensure_state(&store, id, TaskState::Pending).await?;
    let lease = claim_one(&store, &task_type).await?.lease;
    let heartbeat = Heartbeat { lease, progress: None };
    ensure_refused("a heartbeat for no time", &store.heartbeat(vec![heartbeat], Duration::ZERO, soon()).await)?;
    end(&store, lease, TaskOutcome::Released).await
}
