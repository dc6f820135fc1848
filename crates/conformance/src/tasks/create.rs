//! What is made, and that it is made once.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use postrider_core::task::{
    Created, DeadReason, Finish, NewTask, TaskFilter, TaskId, TaskOutcome, TaskStanding, TaskState, TaskStore, TaskType,
};
use postrider_core::{Key, Priority, RetryStrategy};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, MINUTE};
use super::steps::{
    Between, cancel, claim, claim_id, claim_one, dead, end, ensure_refused, ensure_state, info, list_all, make,
    make_all, make_plain, only, plain, read, retry, sorted, standing, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

pub(super) async fn a_new_task_is_read_back_as_it_was_made<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, task_type) = (fixture.open().await?, fixture.open().await?, fixture.task_type("whole")?);
    let strategy = RetryStrategy::constant(Duration::from_millis(1500)).with_max_attempts(7);
    let mut task = NewTask::of(task_type.clone(), Bytes::from_static(b"\x00\xff{\"order\": 7}'"))
        .scheduled_in(MINUTE)
        .priority(Priority::new(8)?)
        .ordering_key("customer/ä 7")?
        .idempotency_key("order-'7'")?
        .retry_strategy(strategy.clone())
        .deadline_in(HOUR)
        .tag("it's")
        .tag("a,b {c} \"d\" \\ ä");
    task.schedule = Some("nightly".to_owned());
    let mut making = Between::begin(&store).await?;
    let id = make(&store, task.clone()).await?;
    let made = read(&other, id).await?;
    ensure_same("the payload", &made.payload, &task.payload)?;
    ensure_same("the result of a new task", made.result, None)?;
    let seen = made.info;
    making.ensure(&store, "created_at", Some(seen.created_at), Duration::ZERO).await?;
    making.ensure(&store, "scheduled_for", Some(seen.scheduled_for), MINUTE).await?;
    making.ensure(&store, "the deadline", seen.deadline, HOUR).await?;
    ensure_same("the id", seen.id, id)?;
    ensure_same("the type", &seen.task_type, &task_type)?;
    ensure_same("the state", seen.state, TaskState::Pending)?;
    ensure_same("the priority", seen.priority.get(), 8)?;
    ensure_same("the ordering key", seen.ordering_key.as_ref().map(Key::as_str), Some("customer/ä 7"))?;
    ensure_same("the idempotency key", seen.idempotency_key, task.idempotency_key)?;
    ensure_same("the tags", sorted(seen.tags), sorted(task.tags))?;
    ensure_same("the schedule", seen.schedule, task.schedule)?;
    ensure_same("max_attempts", seen.max_attempts, 7)?;
    ensure_same("the retry strategy", seen.retry_strategy, Some(strategy))?;
    ensure(!seen.is_blocked, || "the only task of its key waits for another".into())?;
    cancel(&store, id).await??;

    let empty = make(&store, NewTask::of(task_type, "")).await?;
    let made = read(&other, empty).await?;
    ensure_same("an empty payload", made.payload, Bytes::new())?;
    let seen = made.info;
    ensure_same("max_attempts by default", seen.max_attempts, RetryStrategy::DEFAULT_MAX_ATTEMPTS.get())?;
    ensure_same("the priority by default", seen.priority, Priority::default())?;
    ensure_same("the counts", (seen.attempt_count, seen.revision, seen.replay_count), (0, 0, 0))?;
    ensure_same("when it was due", seen.scheduled_for, seen.created_at)?;
    ensure_same("the keys", (seen.ordering_key, seen.idempotency_key), (None, None))?;
    ensure_same("the tags", seen.tags, Vec::new())?;
    ensure_same("the schedule", seen.schedule, None)?;
    ensure_same("the retry strategy", seen.retry_strategy, None)?;
    let times = [seen.deadline, seen.enqueued_at, seen.started_at, seen.finished_at, seen.lease_expires_at];
    ensure_same("times of what has not happened", times, [None; 5])?;
    ensure_same("the worker", seen.worker, None)?;
    ensure_same("the progress", seen.progress, None)?;
    ensure_same("the end", (seen.dead_reason, seen.last_error), (None, None))?;
    ensure_same("attempts of a new task", other.attempts(empty, soon()).await?, Vec::new())?;
    ensure_same("revisions of a new task", other.revisions(empty, soon()).await?, Vec::new())?;
    ensure_same("an unknown task", other.get(TaskId::generate(), soon()).await?, None)
}

