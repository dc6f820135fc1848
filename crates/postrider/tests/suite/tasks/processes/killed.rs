//! Workers and keepers that are killed repeatedly: each task ends exactly once.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider::task::{
    AttemptOutcome, DeadTaskEvent, NewTask, TaskAttempt, TaskFilter, TaskInfo, TaskQuery, TaskState, TaskStore,
};
use postrider::tasks::{HandlerError, Shutdown, TaskContext, TaskKeeperOptions, TaskWorkerOptions};
use postrider::{MessagingService, ReceiveOptions};
use postrider_conformance::private_server::PrivateServer;
use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::tasks::journal::{TaskJournal, WorkEnd, judge_tasks, read_task_journal};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Common, LEASE, Queue, System, a_name, close, quickly, soon, until};
use crate::is_long;
use crate::server::server_url;

const TYPES: [&str; 2] = ["mail", "bill"];
const KEEPERS: usize = 2;
const WORKERS: usize = 4;
/// More attempts than the kills that can hit one task.
const MAX_ATTEMPTS: u32 = 20;

/// The size of a storm.
#[derive(Debug, Clone, Copy)]
struct Storm {
    tasks: usize,
    kills: usize,
}

impl Storm {
    /// On a database alone.
    fn large() -> Self {
        if is_long() { Self { tasks: 20_000, kills: 120 } } else { Self { tasks: 1_000, kills: 12 } }
    }

    /// With a broker between.
    fn small() -> Self {
        if is_long() { Self { tasks: 2_000, kills: 40 } } else { Self { tasks: 400, kills: 8 } }
    }
}

fn task(number: usize) -> NewTask {
    let task = NewTask::new(TYPES[number % 2], number.to_string()).unwrap();
    let task = task.max_attempts(MAX_ATTEMPTS).retry_strategy(quickly());
    // Some are ordered, with few keys for contention.
    if number.is_multiple_of(5) { task.ordering_key(format!("k{}", number / 5 % 20)).unwrap() } else { task }
}

/// Makes tasks while workers and keepers are killed and replaced, until every task has ended. `fault` is called once in
/// the middle.
async fn storm(common: Common, storm: Storm, fault: impl FnOnce()) {
    let seed: u64 = rand::random();
    println!("{}, {storm:?}, seed {seed}", common.name);
    let mut chance = StdRng::seed_from_u64(seed);
    let system = common.system().await;
    // Before any kill: a broker that dies while it makes a queue can leave an unusable one behind.
    let routes = system.client().store().routes();
    for task_type in TYPES {
        let queue = routes.queue(&task_type.parse().unwrap()).unwrap();
        system.provider().ensure_queue(&queue, soon()).await.unwrap();
    }
    system.provider().ensure_queue(&common.dead_events(), soon()).await.unwrap();
    let mut started = 0;
    let mut start = |role: &'static str| {
        started += 1;
        (role, started, common.start(role, started), Instant::now())
    };
    let mut running: Vec<(&str, usize, WorkerProcess, Instant)> =
        (0..KEEPERS).map(|_| "keeper").chain((0..WORKERS).map(|_| "worker")).map(&mut start).collect();
    let mut made = 0;
    let mut fault = Some(fault);
    for kill in 0..storm.kills {
        let until = storm.tasks * (kill + 1) / storm.kills;
        for row in system.client().create_many((made..until).map(task).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
        made = until;
        let (role, number, victim, since) = running.swap_remove(chance.random_range(0..running.len()));
        // The victim has done some work and may be anywhere in its next attempt.
        let lines = chance.random_range(1..2_000);
        let journal = common.journal(number);
        self::until("the victim has made progress", Duration::from_secs(60), || async {
            match role {
                "worker" => {
                    let written = std::fs::metadata(&journal).map_or(0, |metadata| metadata.len());
                    written >= lines
                        || (written > 0 && since.elapsed() > Duration::from_secs(5))
                        || has_no_work(&system).await
                }
                _ => since.elapsed() > Duration::from_millis(300),
            }
        })
        .await;
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..20_000))).await;
        victim.kill().unwrap();
        running.push(start(role));
        if kill == storm.kills / 2
            && let Some(fault) = fault.take()
        {
            fault();
        }
    }
    let patience = Duration::from_secs(if is_long() { 900 } else { 120 });
    self::until("every task has ended", patience, || has_no_work(&system)).await;
    let found = gather(&system, &common, storm.tasks).await;
    for (.., process, _) in running {
        process.kill().unwrap();
    }
    let journals: Vec<_> = (1..=started).map(|number| read_task_journal(&common.journal(number)).unwrap()).collect();
    let (tasks, events) = found;
    let dead = tasks.iter().filter(|(task, _)| task.state == TaskState::Dead).count();
    println!("{started} processes, {} tasks, {dead} dead, {} events", tasks.len(), events.len());
    let violations = judge_tasks(&journals, &tasks, &events, LEASE);
    assert!(
        violations.is_empty(),
        "seed {seed}: {} violations: {:#?}",
        violations.len(),
        &violations[..violations.len().min(20)]
    );
    assert_eq!(tasks.len(), storm.tasks);
    assert!(dead > 0, "some must die");
    let lost = tasks.iter().flat_map(|(_, attempts)| attempts).filter(|attempt| is_lost(attempt)).count();
    // A short storm over a broker may by chance interrupt no attempt.
    assert!(lost > 0 || storm.tasks < Storm::large().tasks, "no attempt was interrupted");
    close(&system).await;
    common.remove().await;
}

