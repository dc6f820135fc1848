//! Tasks of one key: one at a time, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use postrider_core::MessagingError;
use postrider_core::task::{
    DeadReason, NewTask, TaskFilter, TaskId, TaskOutcome, TaskStanding, TaskState, TaskStore, TaskType,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::steps::{
    cancel, claim, claim_id, claim_this, dead, end, ensure_none, ensure_state, info, list_all, make, make_all,
    make_plain, plain, reap, replay, retry, sorted, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

/// Makes `count` tasks of one key in one batch.
async fn queue_up<S: TaskStore>(store: &S, task_type: &TaskType, count: usize) -> Result<Vec<TaskId>, Stop> {
    let tasks = (0..count).map(|_| plain(task_type).ordering_key("k")).collect::<Result<Vec<_>, _>>()?;
    make_all(store, tasks).await
}

/// Runs all that is left of a key, and ends the test unless it is these in this order, one at a time.
async fn run_in_order<S: TaskStore>(store: &S, task_type: &TaskType, expected: &[TaskId]) -> Check {
    let mut order = Vec::new();
    loop {
        let claimed = claim(store, task_type, 10).await?;
        ensure(claimed.len() <= 1, || format!("{} tasks of one key were claimed at once", claimed.len()))?;
        let Some(task) = claimed.first() else { break };
        order.push(task.lease.id);
        ensure_none(store, task_type, "another task of its key is worked on").await?;
        end(store, task.lease, succeeded()).await?;
    }
    ensure_same("the order in which the tasks of a key ran", order, expected.to_vec())
}

pub(super) async fn tasks_of_a_key_run_one_at_a_time_and_in_order<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("key")?);
    let mut ids = queue_up(&store, &task_type, 4).await?;
    ids.push(make(&other, plain(&task_type).ordering_key("k")?).await?);
    let mut blocked = Vec::new();
    for id in &ids {
        blocked.push(info(&store, *id).await?.is_blocked);
    }
    ensure_same("who waits for another", blocked, vec![false, true, true, true, true])?;
    run_in_order(&store, &task_type, &ids).await?;
    // The key is free again.
    let next = make(&store, plain(&task_type).ordering_key("k")?).await?;
    run_in_order(&store, &task_type, &[next]).await
}

pub(super) async fn a_key_is_held_over_retries_and_releases<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("retry")?);
    let ids = queue_up(&store, &task_type, 2).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    end(&store, lease, retry(MINUTE)).await?;
    ensure_none(&store, &task_type, "the first of its key is tried again").await?;
    fixture.elapse(MINUTE + INSTANT).await;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    end(&store, lease, TaskOutcome::Released).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    ensure_same("the reaping", reap(&store, lease, retry(Duration::ZERO)).await?, TaskStanding::Held)?;
    run_in_order(&store, &task_type, &ids).await
}

pub(super) async fn a_key_waits_for_the_time_of_its_first_task<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("later")?);
    let first = make(&store, plain(&task_type).ordering_key("k")?.scheduled_in(MINUTE)).await?;
    let second = make(&store, plain(&task_type).ordering_key("k")?).await?;
    ensure_none(&store, &task_type, "the first of its key is not due").await?;
    fixture.elapse(MINUTE + INSTANT).await;
    run_in_order(&store, &task_type, &[first, second]).await
}

pub(super) async fn every_death_frees_the_key<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("death")?);
    let ids = queue_up(&store, &task_type, 3).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    let lease = claim_this(&store, &task_type, ids[1]).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    ensure_same("the reaping", reap(&store, lease, dead(DeadReason::LeaseLost)).await?, TaskStanding::Held)?;
    run_in_order(&store, &task_type, &ids[2..]).await?;

    let overdue = make(&store, plain(&task_type).ordering_key("k")?.deadline_in(MINUTE)).await?;
    let running = make(&store, plain(&task_type).ordering_key("k")?.deadline_in(HOUR)).await?;
    let next = make(&store, plain(&task_type).ordering_key("k")?).await?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_none(&store, &task_type, "the first of its key is past its deadline and was not expired").await?;
    drop(store.expire_overdue(MANY, soon()).await?);
    ensure_state(&store, overdue, TaskState::Dead).await?;
    drop(claim_this(&store, &task_type, running).await?);
    fixture.elapse(HOUR).await;
    drop(store.expire_overdue(MANY, soon()).await?);
    ensure_state(&store, running, TaskState::Dead).await?;
    run_in_order(&store, &task_type, &[next]).await
}