pub(super) async fn five_hundred_tasks_are_made_in_one_call<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("bulk")?);
    let tasks = (0..500).map(|number| NewTask::of(task_type.clone(), format!("{number}"))).collect();
    let ids = make_all(&store, tasks).await?;
    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    let mut listed: Vec<TaskId> = list_all(&store, &filter).await?.iter().map(|task| task.id).collect();
    listed.reverse();
    ensure(listed == ids, || format!("{} of 500 tasks are listed, or not in the order they were made", listed.len()))?;
    let mut payloads = Vec::new();
    while payloads.len() < 500 {
        let claimed = claim(&store, &task_type, 500).await?;
        if claimed.is_empty() {
            return violation(format!("only {} of 500 tasks could be claimed", payloads.len()));
        }
        let ends = claimed.iter().map(|task| Finish { lease: task.lease, outcome: succeeded() });
        for standing in store.finish(ends.collect(), soon()).await? {
            ensure_same("an end", standing, TaskStanding::Held)?;
        }
        payloads.extend(claimed.into_iter().map(|task| task.payload));
    }
    let expected = sorted((0..500).map(|number| Bytes::from(format!("{number}"))));
    ensure(sorted(payloads) == expected, || "the payloads of 500 tasks are not those that were sent".into())
}

pub(super) async fn a_task_that_is_refused_fails_alone<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("refused")?);
    let too_large = vec![b' '; store.max_payload_bytes() + 1];
    let tasks = vec![
        plain(&task_type),
        NewTask::of(task_type.clone(), too_large),
        plain(&task_type),
        plain(&task_type).tag("two\nlines"),
        plain(&task_type).deadline_in(Duration::MAX),
        plain(&task_type),
    ];
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let rows = match store.create(tasks, soon()).await {
        Ok(rows) => rows,
        Err(error) => return violation(format!("a whole batch was refused for some of its rows: {error}")),
    };
    ensure_same("the number of answers", rows.len(), ids.len())?;
    for (number, (row, id)) in rows.into_iter().zip(ids).enumerate() {
        if matches!(number, 1 | 3 | 4) {
            ensure_refused(&format!("row {number}"), &row)?;
            ensure_same("a refused task", store.get(id, soon()).await?, None)?;
        } else {
            ensure_same("the id of a row beside a refused one", row?.id, id)?;
            ensure_state(&store, id, TaskState::Pending).await?;
        }
    }
    Ok(())
}

pub(super) async fn an_id_that_is_taken_is_refused_alone<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("taken")?);
    let (first, other) = (plain(&task_type), plain(&task_type));
    let again = NewTask { payload: Bytes::from_static(b"again"), ..first.clone() };
    let rows = store.create(vec![first.clone(), again.clone(), other.clone()], soon()).await?;
    ensure_same("the number of answers", rows.len(), 3)?;
    ensure_refused("a second task with the same id", &rows[1])?;
    for (row, task) in [(&rows[0], &first), (&rows[2], &other)] {
        ensure(matches!(row, Ok(created) if created.id == task.id && created.is_new), || {
            format!("a task beside one that was refused was answered {row:?}")
        })?;
    }
    end(&store, claim_id(&store, first.id).await?.lease, succeeded()).await?;
    ensure_refused("a task with the id of one that has ended", &only(store.create(vec![again], soon()).await?)?)?;
    let seen = read(&store, first.id).await?;
    ensure_same("the task that had the id", (seen.info.state, seen.payload), (TaskState::Succeeded, first.payload))
}

pub(super) async fn a_payload_is_as_large_as_the_store_allows_and_no_larger<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("large")?);
    let largest = Bytes::from(vec![b'7'; store.max_payload_bytes()]);
    let too_large = Bytes::from(vec![b'7'; store.max_payload_bytes() + 1]);
    let id = make(&store, NewTask::of(task_type.clone(), largest.clone())).await?;
    ensure(read(&store, id).await?.payload == largest, || "the largest payload is read back otherwise".into())?;
    let refused = only(store.create(vec![NewTask::of(task_type, too_large.clone())], soon()).await?)?;
    ensure_refused("a payload that is one byte too large", &refused)?;

    let claimed = claim_id(&store, id).await?;
    ensure(claimed.payload == largest, || "the largest payload is claimed otherwise".into())?;
    let end_with = |result| {
        let outcome = TaskOutcome::Succeeded { result: Some(result) };
        store.finish(vec![Finish { lease: claimed.lease, outcome }], soon())
    };
    ensure_refused("a result that is one byte too large", &end_with(too_large.clone()).await)?;
    ensure_state(&store, id, TaskState::Processing).await?;
    ensure_same("the holder's standing", standing(&store, claimed.lease).await?, TaskStanding::Held)?;
    drop(end_with(largest.clone()).await?);
    ensure(read(&store, id).await?.result == Some(largest), || "the largest result is read back otherwise".into())?;

    let dead_task = make_plain(&store, &fixture.task_type("edited")?).await?;
    let lease = claim_id(&store, dead_task).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    let refused = store.edit_payload(dead_task, too_large, soon()).await;
    ensure_refused("a payload that is edited to be too large", &refused)
}

