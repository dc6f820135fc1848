//! Which states follow which, tried by every call on a task in every state.

use std::collections::BTreeSet;

use bytes::Bytes;
use postrider_core::MessagingError;
use postrider_core::task::{
    DeadReason, NewTask, TaskId, TaskLease, TaskMode, TaskOutcome, TaskState, TaskStore, TaskType,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::messages::enqueue_all;
use super::steps::{
    cancel, claim, claim_id, claim_ids, dead, end, ensure_state, finish, heartbeat, info, make, plain, reap, replay,
    retry, run_now, standing, succeeded,
};
use crate::probe::{Check, Stop, ensure, soon};

/// The situation of a task before a call.
#[derive(Debug, Clone, Copy)]
enum Situation {
    Due,
    Later,
    Enqueued,
    /// Failed, with a retry in a minute.
    EnqueuedForLater,
    Processing,
    Succeeded,
    Dead,
    Canceled,
}

impl Situation {
    const ALL: [Self; 8] = [
        Self::Due,
        Self::Later,
        Self::Enqueued,
        Self::EnqueuedForLater,
        Self::Processing,
        Self::Succeeded,
        Self::Dead,
        Self::Canceled,
    ];

    const fn state(self) -> TaskState {
        match self {
            Self::Due | Self::Later => TaskState::Pending,
            Self::Enqueued | Self::EnqueuedForLater => TaskState::Enqueued,
            Self::Processing => TaskState::Processing,
            Self::Succeeded => TaskState::Succeeded,
            Self::Dead => TaskState::Dead,
            Self::Canceled => TaskState::Canceled,
        }
    }
}

/// Every call on a task.
#[derive(Debug, Clone, Copy)]
enum Call {
    CreateAgain,
    Claim,
    ClaimById,
    Succeed,
    Retry,
    Die,
    Release,
    Heartbeat,
    Standing,
    LostLeases,
    ReapToRetry,
    ReapToDeath,
    Expire,
    Cancel,
    RunNow,
    Replay,
    EditPayload,
    EnqueueDue,
    Stranded,
    Resend,
}

impl Call {
    const ALL: [Self; 20] = [
        Self::CreateAgain,
        Self::Claim,
        Self::ClaimById,
        Self::Succeed,
        Self::Retry,
        Self::Die,
        Self::Release,
        Self::Heartbeat,
        Self::Standing,
        Self::LostLeases,
        Self::ReapToRetry,
        Self::ReapToDeath,
        Self::Expire,
        Self::Cancel,
        Self::RunNow,
        Self::Replay,
        Self::EditPayload,
        Self::EnqueueDue,
        Self::Stranded,
        Self::Resend,
    ];
}

/// A task in a situation, with its last lease.
struct Subject {
    task: NewTask,
    id: TaskId,
    lease: TaskLease,
}

async fn set_up<S: TaskStore>(
    store: &S,
    task_type: &TaskType,
    situation: Situation,
    key: &str,
) -> Result<Subject, Stop> {
    let mut task = plain(task_type).idempotency_key(key)?.deadline_in(HOUR);
    if matches!(situation, Situation::Later) {
        task = task.scheduled_in(MINUTE);
    }
    let id = make(store, task.clone()).await?;
    // An unclaimed task has no token.
    let mut lease = TaskLease { id, token: 7 };
    match situation {
        Situation::Due | Situation::Later => {}
        Situation::Enqueued if store.routes().mode == TaskMode::Queue => drop(enqueue_all(store).await?),
        Situation::Canceled => drop(cancel(store, id).await??),
        Situation::Enqueued
        | Situation::EnqueuedForLater
        | Situation::Processing
        | Situation::Succeeded
        | Situation::Dead => {
            lease = claim_id(store, id).await?.lease;
        }
    }
    match situation {
        Situation::Enqueued if lease.token != 7 => end(store, lease, retry(std::time::Duration::ZERO)).await?,
        Situation::EnqueuedForLater => end(store, lease, retry(MINUTE)).await?,
        Situation::Succeeded => end(store, lease, succeeded()).await?,
        Situation::Dead => end(store, lease, dead(DeadReason::Permanent)).await?,
        _ => {}
    }
    ensure_state(store, id, situation.state()).await?;
    Ok(Subject { task, id, lease })
}

/// Makes the call. Its answer is not checked here, only the task's state.
async fn make_call<H: TaskHarness>(fixture: &Fixture<'_, H>, store: &H::Store, call: Call, subject: &Subject) -> Check {
    let Subject { task, id, lease } = subject;
    let (id, lease, task_type) = (*id, *lease, &task.task_type);
    match call {
        Call::CreateAgain => drop(store.create(vec![task.clone().id(TaskId::generate())], soon()).await?),
        Call::Claim => drop(claim(store, task_type, MANY).await?),
        Call::ClaimById => drop(claim_ids(store, &[id]).await?),
        Call::Succeed => drop(finish(store, lease, succeeded()).await?),
        Call::Retry => drop(finish(store, lease, retry(MINUTE)).await?),
        Call::Die => drop(finish(store, lease, dead(DeadReason::MaxAttempts)).await?),
        Call::Release => drop(finish(store, lease, TaskOutcome::Released).await?),
        Call::Heartbeat => drop(heartbeat(store, lease, LEASE).await?),
        Call::Standing => drop(standing(store, lease).await?),
        Call::LostLeases => {
            fixture.elapse(LEASE + INSTANT).await;
            drop(store.lost_leases(MANY, soon()).await?);
        }
        Call::ReapToRetry => {
            fixture.elapse(LEASE + INSTANT).await;
            let _ = reap(store, lease, retry(MINUTE)).await?;
        }
        Call::ReapToDeath => {
            fixture.elapse(LEASE + INSTANT).await;
            let _ = reap(store, lease, dead(DeadReason::LeaseLost)).await?;
        }
        Call::Expire => {
            fixture.elapse(HOUR + INSTANT).await;
            drop(store.expire_overdue(MANY, soon()).await?);
        }
        Call::Cancel => drop(cancel(store, id).await?),
        Call::RunNow => drop(run_now(store, id).await?),
        Call::Replay => drop(replay(store, id).await?),
        Call::EditPayload => match store.edit_payload(id, Bytes::from_static(b"{}"), soon()).await {
            Ok(_) | Err(MessagingError::TaskConflict { .. }) => {}
            Err(other) => return Err(other.into()),
        },
        Call::EnqueueDue => drop(enqueue_all(store).await?),
        Call::Stranded => drop(store.stranded(MINUTE, soon()).await?),
        Call::Resend => {
            fixture.elapse(MINUTE * 2).await;
            let _ = store.resend(task_type, MANY, MINUTE, soon()).await?;
        }
    }
    Ok(())
}

pub(super) async fn every_allowed_transition_happens_and_no_other<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let mut seen = BTreeSet::new();
    for (mode, routes) in [("polling", fixture.polling()), ("queue", fixture.here())] {
        let store = fixture.open_with(routes).await?;
        let task_type = fixture.task_type(mode)?;
        for from in Situation::ALL {
            for call in Call::ALL {
                // With polling workers nothing is sent.
                let is_sent = matches!(call, Call::EnqueueDue | Call::Stranded | Call::Resend);
                if is_sent && store.routes().mode == TaskMode::Polling {
                    continue;
                }
                let subject = set_up(&store, &task_type, from, &format!("{from:?} {call:?}")).await?;
                make_call(fixture, &store, call, &subject).await?;
                let (before, after) = (from.state(), info(&store, subject.id).await?.state);
                ensure(before == after || before.may_become(after), || {
                    format!("in {mode} mode, {call:?} made a task {after} that was {before} ({from:?})")
                })?;
                seen.insert((before, after));
                if !after.is_terminal() {
                    cancel(&store, subject.id).await??;
                }
            }
        }
    }
    for from in TaskState::ALL {
        for to in TaskState::ALL {
            ensure(!from.may_become(to) || seen.contains(&(from, to)), || {
                format!("no call made a task {to} that was {from}")
            })?;
        }
    }
    Ok(())
}
