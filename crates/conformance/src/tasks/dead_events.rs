//! Events of dead tasks.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::QueueName;
use postrider_core::task::{
    DeadReason, DeadTaskEvent, Finish, PayloadRef, Post, TaskId, TaskOutcome, TaskRoutes, TaskStanding, TaskState,
    TaskStore, TaskType,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::messages::{drain, take_all};
use super::steps::{
    cancel, claim, claim_id, dead, end, ensure_state, finish, info, make, make_all, make_plain, plain, reap, replay,
    retry, sorted, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};

const PAYLOAD: PayloadRef = PayloadRef { revision: 0, bytes: br#"{"order":7}"#.len() as u64 };

/// The events since the last call.
async fn events<H: TaskHarness>(
    store: &H::Store,
    queue: &H::Queue,
    name: &QueueName,
) -> Result<Vec<DeadTaskEvent>, Stop> {
    let bodies: Vec<Bytes> = match store.routes().post {
        Post::Here => {
            let brought = drain(queue, name).await?;
            ensure(brought.iter().all(|message| message.is_json), || {
                "the content type of an event is not JSON".into()
            })?;
            brought.into_iter().map(|message| message.body).collect()
        }
        Post::Outbox => {
            let rows = take_all(store, LEASE, |row| row.queue == *name).await?;
            let receipts: Vec<_> = rows.iter().map(|row| (row.id, row.token)).collect();
            store.outbox_sent(&receipts, soon()).await?;
            rows.into_iter().map(|row| row.message.body).collect()
        }
    };
    let mut events = Vec::new();
    for body in bodies {
        match serde_json::from_slice(&body) {
            Ok(event) => events.push(event),
            Err(error) => return violation(format!("{body:?} is not a dead-task event: {error}")),
        }
    }
    Ok(events)
}

/// Makes a task that dies for a reason, and returns its id.
async fn make_dead<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
    store: &H::Store,
    task_type: &TaskType,
    reason: DeadReason,
    is_running: bool,
) -> Result<TaskId, Stop> {
    let mut task = plain(task_type).max_attempts(2);
    if reason == DeadReason::Deadline {
        task = task.deadline_in(HOUR);
    }
    let id = make(store, task).await?;
    if is_running {
        end(store, claim_id(store, id).await?.lease, retry(Duration::ZERO)).await?;
        let lease = claim_id(store, id).await?.lease;
        match reason {
            DeadReason::Deadline => {}
            DeadReason::LeaseLost => {
                fixture.elapse(LEASE + INSTANT).await;
                ensure_same("the reaping", reap(store, lease, retry(MINUTE)).await?, TaskStanding::Spent)?;
            }
            // Of the last attempt.
            DeadReason::MaxAttempts => {
                ensure_same("the end", finish(store, lease, retry(MINUTE)).await?, TaskStanding::Spent)?;
            }
            DeadReason::Permanent | DeadReason::RetriesExhausted => end(store, lease, dead(reason)).await?,
        }
    }
    if reason == DeadReason::Deadline {
        fixture.elapse(HOUR + INSTANT).await;
        drop(store.expire_overdue(MANY, soon()).await?);
    }
    Ok(id)
}

async fn every_dead_task_sends_an_event<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
    tag: &str,
    routes: TaskRoutes,
) -> Check {
    let (routes, name) = fixture.with_dead_events(routes)?;
    let (store, queue, task_type) = (fixture.open_with(routes).await?, fixture.queue().await?, fixture.task_type(tag)?);
    let reasons = DeadReason::ALL.into_iter().map(|reason| (reason, true)).chain([(DeadReason::Deadline, false)]);
    for (reason, is_running) in reasons {
        let id = make_dead(fixture, &store, &task_type, reason, is_running).await?;
        let seen = info(&store, id).await?;
        ensure_same("the state", seen.state, TaskState::Dead)?;
        let expected = DeadTaskEvent {
            task_id: id,
            task_type: task_type.clone(),
            worker_id: is_running.then(|| "worker-1".to_owned()),
            attempt_count: if is_running { 2 } else { 0 },
            max_attempts: 2,
            reason,
            error: seen.last_error.unwrap_or_default(),
            dead_at: seen.finished_at.unwrap_or_default(),
            payload: PAYLOAD,
        };
        let events_seen = events::<H>(&store, &queue, &name).await?;
        ensure_same(&format!("the events of a dead task ({reason})"), events_seen, vec![expected])?;
    }

    // A second death sends an event too, with the payload of that attempt.
    let id = make_dead(fixture, &store, &task_type, DeadReason::Permanent, true).await?;
    store.edit_payload(id, Bytes::from_static(b"123"), soon()).await?;
    replay(&store, id).await??;
    let lease = claim_id(&store, id).await?.lease;
    let error = "it's \"dead\"\nä".to_owned();
    end(&store, lease, TaskOutcome::Dead { reason: DeadReason::Permanent, error: error.clone() }).await?;
    let events_seen = events::<H>(&store, &queue, &name).await?;
    ensure_same("the number of events after two deaths", events_seen.len(), 2)?;
    let Some(second) = events_seen.iter().find(|event| event.payload.revision == 1) else {
        return violation(format!("no event has the edited payload: {events_seen:?}"));
    };
    ensure_same("its payload", second.payload, PayloadRef { revision: 1, bytes: 3 })?;
    ensure_same("its error", &second.error, &error)?;
    ensure_same("its attempts", second.attempt_count, 1)?;

    // No other end sends an event.
    end(&store, claim_id(&store, make_plain(&store, &task_type).await?).await?.lease, succeeded()).await?;
    cancel(&store, make_plain(&store, &task_type).await?).await??;
    let failed = make_plain(&store, &task_type).await?;
    end(&store, claim_id(&store, failed).await?.lease, retry(MINUTE)).await?;
    ensure_same("the events of other ends", events::<H>(&store, &queue, &name).await?, Vec::new())
}

