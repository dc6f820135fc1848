//! Typed tasks, and handlers with the subscriber's arguments and layers.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{DeadReason, NewTask, TaskState};
use postrider_core::{Headers, Json, MessageId, RetryStrategy, TaskId};
use postrider_subscriber::{Attempt, Control, OrderingKey};
use postrider_tasks::layers::{ConcurrencyLimitLayer, TimeoutLayer, TraceLayer};
use postrider_tasks::{HandlerError, State, TaskContext, TaskKind, TaskResultError, TaskWorkerOptions, handler};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tower::ServiceBuilder;

use crate::fixture::{Fixture, Route, Running, System, create, ended, get, state};
use crate::{TIME_LIMIT, soon, until};

#[derive(Debug, Serialize, Deserialize)]
struct SendInvoice {
    order: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    order: u64,
    attempt: u32,
}

impl TaskKind for SendInvoice {
    const TYPE: &'static str = "invoice.send";
    type Result = Sent;
}

/// A type without a result.
#[derive(Serialize, Deserialize)]
struct CleanUp;

impl TaskKind for CleanUp {
    const TYPE: &'static str = "clean.up";
    type Result = ();
}

async fn send(task: TaskContext, Json(invoice): Json<SendInvoice>) -> Result<Sent, HandlerError> {
    match invoice.order {
        0 => Err(HandlerError::permanent("order 0 does not exist")),
        order => Ok(Sent { order, attempt: task.attempt() }),
    }
}

