//! What is removed after its end, and what is not.

use std::time::Duration;

use postrider_core::MessagingError;
use postrider_core::task::{DeadReason, TaskId, TaskState, TaskStore};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR};
use super::steps::{
    cancel, claim_id, dead, end, ensure_state, make, make_all, make_plain, plain, replay, retry, succeeded,
};
use crate::probe::{Check, ensure, ensure_same, soon};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn only_old_ended_tasks_are_forgotten_with_their_history<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("old")?);
    // What other tests have left is older than anything here.
    fixture.elapse(HOUR).await;
    store.forget_finished(Duration::ZERO, soon()).await?;
    // More than a store should remove in one go.
    for _ in 0..5 {
        let ids = make_all(&store, (0..500).map(|_| plain(&task_type)).collect()).await?;
        for row in store.cancel(&ids, soon()).await? {
            row?;
        }
    }
    let done = make(&store, plain(&task_type).idempotency_key("done")?).await?;
    end(&store, claim_id(&store, done).await?.lease, retry(Duration::ZERO)).await?;
    end(&store, claim_id(&store, done).await?.lease, dead(DeadReason::Permanent)).await?;
    store.edit_payload(done, "other".into(), soon()).await?;
    replay(&store, done).await??;
    end(&store, claim_id(&store, done).await?.lease, succeeded()).await?;
    let canceled = make_plain(&store, &task_type).await?;
    cancel(&store, canceled).await??;
    let died = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, died).await?.lease, dead(DeadReason::Permanent)).await?;
    let waiting = make(&store, plain(&task_type).scheduled_in(DAY * 100)).await?;
    // Made as long ago as the others, and ended lately.
    let long = make_plain(&store, &task_type).await?;
    let lease = claim_id(&store, long).await?.lease;

    fixture.elapse(DAY * 10).await;
    end(&store, lease, succeeded()).await?;
    let young = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, young).await?.lease, succeeded()).await?;
    fixture.elapse(DAY).await;
    ensure_same("the number of forgotten tasks", store.forget_finished(DAY * 5, soon()).await?, 2502)?;
    for id in [done, canceled] {
        ensure_same("a forgotten task", store.get(id, soon()).await?, None)?;
        is_gone("attempts", id, store.attempts(id, soon()).await)?;
        is_gone("revisions", id, store.revisions(id, soon()).await)?;
    }
    ensure_state(&store, died, TaskState::Dead).await?;
    ensure_same("the history of a dead task", store.attempts(died, soon()).await?.len(), 1)?;
    ensure_state(&store, waiting, TaskState::Pending).await?;
    ensure_state(&store, long, TaskState::Succeeded).await?;
    ensure_state(&store, young, TaskState::Succeeded).await?;
    ensure_same("what is left to forget", store.forget_finished(DAY * 5, soon()).await?, 0)?;
    // The idempotency key was forgotten with the task.
    make(&store, plain(&task_type).idempotency_key("done")?).await?;
    Ok(())
}

/// Nothing is known of a task that was forgotten, however that is said.
fn is_gone<T>(what: &str, id: TaskId, answer: Result<Vec<T>, MessagingError>) -> Check {
    let is_gone = match answer {
        Ok(rows) => rows.is_empty(),
        Err(error) => matches!(error, MessagingError::TaskNotFound { .. }),
    };
    ensure(is_gone, || format!("the {what} of task {id} are known although it was forgotten"))
}
