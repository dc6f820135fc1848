//! Concurrent calls on the same tasks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::task::{
    Finish, Heartbeat, NewTask, TaskId, TaskLease, TaskNotice, TaskOutcome, TaskRoutes, TaskStanding, TaskStore,
};
use postrider_core::{Deadline, MessagingError, MessagingService};
use postrider_postgres::tokio_postgres::{self, NoTls};
use postrider_postgres::{PostgresOptions, PostgresStore, PostgresTasks};
use tokio::time::Instant;

use super::{LEASE, claim, create, done, keyed, mail, task, tasks_of, wanted};
use crate::wake_ups::PATIENCE;
use crate::{Fixture, client, soon, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_claimers_never_share_a_task_nor_a_key() {
    const TASKS: usize = 2000;
    const KEYED: usize = 200;
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let mut new: Vec<NewTask> = (0..TASKS).map(|_| task()).collect();
    new.extend((0..KEYED).map(|n| keyed(&format!("key-{}", n % 20))));
    let made: Vec<(TaskId, Option<String>)> =
        new.iter().map(|task| (task.id, task.ordering_key.as_ref().map(ToString::to_string))).collect();
    for part in new.chunks(500) {
        create(&tasks, part.to_vec()).await;
    }
    let seen: Arc<Mutex<HashMap<TaskId, usize>>> = Arc::default();
    let running: Arc<Mutex<HashSet<String>>> = Arc::default();
    let order: Arc<Mutex<BTreeMap<String, Vec<TaskId>>>> = Arc::default();
    let left = Arc::new(AtomicUsize::new(TASKS + KEYED));
    let workers = (0..8).map(|_| {
        let (tasks, seen, running, order, left) =
            (tasks.clone(), seen.clone(), running.clone(), order.clone(), left.clone());
        tokio::spawn(async move {
            let mut finished = Vec::new();
            while left.load(Ordering::SeqCst) > 0 {
                let both =
                    tasks.finish_and_claim(std::mem::take(&mut finished), Some(wanted(25)), soon()).await.unwrap();
                assert!(both.finished.iter().all(|standing| *standing == TaskStanding::Held));
                for task in &both.claimed {
                    *seen.lock().unwrap().entry(task.lease.id).or_default() += 1;
                    if let Some(key) = &task.ordering_key {
                        assert!(running.lock().unwrap().insert(key.to_string()), "two of {key} run at once");
                        order.lock().unwrap().entry(key.to_string()).or_default().push(task.lease.id);
                    }
                }
                tokio::task::yield_now().await;
                for task in both.claimed {
                    if let Some(key) = &task.ordering_key {
                        running.lock().unwrap().remove(key.as_str());
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                    finished.push(done(task.lease));
                }
            }
            tasks.finish(finished, soon()).await.unwrap();
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert!(made.iter().all(|(id, _)| seen.get(id) == Some(&1)), "every task is claimed once");
    let mut expected: BTreeMap<String, Vec<TaskId>> = BTreeMap::new();
    for (id, key) in made.into_iter().filter_map(|(id, key)| Some((id, key?))) {
        expected.entry(key).or_default().push(id);
    }
    assert_eq!(*order.lock().unwrap(), expected, "the tasks of a key run in their order");
}

/// A test's own database: the server counts deadlocks per database.
struct OwnDatabase {
    name: String,
}

impl OwnDatabase {
    async fn new() -> Self {
        let name = format!("test_{:016x}", rand::random::<u64>());
        client().await.batch_execute(&format!("create database {name}")).await.unwrap();
        Self { name }
    }

    fn url(&self) -> String {
        let url = url();
        let (server, _) = url.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }

    /// Returns the number of deadlocks, which is complete when every session has ended.
    async fn deadlocks(&self) -> i64 {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let others = "select count(*) from pg_stat_activity where datname = current_database() \
                      and pid <> pg_backend_pid() and backend_type = 'client backend'";
        let end = Instant::now() + PATIENCE;
        while client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(Instant::now() < end, "sessions did not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let count = "select deadlocks from pg_stat_database where datname = current_database()";
        client.query_one(count, &[]).await.unwrap().get(0)
    }

    async fn remove(self) {
        client().await.batch_execute(&format!("drop database {} with (force)", self.name)).await.unwrap();
    }
}

/// Ends these leases in three ways, so that three statements run, the last one with the lowest id.
fn ends(leases: &[TaskLease]) -> Vec<Finish> {
    let mut leases = leases.to_vec();
    leases.sort_by_key(|lease| lease.id);
    let end = |(n, lease): (usize, TaskLease)| Finish {
        lease,
        outcome: match n % 3 {
            0 => TaskOutcome::Released,
            1 if n % 30 == 1 => TaskOutcome::Succeeded { result: None },
            _ => TaskOutcome::Retry { after: Duration::ZERO, error: "no route".into() },
        },
    };
    leases.into_iter().enumerate().map(end).rev().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_batches_do_not_deadlock() {
    const ROUNDS: usize = 40;
    const TASKS: usize = 200;
    let database = OwnDatabase::new().await;
    let store = PostgresStore::open(&database.url(), PostgresOptions::default()).await.unwrap();
    let tasks = PostgresTasks::new(store.connect().unwrap(), TaskRoutes::default()).unwrap();
    let held: Arc<Mutex<Vec<TaskLease>>> = Arc::default();
    let is_over = Arc::new(AtomicBool::new(false));
    // Other calls use the same tasks, each in its own order.
    let others: Vec<_> = (0..4)
        .map(|other| {
            let (tasks, held, is_over) = (tasks.clone(), held.clone(), is_over.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let mut leases = held.lock().unwrap().clone();
                    let middle = leases.len() / 2;
                    leases.rotate_left(if other % 2 == 0 { 0 } else { middle });
                    let ids: Vec<TaskId> = leases.iter().rev().map(|lease| lease.id).collect();
                    match other {
                        0 | 1 => {
                            let beats = leases.iter().map(|lease| Heartbeat { lease: *lease, progress: None });
                            drop(tasks.heartbeat(beats.collect(), LEASE, soon()).await.unwrap());
                        }
                        2 => drop(tasks.run_now(&ids, soon()).await.unwrap()),
                        _ => drop(tasks.cancel(&ids[..ids.len() / 20], soon()).await.unwrap()),
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let (mut finished, mut ended) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let new = (0..TASKS / 4).map(|n| if n % 2 == 0 { keyed(&format!("key-{}", n % 8)) } else { task() }).collect();
        create(&tasks, new).await;
        let both = tasks.finish_and_claim(std::mem::take(&mut finished), Some(wanted(TASKS)), soon()).await.unwrap();
        ended += both.finished.iter().filter(|standing| **standing == TaskStanding::Held).count();
        let leases: Vec<TaskLease> = both.claimed.iter().map(|task| task.lease).collect();
        finished = ends(&leases);
        *held.lock().unwrap() = leases;
    }
    is_over.store(true, Ordering::SeqCst);
    for other in others {
        other.await.unwrap();
    }
    assert!(ended > TASKS, "{ended} attempts were ended");
    tasks.provider().close(soon()).await.unwrap();
    drop((tasks, store));
    assert_eq!(database.deadlocks().await, 0);
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_claimed_for_a_caller_that_is_gone_are_released_uncounted() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let id = create(&tasks, vec![task()]).await[0];
    let mut own = client().await;
    let lock = own.transaction().await.unwrap();
    lock.batch_execute(&format!("lock table {}.task in exclusive mode", fixture.schema)).await.unwrap();
    let left = tasks.claim(wanted(1), Deadline::after(Duration::from_secs(1))).await;
    assert!(matches!(left, Err(MessagingError::OutcomeUnknown { .. })), "{left:?}");
    let left = tasks.claim_by_id(&[id], LEASE, "left", Deadline::after(Duration::from_secs(1))).await;
    assert!(matches!(left, Err(MessagingError::OutcomeUnknown { .. })), "{left:?}");
    let mut hints = tasks.subscribe_tasks(TaskNotice::Claimable(vec![mail()]), soon()).await.unwrap();
    lock.commit().await.unwrap();
    let back = async {
        loop {
            if let [task] = &claim(&tasks, 1).await[..] {
                return task.attempt_count;
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), hints.next()).await;
        }
    };
    let attempt = tokio::time::timeout(PATIENCE, back).await.expect("it comes back");
    assert_eq!(attempt, 1, "attempts without a caller are not counted");
}
