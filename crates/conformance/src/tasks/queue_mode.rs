//! Tasks that are sent to a queue in the store itself.

use std::time::Duration;

use futures_util::future::try_join_all;
use postrider_core::Priority;
use postrider_core::task::{DeadReason, TaskId, TaskOutcome, TaskStanding, TaskState, TaskStore, TaskType};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::messages::{drain, drain_tasks, enqueue_all};
use super::steps::{
    Between, claim_id, dead, end, ensure_left, ensure_state, info, make, make_all, make_plain, plain, reap, replay,
    retry, run_now, sorted, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon};

pub(super) async fn a_due_task_is_sent_to_its_queue_once<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other) = (fixture.open_with(fixture.here()).await?, fixture.open_with(fixture.here()).await?);
    let (queue, a, b) = (fixture.queue().await?, fixture.task_type("a")?, fixture.task_type("b")?);
    let due = [
        make(&store, plain(&a).priority(Priority::HIGHEST)).await?,
        make(&store, plain(&a)).await?,
        make(&store, plain(&b).priority(Priority::LOWEST).ordering_key("k")?).await?,
    ];
    let blocked = make(&store, plain(&b).ordering_key("k")?).await?;
    let later = make(&store, plain(&a).scheduled_in(HOUR)).await?;
    let late = make(&store, plain(&a).deadline_in(INSTANT)).await?;
    fixture.elapse(MINUTE).await;
    let mut sending = Between::begin(&store).await?;
    let enqueued = store.enqueue_due(MANY, soon()).await?;
    ensure_same("the number of tasks sent on their way", enqueued.count, 3)?;
    ensure_left("the time until the next is due", enqueued.next_due, HOUR - MINUTE)?;
    for id in due {
        let seen = info(&store, id).await?;
        ensure_same("the state of what was sent", seen.state, TaskState::Enqueued)?;
        sending.ensure(&store, "enqueued_at", seen.enqueued_at, Duration::ZERO).await?;
    }
    for id in [blocked, later, late] {
        ensure_state(&store, id, TaskState::Pending).await?;
    }
    for round in 0..2 {
        ensure_same("the number of tasks sent twice", enqueue_all(&other).await?, 0)?;
        for (task_type, ids) in [(&a, &due[..2]), (&b, &due[2..])] {
            let messages = drain(&queue, &fixture.here().queue(task_type)?).await?;
            let mut seen = Vec::new();
            for message in &messages {
                ensure(message.is_json, || format!("a message of a task is not JSON: {message:?}"))?;
                seen.push((message.task()?, message.priority));
            }
            let mut expected = Vec::new();
            for id in ids.iter().filter(|_| round == 0) {
                expected.push((*id, info(&store, *id).await?.priority));
            }
            ensure_same("the tasks and priorities of the messages", sorted(seen), sorted(expected))?;
        }
    }
    // The message finds its task.
    for id in due {
        end(&store, claim_id(&store, id).await?.lease, succeeded()).await?;
    }
    Ok(())
}

pub(super) async fn a_call_sends_at_most_its_limit<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, queue) = (fixture.open_with(fixture.here()).await?, fixture.queue().await?);
    let task_type = fixture.task_type("limit")?;
    make_all(&store, (0..5).map(|_| plain(&task_type)).collect()).await?;
    for expected in [2, 2, 1, 0] {
        let count = store.enqueue_due(2, soon()).await?.count;
        ensure_same("the number of tasks sent on their way, of two at most,", count, expected)?;
        let messages = drain_tasks(&queue, &fixture.here().queue(&task_type)?).await?;
        ensure_same("the number of messages", messages.len(), expected)?;
    }
    Ok(())
}

pub(super) async fn concurrent_enqueuers_send_each_task_once<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (queue, task_type) = (fixture.queue().await?, fixture.task_type("race")?);
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(fixture.open_with(fixture.here()).await?);
    }
    let ids = make_all(&stores[0], (0..100).map(|_| plain(&task_type)).collect()).await?;
    let rounds = stores.iter().map(|store| async move {
        let mut count = 0;
        loop {
            match store.enqueue_due(7, soon()).await?.count {
                0 => return Ok::<_, Stop>(count),
                more => count += more,
            }
        }
    });
    let counts = try_join_all(rounds).await?;
    ensure_same("the number of tasks that four enqueuers sent", counts.iter().sum(), 100)?;
    let messages = drain_tasks(&queue, &fixture.here().queue(&task_type)?).await?;
    ensure_same("the tasks of the messages", sorted(messages), sorted(ids))
}

