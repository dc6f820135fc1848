//! Outbox rows: messages to send to other stores.

use futures_util::future::try_join_all;
use postrider_core::task::{OutboxRow, TaskId, TaskMessage, TaskOutcome, TaskState, TaskStore, TaskType};
use postrider_core::{ContentType, Priority, QueueName};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::messages::{drain, enqueue_all, take_all};
use super::steps::{
    cancel, claim_id, end, ensure_left, ensure_state, info, make, make_all, make_plain, plain, retry, sorted, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

/// The due, untaken outbox rows of a queue.
async fn take<S: TaskStore>(store: &S, queue: &QueueName) -> Result<Vec<OutboxRow>, Stop> {
    Ok(take_all(store, LEASE, |row| row.queue == *queue).await?)
}

fn tasks(rows: &[OutboxRow]) -> Result<Vec<TaskId>, Stop> {
    rows.iter().map(|row| Ok(TaskMessage::read(&row.message.body)?)).collect()
}

fn receipts(rows: &[OutboxRow]) -> Vec<(i64, i64)> {
    rows.iter().map(|row| (row.id, row.token)).collect()
}

/// Takes the one message that a type must have, and says that it was sent.
async fn relay<H: TaskHarness>(fixture: &Fixture<'_, H>, store: &H::Store, task_type: &TaskType, id: TaskId) -> Check {
    let rows = take(store, &fixture.elsewhere().queue(task_type)?).await?;
    ensure_same("the tasks of the messages to be sent", tasks(&rows)?, vec![id])?;
    Ok(store.outbox_sent(&receipts(&rows), soon()).await?)
}

pub(super) async fn tasks_for_other_stores_wait_in_the_outbox<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, queue) = (fixture.open_with(fixture.elsewhere()).await?, fixture.queue().await?);
    let (a, b) = (fixture.task_type("a")?, fixture.task_type("b")?);
    let urgent = make(&store, plain(&a).priority(Priority::HIGHEST)).await?;
    let plain_one = make(&store, plain(&b)).await?;
    let later = make(&store, plain(&a).scheduled_in(HOUR)).await?;
    ensure_same("the number of tasks sent on their way", enqueue_all(&store).await?, 2)?;
    ensure_same("the number of tasks sent twice", enqueue_all(&store).await?, 0)?;
    for id in [urgent, plain_one] {
        ensure_state(&store, id, TaskState::Enqueued).await?;
    }
    ensure_state(&store, later, TaskState::Pending).await?;
    let (to_a, to_b) = (fixture.elsewhere().queue(&a)?, fixture.elsewhere().queue(&b)?);
    let rows = take_all(&store, LEASE, |row| row.queue == to_a || row.queue == to_b).await?;
    ensure_same("the number of messages", rows.len(), 2)?;
    for (id, to) in [(urgent, &to_a), (plain_one, &to_b)] {
        let Some(row) = rows.iter().find(|row| row.queue == *to) else {
            return violation(format!("no message is for queue {to}"));
        };
        ensure_same("the message's task", TaskMessage::read(&row.message.body)?, id)?;
        ensure_same("its priority", row.message.priority, info(&store, id).await?.priority)?;
        ensure_same("its content type", &row.message.content_type, &ContentType::JSON)?;
    }
    store.outbox_sent(&receipts(&rows), soon()).await?;
    for to in [to_a, to_b] {
        let here = drain(&queue, &to).await?;
        ensure_same("messages in the store's own queues", here, Vec::new())?;
    }
    Ok(())
}

