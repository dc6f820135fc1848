//! Replays of dead tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider_core::MessagingError;
use postrider_core::task::{AttemptOutcome, NewTask, TaskFilter, TaskId, TaskState};
use postrider_tasks::{HandlerError, ReplayOptions, TaskContext};

use crate::fixture::{Fixture, Route, Running, System, create, ended, get, state};
use crate::soon;

/// Creates tasks that die until they may succeed.
async fn dead(system: &System, count: usize) -> (Vec<TaskId>, Running, Arc<AtomicBool>) {
    let is_well = Arc::new(AtomicBool::new(false));
    let may_succeed = is_well.clone();
    let worker = system.worker().handler("step", move |task: TaskContext| {
        let is_well = may_succeed.load(Ordering::SeqCst) && task.payload() != "bad";
        async move { if is_well { Ok("done") } else { Err(HandlerError::permanent("unwell")) } }
    });
    let running = Running::start(system, worker.build().unwrap());
    let mut made = Vec::new();
    for number in 0..count {
        let tag = if number.is_multiple_of(2) { "even" } else { "odd" };
        made.push(create(system, NewTask::new("step", "good").unwrap().tag(tag)).await.id);
    }
    for id in &made {
        assert_eq!(ended(system, *id).await.info.state, TaskState::Dead);
    }
    (made, running, is_well)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_tasks_are_replayed_by_a_filter() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let (made, running, is_well) = dead(&system, 6).await;
        is_well.store(true, Ordering::SeqCst);
        let even = TaskFilter { tags: vec!["even".into()], ..TaskFilter::default() };

        let dry = ReplayOptions { dry_run: true, ..ReplayOptions::default() };
        let would = system.client().replay_matching(even.clone(), &dry, |_| ()).await.unwrap();
        assert_eq!(would.replayed, [made[0], made[2], made[4]], "{route:?}: in the order of their creation");
        assert_eq!(state(&system, made[0]).await, TaskState::Dead, "nothing was done");

        let slowly = ReplayOptions { rate: Some(10.0), limit: Some(2), ..ReplayOptions::default() };
        let mut chunks = 0;
        let began = Instant::now();
        let done = system.client().replay_matching(even, &slowly, |_| chunks += 1).await.unwrap();
        assert_eq!(done.replayed, [made[0], made[2]]);
        assert!(chunks >= 1 && began.elapsed() < Duration::from_secs(10));
        for (number, id) in made.iter().enumerate() {
            let expected = if number == 0 || number == 2 { TaskState::Succeeded } else { TaskState::Dead };
            assert_eq!(ended(&system, *id).await.info.state, expected, "{route:?} {number}");
        }
        let again = get(&system, made[0]).await.info;
        assert_eq!((again.attempt_count, again.replay_count), (1, 1));
        let history = system.client().attempts(made[0], soon()).await.unwrap();
        let outcomes: Vec<_> = history.iter().map(|a| (a.replay, a.attempt, a.outcome)).collect();
        assert_eq!(outcomes, [(0, 1, AttemptOutcome::Failed), (1, 1, AttemptOutcome::Succeeded)]);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_edited_and_the_old_one_is_kept() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let (made, running, is_well) = dead(&system, 1).await;
    let (client, id) = (system.client(), made[0]);
    is_well.store(true, Ordering::SeqCst);
    assert_eq!(client.edit(id, "bad".into(), soon()).await.unwrap(), 1);
    client.retry(id, soon()).await.unwrap();
    assert_eq!(ended(&system, id).await.info.state, TaskState::Dead);
    assert_eq!(client.edit(id, "better".into(), soon()).await.unwrap(), 2);
    client.replay(id, soon()).await.unwrap();
    let task = ended(&system, id).await;
    assert_eq!((task.info.state, task.info.revision, &*task.payload), (TaskState::Succeeded, 2, &b"better"[..]));
    let before: Vec<_> = client.revisions(id, soon()).await.unwrap().into_iter().map(|old| old.payload).collect();
    assert_eq!(before, ["good", "bad"]);
    for refused in [client.replay(id, soon()).await, client.retry(id, soon()).await] {
        assert!(
            matches!(refused, Err(MessagingError::TaskConflict { state: TaskState::Succeeded, .. })),
            "{refused:?}"
        );
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_task_can_be_run_now() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system.worker().handler("step", |_: TaskContext| async { Ok::<_, HandlerError>(()) });
        let running = Running::start(&system, worker.build().unwrap());
        let later = NewTask::new("step", "").unwrap().scheduled_in(Duration::from_secs(3600));
        let made = create(&system, later).await.id;
        system.client().retry(made, soon()).await.unwrap();
        assert_eq!(ended(&system, made).await.info.state, TaskState::Succeeded, "{route:?}");
        running.stop().await;
    }
}