async fn create_typed<K: TaskKind>(system: &System, payload: &K) -> TaskId {
    create(system, payload.new_task().unwrap()).await.id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_typed_task_returns_its_result_on_every_route() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system
            .worker()
            .handler_of::<SendInvoice, _>(send)
            .handler_of::<CleanUp, _>(async |Json(CleanUp): Json<CleanUp>| {});
        let running = Running::start(&system, worker.build().unwrap());
        let id = create_typed(&system, &SendInvoice { order: 7 }).await;
        let sent = system.client().result::<SendInvoice>(id, soon()).await.unwrap();
        assert_eq!(sent, Sent { order: 7, attempt: 1 }, "{route:?}");
        assert_eq!(get(&system, id).await.result.as_deref(), Some(&br#"{"order":7,"attempt":1}"#[..]));
        let id = create_typed(&system, &CleanUp).await;
        system.client().result::<CleanUp>(id, soon()).await.unwrap();
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_missing_result_names_the_task_its_state_and_its_error() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let client = system.client();
    let canceled = create_typed(&system, &SendInvoice { order: 1 }).await;
    client.cancel(canceled, soon()).await.unwrap();
    let worker = system.worker().handler_of::<SendInvoice, _>(send);
    let running = Running::start(&system, worker.build().unwrap());

    let dead = create_typed(&system, &SendInvoice { order: 0 }).await;
    let error = client.result::<SendInvoice>(dead, soon()).await.unwrap_err();
    assert!(matches!(&error, TaskResultError::NotSucceeded { id, state: TaskState::Dead, .. } if *id == dead));
    let text = format!("task {dead} is DEAD: order 0 does not exist; remove the cause and replay it");
    assert_eq!(error.to_string(), text);

    let error = client.result::<SendInvoice>(canceled, soon()).await.unwrap_err();
    assert!(matches!(&error, TaskResultError::NotSucceeded { id, state: TaskState::Canceled, .. } if *id == canceled));
    let text = format!("task {canceled} is CANCELED: no attempt has failed; create it again if its result is needed");
    assert_eq!(error.to_string(), text);

    // A payload of another type is dead at once.
    let odd = create(&system, NewTask::new(SendInvoice::TYPE, r#"{"order":"x"}"#).unwrap()).await.id;
    assert_eq!(ended(&system, odd).await.info.dead_reason, Some(DeadReason::Permanent));

    let sent = create_typed(&system, &SendInvoice { order: 2 }).await;
    let error = client.result::<CleanUp>(sent, soon()).await.unwrap_err();
    assert!(error.to_string().contains("is of type 'invoice.send', not 'clean.up'"), "{error}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_arguments_of_a_handler_are_the_parts_of_its_task() {
    async fn describe(
        State(greeting): State<&'static str>,
        OrderingKey(key): OrderingKey,
        Json(name): Json<String>,
        id: MessageId,
        task: TaskContext,
        Attempt(attempt): Attempt,
        headers: Headers,
    ) -> Result<Option<String>, HandlerError> {
        assert_eq!(id.as_uuid(), task.id().as_uuid());
        assert!(headers.is_empty() && task.is_leased());
        if attempt == 1 {
            return Err("again".into());
        }
        Ok(key.map(|key| format!("{greeting} {name}, {key}, attempt {attempt}")))
    }
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system.worker().service("describe", handler(describe).with_state("hello"));
        let running = Running::start(&system, worker.build().unwrap());
        let task = NewTask::new("describe", r#""Anna""#).unwrap().ordering_key("k").unwrap();
        let task = task.retry_strategy(RetryStrategy::constant(Duration::from_millis(5)));
        let id = create(&system, task).await.id;
        let result = ended(&system, id).await.result;
        assert_eq!(result.as_deref(), Some(&b"hello Anna, k, attempt 2"[..]), "{route:?}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_wrap_the_handler_of_a_task() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let limits = || {
        ServiceBuilder::new()
            .layer(TraceLayer::new())
            .layer(ConcurrencyLimitLayer::new(4))
            .layer(TimeoutLayer::new(Duration::from_millis(20)))
    };
    let slow = async |_: TaskContext| std::future::pending::<Result<String, HandlerError>>().await;
    let worker = system
        .worker()
        .handler_of::<SendInvoice, _>(limits().service(handler(send)))
        .service("slow", limits().service(handler(slow)));
    let running = Running::start(&system, worker.build().unwrap());
    let id = create_typed(&system, &SendInvoice { order: 7 }).await;
    assert_eq!(system.client().result::<SendInvoice>(id, soon()).await.unwrap().order, 7);
    let id = create(&system, NewTask::new("slow", "").unwrap().max_attempts(1)).await.id;
    let slow = ended(&system, id).await.info;
    assert_eq!(slow.dead_reason, Some(DeadReason::MaxAttempts));
    assert_eq!(slow.last_error.as_deref(), Some("the handler took longer than 20ms"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_for_a_permit_is_released_by_a_stop() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let go_on = Arc::new(Semaphore::new(0));
        let wait = async |State(gate): State<Arc<Semaphore>>| {
            gate.acquire().await?.forget();
            Ok::<_, HandlerError>(())
        };
        let wait = handler(wait).with_state(go_on.clone());
        let one = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).service(wait);
        let running = Running::start(&system, system.worker().service("step", one).build().unwrap());
        let first = create(&system, NewTask::new("step", "").unwrap()).await.id;
        until("the first runs", TIME_LIMIT, || async { state(&system, first).await == TaskState::Processing }).await;
        let second = create(&system, NewTask::new("step", "").unwrap()).await.id;
        until("the second waits", TIME_LIMIT, || async { state(&system, second).await == TaskState::Processing }).await;
        running.shutdown().request();
        // The first still holds the only permit.
        until("the second is released", TIME_LIMIT, || async { state(&system, second).await != TaskState::Processing })
            .await;
        go_on.add_permits(1);
        let report = running.stop().await;
        assert_eq!((report.counts.succeeded, report.counts.retried), (1, 0), "{route:?}");
        let second = get(&system, second).await.info;
        assert!(matches!(second.state, TaskState::Pending | TaskState::Enqueued), "{route:?}: {}", second.state);
        assert_eq!(second.attempt_count, 0, "{route:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_settle_its_task_by_hand() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let worker = system.worker().service("reject", async |control: Control| {
        control.reject("spoiled");
    });
    let running = Running::start(&system, worker.build().unwrap());
    let id = create(&system, NewTask::new("reject", "").unwrap()).await.id;
    let task = ended(&system, id).await.info;
    assert_eq!((task.dead_reason, task.last_error.as_deref()), (Some(DeadReason::Permanent), Some("spoiled")));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_timed_out_counts_although_it_was_released() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let options = TaskWorkerOptions { timeout: Some(Duration::from_millis(20)), ..TaskWorkerOptions::default() };
    let worker = system.worker().options(options).handler("slow", async |task: TaskContext| {
        task.cancellation().cancelled().await;
        task.release();
        Ok::<_, HandlerError>(())
    });
    let running = Running::start(&system, worker.build().unwrap());
    let id = create(&system, NewTask::new("slow", "").unwrap().max_attempts(1)).await.id;
    let task = ended(&system, id).await.info;
    assert_eq!((task.dead_reason, task.attempt_count), (Some(DeadReason::MaxAttempts), 1), "{:?}", task.last_error);
    running.stop().await;
}