fn is_lost(attempt: &TaskAttempt) -> bool {
    attempt.outcome == AttemptOutcome::LeaseLost
}

async fn has_no_work(system: &System) -> bool {
    let live = vec![TaskState::Pending, TaskState::Enqueued, TaskState::Processing];
    let filter = TaskFilter { states: live, ..TaskFilter::default() };
    let mut query = TaskQuery { filter, limit: 1, after: None };
    loop {
        let page = system.client().list(&query, soon()).await.unwrap();
        match page.next {
            _ if !page.tasks.is_empty() => return false,
            None => return true,
            next => query.after = next,
        }
    }
}

type Found = (Vec<(TaskInfo, Vec<TaskAttempt>)>, Vec<DeadTaskEvent>);

/// All tasks and attempts in the store, and all sent events.
async fn gather(system: &System, common: &Common, tasks: usize) -> Found {
    let mut all = Vec::with_capacity(tasks);
    let mut query = TaskQuery { limit: 1000, ..TaskQuery::default() };
    loop {
        let page = system.client().list(&query, soon()).await.unwrap();
        for task in page.tasks {
            // Most tasks succeeded at their first attempt; their row has everything.
            let attempts = system.client().attempts(task.id, soon()).await.unwrap();
            all.push((task, attempts));
        }
        match page.next {
            None => break,
            next => query.after = next,
        }
    }
    let dead = all.iter().filter(|(task, _)| task.state == TaskState::Dead).count();
    let mut events: Vec<DeadTaskEvent> = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    let options = ReceiveOptions::batch(100).wait(Duration::from_millis(500)).max_receive_count(1000);
    loop {
        let received = match system.provider().receive_messages(&common.dead_events(), &options, soon()).await {
            Ok(received) => received,
            // The broker was down, and this connection may still be reconnecting.
            Err(error) if error.is_retryable() && Instant::now() < end => continue,
            Err(error) => panic!("{error}"),
        };
        let is_all = events.len() >= dead;
        if received.is_empty() && (is_all || Instant::now() > end) {
            return (all, events);
        }
        for message in received {
            events.push(serde_json::from_slice(&message.message).unwrap());
            // A failed ack repeats the event, and a repeated event counts once.
            let _ = system.provider().ack_message(&common.dead_events(), message, soon()).await;
        }
    }
}

/// The worker's side.
pub(super) async fn work(system: System, journal: &Path) {
    // Handlers panic on purpose; keep that out of the test's output.
    std::panic::set_hook(Box::new(|_| {}));
    let name = format!("w{}", std::process::id());
    let journal = TaskJournal::open(journal, &name).unwrap();
    let handle = move |task: TaskContext| {
        let journal = journal.clone();
        async move {
            let number: u64 = String::from_utf8_lossy(task.payload()).parse()?;
            let note = journal.begin(task.id(), task.attempt(), None);
            tokio::time::sleep(Duration::from_micros(number * 7919 % 4000)).await;
            let answer = match number % 100 {
                // Fails once, then succeeds.
                3..=12 if task.attempt() == 1 => Err(HandlerError::retryable("not yet")),
                14 if task.attempt() == 1 => panic!("not yet either"),
                15 | 16 => Err(HandlerError::permanent("never")),
                _ => Ok(number.to_string()),
            };
            note.end(if answer.is_ok() { WorkEnd::Ok } else { WorkEnd::Failed });
            answer
        }
    };
    let worker = system.worker().handler(TYPES[0], handle.clone()).handler(TYPES[1], handle);
    let options = TaskWorkerOptions { name: Some(name), max_workers: 8, lease: LEASE, ..TaskWorkerOptions::default() };
    worker.options(options).build().unwrap().run(Shutdown::new()).await.unwrap();
}

/// The keeper's side.
pub(super) async fn keep(system: System) {
    let options = TaskKeeperOptions {
        reap_interval: Duration::from_millis(200),
        grace: Duration::from_secs(5),
        batch: 100,
        ..TaskKeeperOptions::default()
    };
    system.keeper(options).run(Shutdown::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_has_one_end_on_a_file_by_polling() {
    storm(Common::on_a_file(Queue::None), Storm::large(), || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_has_one_end_on_a_file_by_its_own_queues() {
    storm(Common::on_a_file(Queue::Here), Storm::large(), || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "killed workers of tasks on every store: scripts/test --full"]
async fn each_task_has_one_end_on_postgres_by_polling() {
    storm(Common::on_postgres(Queue::None), Storm::large(), || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_has_one_end_on_postgres_by_its_own_queues() {
    storm(Common::on_postgres(Queue::Here), Storm::large(), || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_has_one_end_over_a_broker_that_is_killed_too() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    let broker = PrivateServer::start(&script, "rabbitmq").unwrap();
    let url = broker.url().to_owned();
    storm(Common::on_postgres(Queue::At(url)), Storm::small(), || broker.crash().unwrap()).await;
    assert_eq!(broker.kills(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "killed workers of tasks on every store: scripts/test --full"]
async fn each_task_has_one_end_over_sqs() {
    let url = format!("{}/{}-", server_url("POSTRIDER_SQS_URL").trim_end_matches('/'), a_name());
    storm(Common::on_a_file(Queue::At(url)), Storm::small(), || ()).await;
}