pub(super) async fn a_canceled_first_task_frees_the_key<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("head")?);
    let ids = queue_up(&store, &task_type, 5).await?;
    cancel(&store, ids[0]).await??;
    drop(claim_this(&store, &task_type, ids[1]).await?);
    // The next one becomes claimable when the running one is canceled, not before.
    ensure_none(&store, &task_type, "another task of its key is worked on").await?;
    cancel(&store, ids[1]).await??;
    let lease = claim_this(&store, &task_type, ids[2]).await?.lease;
    end(&store, lease, retry(HOUR)).await?;
    cancel(&store, ids[2]).await??;
    run_in_order(&store, &task_type, &ids[3..]).await
}

pub(super) async fn a_canceled_task_in_the_middle_is_passed_over<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("middle")?);
    let ids = queue_up(&store, &task_type, 5).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    for row in store.cancel(&[ids[1], ids[3]], soon()).await? {
        row?;
    }
    ensure_none(&store, &task_type, "another task of its key is worked on").await?;
    end(&store, lease, succeeded()).await?;
    run_in_order(&store, &task_type, &[ids[2], ids[4]]).await?;
    // A whole key at once.
    let ids = queue_up(&store, &task_type, 4).await?;
    for row in store.cancel(&ids[..3], soon()).await? {
        row?;
    }
    run_in_order(&store, &task_type, &ids[3..]).await
}

pub(super) async fn a_replayed_task_joins_the_end_of_its_key<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("replay")?);
    let ids = queue_up(&store, &task_type, 3).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    replay(&store, ids[0]).await??;
    ensure(info(&store, ids[0]).await?.is_blocked, || "a replayed task does not wait for its key".into())?;
    let last = make(&store, plain(&task_type).ordering_key("k")?).await?;
    run_in_order(&store, &task_type, &[ids[1], ids[2], ids[0], last]).await?;
    // Alone with its key, it is not blocked.
    let alone = queue_up(&store, &task_type, 1).await?[0];
    let lease = claim_this(&store, &task_type, alone).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    replay(&store, alone).await??;
    run_in_order(&store, &task_type, &[alone]).await
}

pub(super) async fn other_keys_and_tasks_without_a_key_are_not_blocked<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type, other_type) = (fixture.open().await?, fixture.task_type("a")?, fixture.task_type("b")?);
    let ids = queue_up(&store, &task_type, 2).await?;
    let lease = claim_this(&store, &task_type, ids[0]).await?.lease;
    let other_key = make(&store, plain(&task_type).ordering_key("l")?).await?;
    let without = make_plain(&store, &task_type).await?;
    let same_key = make(&store, plain(&other_type).ordering_key("k")?).await?;
    let claimed = claim(&store, &task_type, 10).await?;
    let seen = sorted(claimed.iter().map(|task| task.lease.id));
    ensure_same("what was claimed beside a held key", seen, sorted([other_key, without]))?;
    drop(claim_this(&store, &other_type, same_key).await?);
    ensure_same("the first of its key", claim(&store, &task_type, 10).await?.len(), 0)?;
    end(&store, lease, succeeded()).await?;
    drop(claim_this(&store, &task_type, ids[1]).await?);
    Ok(())
}

pub(super) async fn an_ended_key_is_free_for_a_claim_by_id<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open_with(fixture.here()).await?, fixture.task_type("byid")?);
    let ids = queue_up(&store, &task_type, 3).await?;
    for (at, id) in ids.iter().enumerate() {
        let lease = claim_id(&store, *id).await?.lease;
        for later in &ids[at + 1..] {
            ensure(info(&store, *later).await?.is_blocked, || "two tasks of a key are free at once".into())?;
        }
        end(&store, lease, succeeded()).await?;
    }
    Ok(())
}

