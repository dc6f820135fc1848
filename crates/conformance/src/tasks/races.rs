//! What several do to the same tasks at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use postrider_core::task::{ClaimedTask, DeadReason, TaskFilter, TaskId, TaskStanding, TaskState, TaskStore, TaskType};
use tokio::time::Instant;

use super::TaskHarness;
use super::fixture::{Fixture, INSTANT, LEASE};
use super::steps::{
    cancel, claim, claim_id, dead, end, ensure_state, finish, list_all, make, make_all, plain, reap, retry, succeeded,
};
use crate::probe::{Check, Stop, TIME_LIMIT, ensure_same, soon, violation};

pub(super) async fn concurrent_ends_of_an_attempt_take_effect_once<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("end")?);
    for round in 0..20 {
        let key = format!("key {round}");
        let keyed = [plain(&task_type).ordering_key(&key)?, plain(&task_type).ordering_key(&key)?];
        let ids = make_all(&stores[0], keyed.to_vec()).await?;
        let lease = claim_id(&stores[0], ids[0]).await?.lease;
        fixture.elapse(LEASE + INSTANT).await;
        let canceling = async {
            let canceled = cancel(&stores[3], ids[0]).await?;
            Ok::<_, Stop>((canceled.is_ok(), TaskState::Canceled))
        };
        let ((done, died), (reaped, canceled)) = try_join(
            try_join(finish(&stores[0], lease, succeeded()), finish(&stores[1], lease, dead(DeadReason::Permanent))),
            try_join(reap(&stores[2], lease, dead(DeadReason::LeaseLost)), canceling),
        )
        .await?;
        let is_held = |standing| standing == TaskStanding::Held;
        let answers = [
            (is_held(done), TaskState::Succeeded),
            (is_held(died), TaskState::Dead),
            (is_held(reaped), TaskState::Dead),
            canceled,
        ];
        let winners: Vec<TaskState> = answers.iter().filter(|(won, _)| *won).map(|(_, state)| *state).collect();
        ensure_same("the number of those who ended one attempt", winners.len(), 1)?;
        ensure_state(&stores[0], ids[0], winners[0]).await?;
        ensure_same("the number of attempts", stores[0].attempts(ids[0], soon()).await?.len(), 1)?;
        end(&stores[0], claim_id(&stores[0], ids[1]).await?.lease, succeeded()).await?;
    }
    Ok(())
}

/// Brings one attempt to some end. Answers whether it was the task's last.
async fn end_somehow<S: TaskStore>(store: &S, task: &ClaimedTask, number: usize) -> Result<bool, Stop> {
    match number % 5 {
        0 if task.attempt_count < task.max_attempts => {
            end(store, task.lease, retry(Duration::ZERO)).await?;
            return Ok(false);
        }
        1 => end(store, task.lease, dead(DeadReason::Permanent)).await?,
        2 => drop(cancel(store, task.lease.id).await??),
        _ => end(store, task.lease, succeeded()).await?,
    }
    Ok(true)
}

async fn make_one_by_one<S: TaskStore>(store: &S, task_type: &TaskType, count: usize) -> Result<Vec<TaskId>, Stop> {
    let mut ids = Vec::new();
    for number in 0..count {
        ids.push(make(store, plain(task_type).ordering_key(format!("key {}", number % 2))?).await?);
        // Workers are to find the key free again and again.
        tokio::task::yield_now().await;
    }
    Ok(ids)
}

pub(super) async fn a_key_always_makes_progress<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(6).await?, fixture.task_type("turn")?);
    let ended = AtomicUsize::new(0);
    let workers = stores[3..].iter().map(|store| {
        let (task_type, ended) = (&task_type, &ended);
        async move {
            let mut progress = (0, Instant::now());
            let mut number = 0;
            while progress.0 < 60 {
                for task in claim(store, task_type, 2).await? {
                    number += 1;
                    if end_somehow(store, &task, number).await? {
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                }
                let now = ended.load(Ordering::SeqCst);
                if now > progress.0 {
                    progress = (now, Instant::now());
                } else if progress.1.elapsed() > TIME_LIMIT / 4 {
                    return violation(format!(
                        "{now} of 60 tasks of two keys have ended, and the next cannot be claimed"
                    ));
                }
                tokio::task::yield_now().await;
            }
            Ok::<_, Stop>(())
        }
    });
    let creators = stores[..3].iter().map(|store| make_one_by_one(store, &task_type, 20));
    let (made, _) = try_join(try_join_all(creators), try_join_all(workers)).await?;
    ensure_same("the number of tasks that were made", made.concat().len(), 60)?;
    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    for task in list_all(&stores[0], &filter).await? {
        ensure_same("whether a task has ended", task.state.is_terminal(), true)?;
    }
    Ok(())
}
