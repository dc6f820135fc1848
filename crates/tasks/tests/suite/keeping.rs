//! What keeps tasks going when messages, workers or brokers are lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider_conformance::{forward_admin, forward_dead_letters};
use postrider_core::memory::MemoryStore;
use postrider_core::task::{ClaimTasks, DeadReason, NewTask, TaskStore, TaskType};
use postrider_core::{
    Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, Message,
    MessageId, MessagingError, MessagingService, PeekedMessage, Provider, QueueAdmin, QueueHealthReport, QueueName,
    QueueStats, QueuedMessage, ReceiptHandle, ReceiveOptions, Redrive, RedriveReport, RetryStrategy, RowResults,
    Settlement, SharedProvider, TaskState, WakeUps, async_trait,
};
use postrider_sqlite::SqliteTasks;
use postrider_tasks::{HandlerError, Shutdown, TaskContext, Tasks};

use crate::world::{Running, System, Way, World, create, ended, get, start_keeper, state};
use crate::{PATIENCE, soon, until};

fn queue() -> QueueName {
    QueueName::new("task_step").unwrap()
}

fn step() -> NewTask {
    NewTask::new("step", "").unwrap().retry_strategy(RetryStrategy::constant(Duration::from_millis(5)))
}

fn worker(system: &System) -> postrider_tasks::TaskWorker<SqliteTasks, SharedProvider> {
    system.worker().handler("step", |_: TaskContext| async { Ok::<_, HandlerError>(()) }).build().unwrap()
}

