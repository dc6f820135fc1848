//! Tasks whose message was lost on the way.

use std::time::Duration;

use postrider_core::task::{Stranded, TaskId, TaskStore, TaskType};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::messages::{drain_tasks, enqueue_all, take_all};
use super::steps::{claim_id, end, make, make_all, make_plain, plain, retry, sorted};
use crate::probe::{Check, Stop, ensure, ensure_same, soon};

const GRACE: Duration = MINUTE;

async fn stranded<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<Option<Stranded>, Stop> {
    let types = store.stranded(GRACE, soon()).await?;
    let own: Vec<Stranded> = types.into_iter().filter(|it| it.task_type == *task_type).collect();
    ensure(own.len() <= 1, || format!("one type is listed several times: {own:?}"))?;
    Ok(own.into_iter().next())
}

pub(super) async fn stranded_tasks_are_sent_again_once_after_the_grace<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, queue) = (fixture.open_with(fixture.here()).await?, fixture.queue().await?);
    let task_type = fixture.task_type("here")?;
    let name = fixture.here().queue(&task_type)?;
    let ids = make_all(&store, (0..5).map(|_| plain(&task_type)).collect()).await?;
    enqueue_all(&store).await?;
    // All messages are lost.
    ensure_same("the number of messages", drain_tasks(&queue, &name).await?.len(), 5)?;
    // None of these is stranded: one is worked on, one is not due, one was never sent, one waits for its key.
    drop(claim_id(&store, ids[4]).await?);
    let failed = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(HOUR)).await?;
    let keyed = [plain(&task_type).ordering_key("k")?.scheduled_in(HOUR), plain(&task_type).ordering_key("k")?];
    make_all(&store, keyed.to_vec()).await?;

    fixture.elapse(GRACE / 2).await;
    ensure_same("what is stranded before the grace", stranded(&store, &task_type).await?, None)?;
    ensure_same("what is sent again then", store.resend(&task_type, MANY, GRACE, soon()).await?, 0)?;
    fixture.elapse(GRACE / 2 + INSTANT).await;
    let expected = Stranded { task_type: task_type.clone(), enqueued: 4, in_outbox: 0, processing: 1 };
    ensure_same("what is stranded", stranded(&store, &task_type).await?, Some(expected))?;
    let mut again: Vec<TaskId> = Vec::new();
    for expected in [3, 1, 0] {
        let count = store.resend(&task_type, 3, GRACE, soon()).await?;
        ensure_same("the number of tasks that were sent again, of three at most,", count, expected)?;
        let tasks = drain_tasks(&queue, &name).await?;
        ensure_same("the number of messages", tasks.len(), count)?;
        again.extend(tasks);
    }
    ensure_same("the tasks that were sent again", sorted(again), sorted(ids[..4].iter().copied()))?;
    ensure_same("what is stranded after that", stranded(&store, &task_type).await?, None)?;
    fixture.elapse(GRACE + INSTANT).await;
    ensure_same("what is stranded a grace later", stranded(&store, &task_type).await?.map(|it| it.enqueued), Some(4))?;
    ensure_same("what is sent again then", store.resend(&task_type, MANY, GRACE, soon()).await?, 4)
}

pub(super) async fn other_types_are_not_sent_again<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, queue) = (fixture.open_with(fixture.here()).await?, fixture.queue().await?);
    let (a, b) = (fixture.task_type("a")?, fixture.task_type("b")?);
    let (first, second) = (make_plain(&store, &a).await?, make_plain(&store, &b).await?);
    enqueue_all(&store).await?;
    for task_type in [&a, &b] {
        drain_tasks(&queue, &fixture.here().queue(task_type)?).await?;
    }
    fixture.elapse(GRACE + INSTANT).await;
    ensure_same("the number of tasks that were sent again", store.resend(&a, MANY, GRACE, soon()).await?, 1)?;
    let tasks = drain_tasks(&queue, &fixture.here().queue(&b)?).await?;
    ensure_same("messages of the other type", tasks, Vec::new())?;
    ensure_same("the message", drain_tasks(&queue, &fixture.here().queue(&a)?).await?, vec![first])?;
    let left = stranded(&store, &b).await?.map(|it| it.enqueued);
    ensure_same("what is stranded of the other type", left, Some(1))?;
    ensure_same("what is stranded", stranded(&store, &a).await?, None)?;
    // A claim is the end of it.
    drop(claim_id(&store, second).await?);
    ensure_same("what is stranded after a claim", stranded(&store, &b).await?, None)
}

pub(super) async fn outbox_rows_are_counted_with_stranded_tasks<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open_with(fixture.elsewhere()).await?, fixture.task_type("outbox")?);
    let queue = fixture.elsewhere().queue(&task_type)?;
    for _ in 0..3 {
        make(&store, plain(&task_type)).await?;
    }
    enqueue_all(&store).await?;
    fixture.elapse(GRACE + INSTANT).await;
    let expected = |in_outbox| Some(Stranded { task_type: task_type.clone(), enqueued: 3, in_outbox, processing: 0 });
    ensure_same("what is stranded", stranded(&store, &task_type).await?, expected(3))?;
    let rows = take_all(&store, LEASE, |row| row.queue == queue).await?;
    let receipts: Vec<_> = rows.iter().map(|row| (row.id, row.token)).collect();
    store.outbox_sent(&receipts, soon()).await?;
    ensure_same("what is stranded when all was sent", stranded(&store, &task_type).await?, expected(0))?;
    ensure_same("what is sent again", store.resend(&task_type, MANY, GRACE, soon()).await?, 3)?;
    let again = take_all(&store, LEASE, |row| row.queue == queue).await?;
    ensure_same("the number of messages", again.len(), 3)
}
