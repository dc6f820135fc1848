//! The keeper's chores: what happens when messages, workers or brokers are lost.

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

use crate::fixture::{Fixture, Route, Running, System, create, ended, get, start_keeper, state};
use crate::{TIME_LIMIT, soon, until};

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
async fn a_task_is_sent_once_and_a_backlog_does_not_grow() {
    const TASKS: usize = 300;
    for route in [Route::Here, Route::Outbox] {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let shutdown = Shutdown::new();
        // Two keepers, as on two hosts. Each searches for lost messages twice in each grace of a second.
        let keepers = [start_keeper(&system, &shutdown), start_keeper(&fixture.system().await, &shutdown)];
        let new = (0..TASKS).map(|_| step()).collect();
        for made in system.client().create_many(new, soon()).await.unwrap() {
            made.unwrap();
        }
        let queues = fixture.queues().await;
        until("all are enqueued", TIME_LIMIT, || async { waiting(&queues).await == TASKS as u64 }).await;
        // Two graces without a worker: a backlog must not be sent again.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        assert_eq!(waiting(&queues).await, TASKS as u64, "{route:?}");
        shutdown.request();
        for keeper in keepers {
            keeper.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_is_sent_again() {
    for route in [Route::Here, Route::Outbox] {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let shutdown = Shutdown::new();
        let keeper = start_keeper(&system, &shutdown);
        let made = [create(&system, step()).await.id, create(&system, step()).await.id];
        let queues = fixture.queues().await;
        until("both are enqueued", TIME_LIMIT, || async { waiting(&queues).await == 2 }).await;
        assert_eq!(queues.purge(&queue(), soon()).await.unwrap(), 2);
        until("both are sent again", TIME_LIMIT, || async { waiting(&queues).await == 2 }).await;
        shutdown.request();
        keeper.await.unwrap();
        let running = Running::start(&system, worker(&system));
        for id in made {
            assert_eq!(ended(&system, id).await.info.state, TaskState::Succeeded, "{route:?}");
        }
        running.stop().await;
    }
}

/// Claims a task as a worker that dies does.
async fn claim_and_vanish(system: &System, id: postrider_core::TaskId) {
    let lease = Duration::from_millis(150);
    let answers = system.client().store().claim_by_id(&[id], lease, "gone:1", soon()).await.unwrap();
    assert!(matches!(answers[0], postrider_core::task::ClaimAnswer::Claimed(_)), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_lost_worker_is_retried_or_dead() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let again = create(&system, step()).await.id;
        let last = create(&system, step().max_attempts(1)).await.id;
        claim_and_vanish(&system, again).await;
        claim_and_vanish(&system, last).await;
        let running = Running::start(&system, worker(&system));
        let again = ended(&system, again).await;
        assert_eq!((again.info.state, again.info.attempt_count), (TaskState::Succeeded, 2), "{route:?}");
        let history = system.client().attempts(again.info.id, soon()).await.unwrap();
        assert_eq!((&*history[0].worker, history.len()), ("gone:1", 2));
        let last = ended(&system, last).await;
        assert_eq!((last.info.state, last.info.dead_reason), (TaskState::Dead, Some(DeadReason::LeaseLost)));
        assert!(last.info.last_error.unwrap().contains("gone:1"));
        running.stop().await;
        let events = crate::working::events(&fixture, 1).await;
        assert_eq!((events[0].task_id, events[0].reason), (last.info.id, DeadReason::LeaseLost));
    }
}

/// Concurrent claims: no task is claimed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_has_one_worker_whatever_the_number_of_claimers() {
    const TASKS: usize = 400;
    let fixture = Fixture::new(Route::Polling);
    let systems = [fixture.system().await, fixture.system().await, fixture.system().await];
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

/// A provider that is unreachable while `is_away`, and loses the answer of every third send.
#[derive(Clone)]
struct FlakyProvider<P> {
    inner: P,
    is_away: Arc<AtomicBool>,
    sends: Arc<AtomicUsize>,
}

fn unreachable() -> MessagingError {
    MessagingError::Connection { provider: "flaky", detail: "it is away".into(), source: None }
}

#[async_trait]
impl<P: Provider> MessagingService for FlakyProvider<P> {
    fn provider_name(&self) -> &'static str {
        "flaky"
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

forward_admin!(FlakyProvider);
forward_dead_letters!(FlakyProvider);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_unreachable_or_loses_answers_loses_no_task() {
    let fixture = Fixture::new(Route::Outbox);
    let is_away = Arc::new(AtomicBool::new(true));
    let flaky = FlakyProvider { inner: MemoryStore::new().open(), is_away: is_away.clone(), sends: Arc::default() };
    let flaky = SharedProvider::new(flaky);
    let system = Tasks::new(SqliteTasks::new(fixture.connect().await, fixture.routes()).unwrap(), flaky);
    let made = create(&system, step()).await.id;
    let running = Running::start(&system, worker(&system));
    until("it is enqueued in the store", TIME_LIMIT, || async { state(&system, made).await == TaskState::Enqueued })
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
async fn old_finished_tasks_are_removed_and_dead_tasks_stay() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
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
    until("the successful task is removed", TIME_LIMIT, || async {
        matches!(system.client().get(done, soon()).await, Err(MessagingError::TaskNotFound { .. }))
    })
    .await;
    assert_eq!(state(&system, dead).await, TaskState::Dead);
    shutdown.request();
    keeper.await.unwrap().unwrap();
}
