//! A worker that is stopped for longer than its lease and then continues.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postrider::task::{AttemptOutcome, NewTask, TaskState};
use postrider::tasks::{HandlerError, Shutdown, TaskContext};

use super::{Common, LEASE, Queue, System, TIME_LIMIT, close, quickly, soon, until};

const FAILS: &str = "fails";
const SUCCEEDS: &str = "succeeds";

/// The worker's side: its handlers report their start and end a little later.
pub(super) async fn work(system: System, journal: &Path) {
    let folder = journal.parent().unwrap().to_owned();
    let handle = move |task: TaskContext| {
        let folder = folder.clone();
        async move {
            let name = String::from_utf8_lossy(task.payload()).into_owned();
            std::fs::write(folder.join(format!("{name}.begun")), "")?;
            let goes_on = folder.join("goes_on");
            while !goes_on.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            std::fs::write(folder.join(format!("{name}.ended")), "")?;
            if name == FAILS { Err(HandlerError::permanent("from the past")) } else { Ok("from the past") }
        }
    };
    let worker = system.worker().handler("late", handle).max_workers(2).lease(LEASE);
    worker.build().unwrap().run(Shutdown::new()).await.unwrap();
}

async fn a_late_worker_changes_nothing(common: Common) {
    let system = common.system().await;
    let mut made = Vec::new();
    for name in [SUCCEEDS, FAILS] {
        let task = NewTask::new("late", name).unwrap().retry_strategy(quickly());
        made.push(system.client().create(task, soon()).await.unwrap().id);
    }
    let keeper = common.start("keeper", 1);
    let late = common.start("stopped", 2);
    let pid = Pid::from_raw(late.id().try_into().unwrap());
    let file = |name: &str| common.folder.path().join(name);
    until("both have begun", TIME_LIMIT, || async { file("succeeds.begun").exists() && file("fails.begun").exists() })
        .await;
    kill(pid, Signal::SIGSTOP).unwrap();
    until("both are taken from it", TIME_LIMIT, || async {
        let mut are_taken = true;
        for id in &made {
            are_taken &= system.client().get(*id, soon()).await.unwrap().info.state == TaskState::Enqueued;
        }
        are_taken
    })
    .await;
    // In this process the next attempt of one is running, that of the other has ended.
    let (begun, go_on) =
        (std::sync::Arc::new(tokio::sync::Semaphore::new(0)), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let (told, gate) = (begun.clone(), go_on.clone());
    let shutdown = Shutdown::new();
    let worker = system.worker().lease(LEASE).handler("late", move |task: TaskContext| {
        let (told, gate) = (told.clone(), gate.clone());
        async move {
            told.add_permits(1);
            if task.payload() == FAILS {
                gate.acquire().await?.forget();
            }
            Ok::<_, HandlerError>("from now")
        }
    });
    let worker = tokio::spawn(worker.build().unwrap().run(shutdown.clone()));
    begun.acquire_many(2).await.unwrap().forget();
    std::fs::write(file("goes_on"), "").unwrap();
    kill(pid, Signal::SIGCONT).unwrap();
    until("the late worker has answered both", TIME_LIMIT, || async {
        file("succeeds.ended").exists() && file("fails.ended").exists()
    })
    .await;
    // Once it has run another task, it has reported both results to the store.
    let another = NewTask::new("late", "another").unwrap();
    let another = system.client().create(another, soon()).await.unwrap().id;
    system.client().ended(another, soon()).await.unwrap();
    let running = system.client().get(made[1], soon()).await.unwrap().info;
    assert_eq!((running.state, running.attempt_count), (TaskState::Processing, 2), "the newer attempt still has it");
    go_on.add_permits(1);
    for id in made {
        let task = system.client().ended(id, soon()).await.unwrap();
        assert_eq!((task.info.state, task.info.attempt_count), (TaskState::Succeeded, 2));
        assert_eq!(task.result.as_deref(), Some(&b"from now"[..]));
        let outcomes: Vec<_> = system.client().attempts(id, soon()).await.unwrap().iter().map(|a| a.outcome).collect();
        assert_eq!(outcomes, [AttemptOutcome::LeaseLost, AttemptOutcome::Succeeded]);
    }
    shutdown.request();
    worker.await.unwrap().unwrap();
    drop((keeper, late));
    close(&system).await;
    common.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_stopped_changes_nothing_on_a_file() {
    a_late_worker_changes_nothing(Common::on_a_file(Queue::None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_stopped_changes_nothing_on_postgres_with_queues() {
    a_late_worker_changes_nothing(Common::on_postgres(Queue::Here)).await;
}