pub(super) async fn a_retried_task_has_a_message_at_its_due_time<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, queue) = (fixture.open_with(fixture.here()).await?, fixture.queue().await?);
    let task_type = fixture.task_type("retry")?;
    let name = fixture.here().queue(&task_type)?;
    let id = make(&store, plain(&task_type).priority(Priority::new(7)?)).await?;
    enqueue_all(&store).await?;
    ensure_same("the message of a new task", drain_tasks(&queue, &name).await?, vec![id])?;

    let mut failing = Between::begin(&store).await?;
    end(&store, claim_id(&store, id).await?.lease, retry(MINUTE)).await?;
    let enqueued_at = info(&store, id).await?.enqueued_at;
    failing.ensure(&store, "enqueued_at of a retry", enqueued_at, Duration::ZERO).await?;
    ensure_same("messages before the delay is over", drain(&queue, &name).await?, Vec::new())?;
    ensure_same("unsent tasks during a delay", enqueue_all(&store).await?, 0)?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("unsent tasks after a delay", enqueue_all(&store).await?, 0)?;
    let messages = drain(&queue, &name).await?;
    ensure_same("the number of messages of a retry", messages.len(), 1)?;
    ensure_same("the message of a retry", (messages[0].task()?, messages[0].priority.get()), (id, 7))?;

    // So has one whose worker was lost.
    let lease = claim_id(&store, id).await?.lease;
    fixture.elapse(LEASE + INSTANT).await;
    ensure_same("the reaping", reap(&store, lease, retry(MINUTE)).await?, TaskStanding::Held)?;
    ensure_same("messages before the delay is over", drain(&queue, &name).await?, Vec::new())?;
    fixture.elapse(MINUTE + INSTANT).await;
    ensure_same("the message after a lost worker", drain_tasks(&queue, &name).await?, vec![id])?;

    // And a released one, at once.
    end(&store, claim_id(&store, id).await?.lease, TaskOutcome::Released).await?;
    ensure_state(&store, id, TaskState::Enqueued).await?;
    ensure_same("the message of what was released", drain_tasks(&queue, &name).await?, vec![id])?;
    end(&store, claim_id(&store, id).await?.lease, succeeded()).await?;
    fixture.elapse(HOUR).await;
    ensure_same("messages of what has ended", drain(&queue, &name).await?, Vec::new())
}

/// Sends the due tasks and returns the tasks of the messages.
async fn send<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
    store: &H::Store,
    queue: &H::Queue,
    task_type: &TaskType,
) -> Result<Vec<TaskId>, Stop> {
    let count = enqueue_all(store).await?;
    let messages = drain_tasks(queue, &fixture.here().queue(task_type)?).await?;
    ensure_same("the number of messages of what was sent", messages.len(), count)?;
    Ok(messages)
}

pub(super) async fn every_pending_task_is_sent<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, queue) = (fixture.open_with(fixture.here()).await?, fixture.queue().await?);
    let task_type = fixture.task_type("pending")?;
    // Wanted now, before and after its first attempt.
    let id = make(&store, plain(&task_type).scheduled_in(HOUR)).await?;
    ensure_same("messages before its time", send(fixture, &store, &queue, &task_type).await?, Vec::new())?;
    run_now(&store, id).await??;
    ensure_same("the message", send(fixture, &store, &queue, &task_type).await?, vec![id])?;
    end(&store, claim_id(&store, id).await?.lease, retry(HOUR)).await?;
    run_now(&store, id).await??;
    ensure_state(&store, id, TaskState::Pending).await?;
    ensure_same("the message", send(fixture, &store, &queue, &task_type).await?, vec![id])?;
    // Replayed.
    end(&store, claim_id(&store, id).await?.lease, dead(DeadReason::Permanent)).await?;
    replay(&store, id).await??;
    ensure_same("the message", send(fixture, &store, &queue, &task_type).await?, vec![id])?;
    end(&store, claim_id(&store, id).await?.lease, succeeded()).await?;
    // The next of its key.
    let first = make(&store, plain(&task_type).ordering_key("k")?).await?;
    let second = make(&store, plain(&task_type).ordering_key("k")?).await?;
    ensure_same("the message", send(fixture, &store, &queue, &task_type).await?, vec![first])?;
    let lease = claim_id(&store, first).await?.lease;
    ensure_same("messages of one that waits", send(fixture, &store, &queue, &task_type).await?, Vec::new())?;
    end(&store, lease, succeeded()).await?;
    ensure_same("the message", send(fixture, &store, &queue, &task_type).await?, vec![second])?;
    // One that is claimed before it was sent.
    let quick = make_plain(&store, &task_type).await?;
    drop(claim_id(&store, quick).await?);
    ensure_same("messages of what is worked on", send(fixture, &store, &queue, &task_type).await?, Vec::new())
}