async fn waiting(queues: &SharedProvider) -> u64 {
    queues.queue_stats(&queue(), soon()).await.unwrap().message_count().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_sent_once_and_a_backlog_stays_what_it_is() {
    const TASKS: usize = 300;
    for way in [Way::Here, Way::Outbox] {
        let world = World::new(way);
        let system = world.system().await;
        let shutdown = Shutdown::new();
        // Two of them, as on two hosts. Each looks for lost messages twice in each grace of a second.
        let keepers = [start_keeper(&system, &shutdown), start_keeper(&world.system().await, &shutdown)];
        let new = (0..TASKS).map(|_| step()).collect();
        for made in system.client().create_many(new, soon()).await.unwrap() {
            made.unwrap();
        }
        let queues = world.queues().await;
        until("all are on their way", PATIENCE, || async { waiting(&queues).await == TASKS as u64 }).await;
        // Two graces without a worker: a backlog is no reason to send anything again.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        assert_eq!(waiting(&queues).await, TASKS as u64, "{way:?}");
        shutdown.request();
        for keeper in keepers {
            keeper.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_lost_is_sent_again() {
    for way in [Way::Here, Way::Outbox] {
        let world = World::new(way);
        let system = world.system().await;
        let shutdown = Shutdown::new();
        let keeper = start_keeper(&system, &shutdown);
        let made = [create(&system, step()).await.id, create(&system, step()).await.id];
        let queues = world.queues().await;
        until("both are on their way", PATIENCE, || async { waiting(&queues).await == 2 }).await;
        assert_eq!(queues.purge(&queue(), soon()).await.unwrap(), 2);
        until("both are sent again", PATIENCE, || async { waiting(&queues).await == 2 }).await;
        shutdown.request();
        keeper.await.unwrap();
        let running = Running::start(&system, worker(&system));
        for id in made {
            assert_eq!(ended(&system, id).await.info.state, TaskState::Succeeded, "{way:?}");
        }
        running.stop().await;
    }
}

/// Claims a task as a worker does that is never heard of again.
async fn claim_and_vanish(system: &System, id: postrider_core::TaskId) {
    let lease = Duration::from_millis(150);
    let answers = system.client().store().claim_by_id(&[id], lease, "gone:1", soon()).await.unwrap();
    assert!(matches!(answers[0], postrider_core::task::ClaimAnswer::Claimed(_)), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_lost_worker_is_tried_again_or_dead() {
    for way in Way::ALL {
        let world = World::new(way);
        let system = world.system().await;
        let again = create(&system, step()).await.id;
        let last = create(&system, step().max_attempts(1)).await.id;
        claim_and_vanish(&system, again).await;
        claim_and_vanish(&system, last).await;
        let running = Running::start(&system, worker(&system));
        let again = ended(&system, again).await;
        assert_eq!((again.info.state, again.info.attempt_count), (TaskState::Succeeded, 2), "{way:?}");
        let history = system.client().attempts(again.info.id, soon()).await.unwrap();
        assert_eq!((&*history[0].worker, history.len()), ("gone:1", 2));
        let last = ended(&system, last).await;
        assert_eq!((last.info.state, last.info.dead_reason), (TaskState::Dead, Some(DeadReason::LeaseLost)));
        assert!(last.info.last_error.unwrap().contains("gone:1"));
        running.stop().await;
        let events = crate::working::events(&world, 1).await;
        assert_eq!((events[0].task_id, events[0].reason), (last.info.id, DeadReason::LeaseLost));
    }
}

/// One million would take minutes; what is shown is that a claim's answer does not depend on what has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_has_one_worker_however_many_look() {
    const TASKS: usize = 400;
    let world = World::new(Way::Polling);
    let systems = [world.system().await, world.system().await, world.system().await];
    let new = (0..TASKS).map(|_| step()).collect();
    for made in systems[0].client().create_many(new, soon()).await.unwrap() {
        made.unwrap();
    }
    let claims = systems.iter().map(|system| async move {
        let mut mine = Vec::new();
        loop {
            let claim = ClaimTasks {
                types: vec![TaskType::new("step").unwrap()],
                max: 7,
                lease: Duration::from_secs(60),
                worker: "w".into(),
            };
            let claimed = system.client().store().claim(claim, soon()).await.unwrap().claimed;
            if claimed.is_empty() {
                return mine;
            }
            mine.extend(claimed.into_iter().map(|task| task.lease.id));
        }
    });
    let claimed: Vec<_> = futures_util::future::join_all(claims).await.into_iter().flatten().collect();
    assert_eq!((claimed.len(), claimed.iter().collect::<HashSet<_>>().len()), (TASKS, TASKS));
}

/// Queues that cannot be reached while that is so, and whose every third send is made but not answered.
#[derive(Clone)]
struct Moody<P> {
    inner: P,
    is_away: Arc<AtomicBool>,
    sends: Arc<AtomicUsize>,
}

fn unreachable() -> MessagingError {
    MessagingError::Connection { provider: "moody", detail: "it is away".into(), source: None }
}

#[async_trait]
impl<P: Provider> MessagingService for Moody<P> {
    fn provider_name(&self) -> &'static str {
        "moody"
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(unreachable()),
            false => self.inner.ensure_queue(queue, deadline).await,
        }
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let sent = self.inner.send_batch(queue, messages, deadline).await?;
        match self.sends.fetch_add(1, Ordering::SeqCst) % 3 {
            2 => Err(MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None }),
            _ => Ok(sent),
        }
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.inner.receive_messages(queue, options, deadline).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.inner.settle(settlements, deadline).await
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.inner.extend_visibility(queue, receipt, extension, deadline).await
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        self.inner.receive_by_id(queue, id, options, deadline).await
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.inner.subscribe(queue, deadline).await
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.health_check(deadline).await
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.close(deadline).await
    }
}

forward_admin!(Moody);
forward_dead_letters!(Moody);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_or_forgets_to_answer_loses_no_task() {
    let world = World::new(Way::Outbox);
    let is_away = Arc::new(AtomicBool::new(true));
    let moody = Moody { inner: MemoryStore::new().open(), is_away: is_away.clone(), sends: Arc::default() };
    let moody = SharedProvider::new(moody);
    let system = Tasks::new(SqliteTasks::new(world.connect().await, world.routes()).unwrap(), moody);
    let made = create(&system, step()).await.id;
    let running = Running::start(&system, worker(&system));
    until("it is on its way, by the store", PATIENCE, || async { state(&system, made).await == TaskState::Enqueued })
        .await;
    is_away.store(false, Ordering::SeqCst);
    let mut all = vec![made];
    for _ in 0..20 {
        all.push(create(&system, step()).await.id);
    }
    for id in all {
        let task = ended(&system, id).await;
        assert_eq!((task.info.state, task.info.attempt_count), (TaskState::Succeeded, 1));
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_long_ago_is_removed_and_the_dead_stay() {
    let world = World::new(Way::Polling);
    let system = world.system().await;
    let done = create(&system, step()).await.id;
    let dead = create(&system, NewTask::new("fails", "").unwrap()).await.id;
    let both = system
        .worker()
        .handler("step", |_: TaskContext| async { Ok::<_, HandlerError>(()) })
        .handler("fails", |_: TaskContext| async { Err::<(), _>(HandlerError::permanent("no")) });
    both.stop_when_empty(true).build().unwrap().run(Shutdown::new()).await.unwrap();
    assert_eq!(get(&system, done).await.info.state, TaskState::Succeeded);
    let shutdown = Shutdown::new();
    let options = postrider_tasks::TaskKeeperOptions {
        retention: Some(Duration::from_millis(1)),
        ..postrider_tasks::TaskKeeperOptions::default()
    };
    let keeper = tokio::spawn(system.keeper(options).run(shutdown.clone()));
    until("the one that succeeded is gone", PATIENCE, || async {
        matches!(system.client().get(done, soon()).await, Err(MessagingError::TaskNotFound { .. }))
    })
    .await;
    assert_eq!(state(&system, dead).await, TaskState::Dead);
    shutdown.request();
    keeper.await.unwrap().unwrap();
}