/// Makes a task with a taken idempotency key and ends the test unless the first task is returned.
async fn ask_again<S: TaskStore>(store: &S, task: &NewTask, first: TaskId, state: TaskState) -> Check {
    let again = only(store.create(vec![task.clone().id(TaskId::generate())], soon()).await?)??;
    ensure_same("a second creation", again, Created { id: first, is_new: false, state })
}

async fn keyed<S: TaskStore>(store: &S, task_type: &TaskType, key: &str) -> Result<(NewTask, TaskId), Stop> {
    let task = plain(task_type).idempotency_key(key)?;
    let id = make(store, task.clone()).await?;
    ask_again(store, &task, id, TaskState::Pending).await?;
    Ok((task, id))
}

pub(super) async fn an_idempotency_key_returns_the_first_task_in_any_state<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("single")?);
    let (task, id) = keyed(&store, &task_type, "done").await?;
    let lease = claim_id(&store, id).await?.lease;
    ask_again(&store, &task, id, TaskState::Processing).await?;
    end(&store, lease, retry(Duration::ZERO)).await?;
    ask_again(&store, &task, id, TaskState::Enqueued).await?;
    let lease = claim_id(&store, id).await?.lease;
    end(&store, lease, succeeded()).await?;
    fixture.elapse(HOUR).await;
    ask_again(&store, &task, id, TaskState::Succeeded).await?;

    let (task, id) = keyed(&store, &task_type, "dead").await?;
    let lease = claim_id(&store, id).await?.lease;
    end(&store, lease, dead(DeadReason::Permanent)).await?;
    ask_again(&store, &task, id, TaskState::Dead).await?;
    let (task, id) = keyed(&store, &task_type, "canceled").await?;
    cancel(&store, id).await??;
    ask_again(&store, &task, id, TaskState::Canceled).await?;

    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    ensure_same("the number of tasks with three keys", list_all(&store, &filter).await?.len(), 3)?;
    let other_type = fixture.task_type("other")?;
    make(&store, plain(&other_type).idempotency_key("done")?).await?;
    Ok(())
}

pub(super) async fn an_idempotency_key_is_taken_within_a_batch<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("twice")?);
    let tasks = vec![
        plain(&task_type).idempotency_key("a")?,
        plain(&task_type),
        plain(&task_type).idempotency_key("a")?,
        plain(&task_type).idempotency_key("b")?,
        plain(&task_type).idempotency_key("a")?,
    ];
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let rows = store.create(tasks, soon()).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    let seen: Vec<(TaskId, bool)> = rows.iter().map(|created| (created.id, created.is_new)).collect();
    let expected = [(ids[0], true), (ids[1], true), (ids[0], false), (ids[3], true), (ids[0], false)];
    ensure_same("what a batch with a key three times made", seen, expected.to_vec())?;
    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    ensure_same("the number of tasks", list_all(&store, &filter).await?.len(), 3)
}

pub(super) async fn concurrent_creations_with_one_key_make_one_task<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (stores, task_type) = (fixture.open_several(4).await?, fixture.task_type("race")?);
    for round in 0..10 {
        let creations = (0..8).map(|caller| {
            let task = plain(&task_type).idempotency_key(format!("race {round}"));
            let store = &stores[caller % stores.len()];
            async move { store.create(vec![task?], soon()).await }
        });
        let mut created = Vec::new();
        for rows in join_all(creations).await {
            created.push(only(rows?)??);
        }
        ensure_same("the number of callers that made the task", created.iter().filter(|row| row.is_new).count(), 1)?;
        let first = created[0].id;
        ensure(created.iter().all(|row| row.id == first), || format!("callers got several tasks: {created:?}"))?;
        ensure_state(&stores[0], first, TaskState::Pending).await?;
    }
    let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
    ensure_same("the number of tasks of ten keys", list_all(&stores[0], &filter).await?.len(), 10)
}

pub(super) async fn the_number_of_attempts_has_one_answer<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("counts")?);
    for (task, expected) in [
        (plain(&task_type), RetryStrategy::DEFAULT_MAX_ATTEMPTS.get()),
        (plain(&task_type).max_attempts(9), 9),
        (plain(&task_type).retry_strategy(RetryStrategy::NoRetry), 1),
    ] {
        let id = make(&store, task).await?;
        ensure_same("max_attempts", info(&store, id).await?.max_attempts, expected)?;
        let claimed = claim_one(&store, &task_type).await?;
        ensure_same("max_attempts of the claim", claimed.max_attempts, expected)?;
        end(&store, claimed.lease, succeeded()).await?;
    }
    Ok(())
}