pub(super) async fn taken_outbox_rows_are_exclusive_until_their_lease_ends<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, other) = (fixture.open_with(fixture.elsewhere()).await?, fixture.open_with(fixture.elsewhere()).await?);
    let task_type = fixture.task_type("taken")?;
    let queue = fixture.elsewhere().queue(&task_type)?;
    let ids = make_all(&store, (0..3).map(|_| plain(&task_type)).collect()).await?;
    enqueue_all(&store).await?;
    let first = take(&store, &queue).await?;
    ensure_same("the tasks of the taken rows", sorted(tasks(&first)?), sorted(ids.clone()))?;
    for taker in [&store, &other] {
        ensure_same("what a second taker gets", take(taker, &queue).await?, Vec::new())?;
    }
    store.outbox_sent(&receipts(&first[..1]), soon()).await?;

    fixture.elapse(LEASE + INSTANT).await;
    let again = take(&other, &queue).await?;
    let (expected, seen): (Vec<_>, Vec<_>) =
        (first[1..].iter().map(|row| row.message.id).collect(), again.iter().map(|row| row.message.id).collect());
    ensure_same("the messages that are given again", sorted(seen), sorted(expected))?;
    ensure(again.iter().all(|row| first.iter().all(|old| old.token != row.token)), || {
        "two takers have the same token".into()
    })?;
    // The first sender is late: rows that another sender has taken stay.
    store.outbox_sent(&receipts(&first), soon()).await?;
    fixture.elapse(LEASE + INSTANT).await;
    let last = take(&store, &queue).await?;
    ensure_same("the number of messages after a late sender", last.len(), 2)?;
    store.outbox_sent(&receipts(&last), soon()).await?;
    fixture.elapse(LEASE + INSTANT).await;
    ensure_same("what was sent", take(&other, &queue).await?, Vec::new())
}

pub(super) async fn the_outbox_returns_the_oldest_first_up_to_its_limit<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open_with(fixture.elsewhere()).await?, fixture.task_type("order")?);
    take_all(&store, LEASE, |_| false).await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(make_plain(&store, &task_type).await?);
        enqueue_all(&store).await?;
        fixture.elapse(INSTANT * 10).await;
    }
    let mut seen = Vec::new();
    for expected in [2, 2, 1] {
        let rows = store.take_outbox(2, LEASE, soon()).await?.rows;
        ensure_same("the number of messages that were taken, of two at most,", rows.len(), expected)?;
        seen.extend(tasks(&rows)?);
        store.outbox_sent(&receipts(&rows), soon()).await?;
    }
    ensure_same("the order of the messages", seen, ids)
}

pub(super) async fn a_retry_waits_in_the_outbox_for_its_time<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open_with(fixture.elsewhere()).await?, fixture.task_type("retry")?);
    let queue = fixture.elsewhere().queue(&task_type)?;
    // Messages that other tests left for later are out of the way.
    fixture.elapse(HOUR * 24).await;
    take_all(&store, LEASE, |_| false).await?;
    let id = make_plain(&store, &task_type).await?;
    enqueue_all(&store).await?;
    relay(fixture, &store, &task_type, id).await?;
    end(&store, claim_id(&store, id).await?.lease, retry(HOUR)).await?;
    fixture.elapse(HOUR - MINUTE).await;
    let early = store.take_outbox(MANY, LEASE, soon()).await?;
    ensure(early.rows.iter().all(|row| row.queue != queue), || "a retry is sent before its time".into())?;
    ensure_left("the time until the next message is due", early.next_due, MINUTE)?;
    fixture.elapse(MINUTE + INSTANT).await;
    relay(fixture, &store, &task_type, id).await?;
    end(&store, claim_id(&store, id).await?.lease, TaskOutcome::Released).await?;
    relay(fixture, &store, &task_type, id).await?;
    end(&store, claim_id(&store, id).await?.lease, succeeded()).await?;
    ensure_same("messages of what has ended", take(&store, &queue).await?, Vec::new())?;
    let canceled = make_plain(&store, &task_type).await?;
    cancel(&store, canceled).await??;
    enqueue_all(&store).await?;
    ensure_same("messages of what was canceled", take(&store, &queue).await?, Vec::new())
}

pub(super) async fn concurrent_takers_share_no_message<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let task_type = fixture.task_type("race")?;
    let queue = fixture.elsewhere().queue(&task_type)?;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(fixture.open_with(fixture.elsewhere()).await?);
    }
    take_all(&stores[0], LEASE, |_| false).await?;
    let ids = make_all(&stores[0], (0..60).map(|_| plain(&task_type)).collect()).await?;
    enqueue_all(&stores[0]).await?;
    let takers = stores.iter().map(|store| async move {
        let mut taken = Vec::new();
        loop {
            let rows = store.take_outbox(7, LEASE, soon()).await?.rows;
            if rows.is_empty() {
                return Ok::<_, Stop>(taken);
            }
            taken.extend(rows);
        }
    });
    let taken = try_join_all(takers).await?.concat();
    let own: Vec<OutboxRow> = taken.into_iter().filter(|row| row.queue == queue).collect();
    ensure_same("the tasks of what four takers got", sorted(tasks(&own)?), sorted(ids))?;
    Ok(stores[0].outbox_sent(&receipts(&own), soon()).await?)
}