pub(super) async fn concurrent_creators_share_a_key<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("made")?);
    let creators = stores.iter().enumerate().map(|(creator, store)| {
        let task_type = &task_type;
        async move {
            let mut ids = Vec::new();
            for number in 0..8 {
                let mut tasks = Vec::new();
                for part in 0..2 {
                    let payload = Bytes::from(format!("{creator} {number} {part}"));
                    tasks.push(NewTask::of(task_type.clone(), payload).ordering_key("k")?);
                }
                ids.extend(make_all(store, tasks).await?);
            }
            Ok::<_, Stop>(ids)
        }
    });
    let made = try_join_all(creators).await?;
    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    let free = list_all(&stores[0], &filter).await?.iter().filter(|task| !task.is_blocked).count();
    ensure_same("the number of unblocked tasks of one key", free, 1)?;
    let mut order = Vec::new();
    loop {
        let claimed = claim(&stores[0], &task_type, 10).await?;
        ensure(claimed.len() <= 1, || format!("{} tasks of one key were claimed at once", claimed.len()))?;
        let Some(task) = claimed.first() else { break };
        order.push(task.lease.id);
        end(&stores[0], task.lease, succeeded()).await?;
    }
    ensure_same("the number of tasks that ran", order.len(), 64)?;
    for ids in made {
        let own: Vec<TaskId> = order.iter().copied().filter(|id| ids.contains(id)).collect();
        ensure_same("the order of what one creator made", own, ids)?;
    }
    Ok(())
}

/// What runs at this moment, by key, and what has run.
#[derive(Default)]
struct Running {
    keys: BTreeSet<String>,
    order: BTreeMap<String, Vec<Bytes>>,
}

pub(super) async fn concurrent_workers_never_share_a_key<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("run")?);
    let mut tasks = Vec::new();
    for number in 0..10u8 {
        for key in 0..6 {
            tasks.push(NewTask::of(task_type.clone(), vec![number]).ordering_key(format!("key {key}"))?);
        }
    }
    make_all(&stores[0], tasks).await?;
    let running = Mutex::new(Running::default());
    let lock = || running.lock().unwrap_or_else(PoisonError::into_inner);
    let is_done = || lock().order.values().map(Vec::len).sum::<usize>() == 60;
    let workers = stores.iter().map(|store| {
        let (task_type, lock, is_done) = (&task_type, &lock, &is_done);
        async move {
            let mut idle = 0;
            while !is_done() {
                let claimed = claim(store, task_type, 3).await?;
                // Other workers may hold every key for a while, but not for this many claims.
                idle = if claimed.is_empty() { idle + 1 } else { 0 };
                if idle > 100_000 {
                    return violation("nothing can be claimed any more, and not everything was");
                }
                for task in &claimed {
                    let key = task.ordering_key.as_ref().map(ToString::to_string).unwrap_or_default();
                    let mut running = lock();
                    ensure(running.keys.insert(key.clone()), || format!("two workers have tasks of {key}"))?;
                    running.order.entry(key).or_default().push(task.payload.clone());
                }
                for task in claimed {
                    tokio::task::yield_now().await;
                    let key = task.ordering_key.as_ref().map(ToString::to_string).unwrap_or_default();
                    lock().keys.remove(&key);
                    end(store, task.lease, succeeded()).await?;
                }
            }
            Ok::<_, Stop>(())
        }
    });
    try_join_all(workers).await?;
    let expected: Vec<Bytes> = (0..10u8).map(|number| Bytes::from(vec![number])).collect();
    for (key, order) in &lock().order {
        ensure(*order == expected, || format!("the tasks of {key} ran in the order {order:?}"))?;
    }
    Ok(())
}

pub(super) async fn a_refused_or_repeated_task_takes_no_place_in_its_key<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("gap")?);
    let keyed = || plain(&task_type).ordering_key("k");
    let first = make(&store, keyed()?.idempotency_key("once")?).await?;
    let tasks = vec![keyed()?.tag("bad\ntag"), keyed()?.idempotency_key("once")?, keyed()?];
    let last = tasks[2].id;
    let rows = store.create(tasks, soon()).await?;
    let seen: Vec<Result<TaskId, &MessagingError>> = rows.iter().map(|row| row.as_ref().map(|it| it.id)).collect();
    ensure(matches!(seen[..], [Err(_), Ok(repeated), Ok(new)] if (repeated, new) == (first, last)), || {
        format!("a batch with a refused, a repeated and a new task was answered {seen:?}")
    })?;
    run_in_order(&store, &task_type, &[first, last]).await
}