pub(super) async fn every_dead_task_sends_one_event_to_a_queue_in_the_store<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    every_dead_task_sends_an_event(fixture, "polling", fixture.polling()).await?;
    every_dead_task_sends_an_event(fixture, "queue", fixture.here()).await
}

pub(super) async fn every_dead_task_sends_one_event_through_the_outbox<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    every_dead_task_sends_an_event(fixture, "polling", TaskRoutes { post: Post::Outbox, ..fixture.polling() }).await?;
    every_dead_task_sends_an_event(fixture, "queue", fixture.elsewhere()).await
}

pub(super) async fn many_tasks_dying_in_one_call_send_an_event_each<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (routes, name) = fixture.with_dead_events(fixture.polling())?;
    let (store, queue, task_type) =
        (fixture.open_with(routes).await?, fixture.queue().await?, fixture.task_type("many")?);
    let tasks = (0..50).map(|_| plain(&task_type)).collect();
    let ids = make_all(&store, tasks).await?;
    let claimed = claim(&store, &task_type, 50).await?;
    let ends = claimed.iter().map(|task| Finish { lease: task.lease, outcome: dead(DeadReason::MaxAttempts) });
    drop(store.finish(ends.collect(), soon()).await?);
    let events_seen = events::<H>(&store, &queue, &name).await?;
    let seen = sorted(events_seen.iter().map(|event| event.task_id));
    ensure_same("the tasks of fifty deaths", seen, sorted(ids))
}

pub(super) async fn no_event_is_sent_without_a_queue_for_events<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (_, name) = fixture.with_dead_events(fixture.polling())?;
    let (queue, task_type) = (fixture.queue().await?, fixture.task_type("silent")?);
    for routes in [fixture.polling(), TaskRoutes { post: Post::Outbox, ..fixture.polling() }] {
        let store = fixture.open_with(routes).await?;
        let id = make_dead(fixture, &store, &task_type, DeadReason::Permanent, true).await?;
        ensure_state(&store, id, TaskState::Dead).await?;
        let taken = store.take_outbox(MANY, LEASE, soon()).await?.rows;
        let is_dead_event =
            |body: &Bytes| serde_json::from_slice::<DeadTaskEvent>(body).is_ok_and(|it| it.task_id == id);
        ensure(taken.iter().all(|row| !is_dead_event(&row.message.body)), || {
            "an event was sent without a queue for events".into()
        })?;
    }
    ensure_same("the events", drain(&queue, &name).await?, Vec::new())
}
