//! Stops of a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_core::task::{NewTask, TaskState};
use postrider_core::{MessagingService, RetryStrategy};
use postrider_tasks::{HandlerError, Shutdown, StopReason, TaskContext, TaskStopCause, TaskWorkerOptions};
use tokio::sync::Semaphore;

use crate::fixture::{Fixture, Route, Running, create, get, state};
use crate::{TIME_LIMIT, soon, until};

fn step() -> NewTask {
    NewTask::new("step", "").unwrap().retry_strategy(RetryStrategy::constant(Duration::from_millis(5)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_tasks_are_finished_and_waiting_ones_are_not_started() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let (began, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (started, gate) = (began.clone(), go_on.clone());
        let worker = system.worker().max_workers(1).handler("step", move |_: TaskContext| {
            let (started, gate) = (started.clone(), gate.clone());
            async move {
                started.add_permits(1);
                gate.acquire().await?.forget();
                Ok::<_, HandlerError>(())
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let made = [create(&system, step()).await.id, create(&system, step()).await.id];
        began.acquire().await.unwrap().forget();
        running.shutdown().request();
        go_on.add_permits(2);
        let report = running.stop().await;
        assert_eq!(report.cause, TaskStopCause::Requested);
        assert_eq!((report.counts.succeeded, report.counts.lost), (1, 0), "{route:?}");
        let states = [state(&system, made[0]).await, state(&system, made[1]).await];
        assert!(states.contains(&TaskState::Succeeded), "{states:?}");
        let left = states.iter().position(|state| *state != TaskState::Succeeded).unwrap();
        assert_eq!(get(&system, made[left]).await.info.attempt_count, 0, "{route:?}: it was not started");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_end_in_time_is_cancelled_and_its_task_retried() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let cancelled: crate::fixture::Notes<Option<StopReason>> = Default::default();
        let noted = cancelled.clone();
        let options = TaskWorkerOptions {
            graceful_timeout: Duration::from_millis(100),
            cancel_timeout: Duration::from_secs(1),
            ..TaskWorkerOptions::default()
        };
        let worker = system.worker().options(options).handler("step", move |task: TaskContext| {
            let noted = noted.clone();
            async move {
                task.cancellation().cancelled().await;
                noted.lock().unwrap().push(task.stop_reason());
                std::future::pending::<Result<(), HandlerError>>().await
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let made = create(&system, step()).await.id;
        until("it runs", TIME_LIMIT, || async { state(&system, made).await == TaskState::Processing }).await;
        let began = Instant::now();
        let report = running.stop().await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(cancelled.lock().unwrap()[..], [Some(StopReason::WorkerStopped)], "{route:?}");
        assert_eq!(report.counts.retried, 1, "{route:?}");
        let task = get(&system, made).await.info;
        assert_eq!((task.state, task.attempt_count), (TaskState::Enqueued, 1));
        assert_eq!(task.last_error.as_deref(), Some("the worker was stopped before it was done"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_ends_when_nothing_is_left_or_its_store_is_closed() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let worker = || system.worker().handler("step", |_: TaskContext| async { Ok::<_, HandlerError>(()) });
    create(&system, step()).await;
    create(&system, step().scheduled_in(Duration::from_secs(3600))).await;
    let report = worker().stop_when_empty(true).build().unwrap().run(Shutdown::new()).await.unwrap();
    assert_eq!((report.cause, report.counts.succeeded), (TaskStopCause::NothingLeft, 1), "what is not due stays");

    let provider = fixture.connect().await;
    let closing = postrider_sqlite::SqliteTasks::new(provider.clone(), fixture.routes()).unwrap();
    let closing = postrider_tasks::Tasks::new(closing, provider.clone());
    let worker = closing.worker().handler("step", |_: TaskContext| async { Ok::<_, HandlerError>(()) });
    let running = tokio::spawn(worker.build().unwrap().run(Shutdown::new()));
    provider.close(soon()).await.unwrap();
    let ended = tokio::time::timeout(TIME_LIMIT, running).await.expect("it ends").unwrap().unwrap();
    assert_eq!(ended.cause, TaskStopCause::StoreClosed);
}
