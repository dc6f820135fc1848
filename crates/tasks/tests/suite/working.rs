//! The outcomes of tasks that workers run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postrider_core::task::{AttemptOutcome, DeadReason, DeadTaskEvent, NewTask, TaskMessage, TaskState};
use postrider_core::{
    Json, Message, MessagingService, Priority, QueueAdmin, QueueName, ReceiveOptions, RetryStrategy, TaskId, Timestamp,
};
use postrider_tasks::{Classify, HandlerError, StopReason, TaskContext, TaskWorkerOptions};
use tokio::sync::Semaphore;

use crate::fixture::{Fixture, Notes, Route, Running, System, create, dead_events, ended, get, state};
use crate::{TIME_LIMIT, soon, until};

const QUICKLY: Duration = Duration::from_millis(5);

fn task(task_type: &str, payload: &'static str) -> NewTask {
    NewTask::new(task_type, payload).unwrap().retry_strategy(RetryStrategy::constant(QUICKLY))
}

async fn lease_end(system: &System, id: TaskId) -> Option<Timestamp> {
    get(system, id).await.info.lease_expires_at
}

async fn greet(task: TaskContext) -> Result<Json<String>, HandlerError> {
    let name: String = task.json()?;
    Ok(Json(format!("hello {name}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_succeeds_with_its_result_on_every_route() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system.worker().handler("greet", greet).build().unwrap();
        let running = Running::start(&system, worker);
        let made = create(&system, task("greet", r#""Anna""#)).await;
        let done = ended(&system, made.id).await;
        assert_eq!(done.info.state, TaskState::Succeeded, "{route:?}");
        assert_eq!(done.result.as_deref(), Some(&br#""hello Anna""#[..]));
        let attempts = system.client().attempts(made.id, soon()).await.unwrap();
        assert_eq!(attempts.len(), 1);
        assert_eq!(attempts[0].outcome, AttemptOutcome::Succeeded);
        let report = running.stop().await;
        assert_eq!((report.counts.succeeded, report.counts.lost), (1, 0), "{route:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_retried_and_a_permanent_one_is_not() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let worker = system.worker().handler("fails twice", |task: TaskContext| async move {
            if task.attempt() < 3 { Err(HandlerError::retryable("not yet")) } else { Ok("at last") }
        });
        // A type's name cannot have a blank.
        assert!(worker.build().is_err());
        let worker = system
            .worker()
            .handler("fails.twice", |task: TaskContext| async move {
                if task.attempt() < 3 { Err(HandlerError::retryable("not yet")) } else { Ok("at last") }
            })
            .handler("never", |_: TaskContext| async { Err::<(), _>("no use").permanent() })
            .handler("panics", |_: TaskContext| async { panic!("oh") as Result<(), HandlerError> })
            .build()
            .unwrap();
        let running = Running::start(&system, worker);
        let twice = create(&system, task("fails.twice", "")).await;
        let never = create(&system, task("never", "")).await;
        let panics = create(&system, task("panics", "").max_attempts(2)).await;

        let twice = ended(&system, twice.id).await;
        assert_eq!((twice.info.state, twice.info.attempt_count), (TaskState::Succeeded, 3), "{route:?}");
        let history = system.client().attempts(twice.info.id, soon()).await.unwrap();
        let outcomes: Vec<_> = history.iter().map(|attempt| (attempt.attempt, attempt.outcome)).collect();
        let expected = [AttemptOutcome::Failed, AttemptOutcome::Failed, AttemptOutcome::Succeeded];
        assert_eq!(outcomes, expected.into_iter().enumerate().map(|(n, o)| (n as u32 + 1, o)).collect::<Vec<_>>());
        assert_eq!(history[0].error.as_deref(), Some("not yet"));

        let never = ended(&system, never.id).await;
        assert_eq!((never.info.state, never.info.attempt_count), (TaskState::Dead, 1));
        assert_eq!(never.info.dead_reason, Some(DeadReason::Permanent));
        let panics = ended(&system, panics.id).await;
        assert_eq!((panics.info.dead_reason, panics.info.attempt_count), (Some(DeadReason::MaxAttempts), 2));
        assert_eq!(panics.info.last_error.as_deref(), Some("the handler panicked: oh"));
        running.stop().await;

        let mut dead = events(&fixture, 2).await;
        dead.sort_by_key(|event| event.task_id);
        let ids: Vec<_> = dead.iter().map(|event| event.task_id).collect();
        assert_eq!(ids, [never.info.id, panics.info.id], "{route:?}");
        assert_eq!((&*dead[0].error, dead[0].reason), ("no use", DeadReason::Permanent));
        assert_eq!((dead[1].attempt_count, dead[1].max_attempts), (2, 2));
    }
}

/// The events of `count` deaths, from their queue.
pub(crate) async fn events(fixture: &Fixture, count: usize) -> Vec<DeadTaskEvent> {
    let queues = fixture.queues().await;
    let mut events = Vec::new();
    let end = Instant::now() + TIME_LIMIT;
    while events.len() < count {
        assert!(Instant::now() < end, "only {} of {count} events were sent", events.len());
        let options = ReceiveOptions::batch(100).wait(Duration::from_millis(100));
        for message in queues.receive_messages(&dead_events(), &options, soon()).await.unwrap() {
            events.push(serde_json::from_slice(&message.message).unwrap());
            queues.ack_message(&dead_events(), message, soon()).await.unwrap();
        }
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_handler_is_cancelled_within_a_second() {
    for route in Route::ALL {
        let mut waits = Vec::new();
        // On a busy machine it may take longer, but not each time.
        while waits.last().is_none_or(|wait| *wait >= Duration::from_secs(1)) {
            assert!(waits.len() < 5, "{route:?}: {waits:?}");
            waits.push(time_to_cancel(route).await);
        }
    }
}

/// The time from the cancel of a task to the cancellation of its running handler.
async fn time_to_cancel(route: Route) -> Duration {
    let fixture = Fixture::new(route);
    let system = fixture.system().await;
    let cancelled: Notes<(Instant, Option<StopReason>)> = Notes::default();
    let noted = cancelled.clone();
    let worker = system.worker().handler("long", move |task: TaskContext| {
        let noted = noted.clone();
        async move {
            task.cancellation().cancelled().await;
            noted.lock().unwrap().push((Instant::now(), task.stop_reason()));
            Ok::<_, HandlerError>("too late")
        }
    });
    let running = Running::start(&system, worker.build().unwrap());
    let made = create(&system, task("long", "")).await;
    until("it runs", TIME_LIMIT, || async { state(&system, made.id).await == TaskState::Processing }).await;
    let requested = Instant::now();
    assert_eq!(system.client().cancel(made.id, soon()).await.unwrap(), TaskState::Processing);
    until("the handler is cancelled", TIME_LIMIT, || async { !cancelled.lock().unwrap().is_empty() }).await;
    let (at, reason) = cancelled.lock().unwrap()[0];
    assert_eq!(reason, Some(StopReason::Canceled));
    assert_eq!(running.stop().await.counts.lost, 1);
    let task = get(&system, made.id).await;
    assert_eq!((task.info.state, task.result), (TaskState::Canceled, None), "its result is discarded");
    at - requested
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_stored_while_the_handler_runs() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let go_on = Arc::new(Semaphore::new(0));
        let gate = go_on.clone();
        let worker = system.worker().handler("long", move |task: TaskContext| {
            let gate = gate.clone();
            async move {
                task.progress(0.5, "half route")?;
                assert!(task.progress(1.5, "more than all").is_err());
                gate.acquire().await?.forget();
                Ok::<_, HandlerError>(())
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let made = create(&system, task("long", "")).await;
        until("progress is seen", TIME_LIMIT, || async {
            let progress = get(&system, made.id).await.info.progress;
            progress.is_some_and(|progress| {
                progress.fraction == Some(0.5) && progress.text.as_deref() == Some("half route")
            })
        })
        .await;
        go_on.add_permits(1);
        assert_eq!(ended(&system, made.id).await.info.state, TaskState::Succeeded);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_as_long_as_the_handler_runs() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let (runs, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counted, gate) = (runs.clone(), go_on.clone());
        let worker = system.worker().lease(Duration::from_secs(4)).handler("long", move |_: TaskContext| {
            let (counted, gate) = (counted.clone(), gate.clone());
            async move {
                counted.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await?.forget();
                Ok::<_, HandlerError>(())
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let made = create(&system, task("long", "")).await;
        let mut end = None;
        for _ in 0..3 {
            until("its lease is renewed", TIME_LIMIT, || async { lease_end(&system, made.id).await > end }).await;
            end = lease_end(&system, made.id).await;
        }
        go_on.add_permits(1);
        let done = ended(&system, made.id).await;
        assert_eq!((done.info.state, done.info.attempt_count), (TaskState::Succeeded, 1), "{route:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_takes_too_long_fails_and_an_overdue_task_dies() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let options = TaskWorkerOptions {
            timeout: Some(Duration::from_millis(200)),
            cancel_timeout: Duration::from_millis(50),
            ..TaskWorkerOptions::default()
        };
        let worker = system
            .worker()
            .options(options)
            .handler("endless", |_: TaskContext| std::future::pending::<Result<(), HandlerError>>());
        let running = Running::start(&system, worker.build().unwrap());
        let slow = create(&system, task("endless", "").max_attempts(2)).await;
        let late = create(&system, task("endless", "").deadline_in(Duration::from_millis(100))).await;
        let waiting = NewTask::new("nobody", "").unwrap().deadline_in(Duration::from_millis(100));
        let waiting = create(&system, waiting).await;

        let slow = ended(&system, slow.id).await;
        assert_eq!((slow.info.dead_reason, slow.info.attempt_count), (Some(DeadReason::MaxAttempts), 2), "{route:?}");
        assert_eq!(slow.info.last_error.as_deref(), Some("the handler took longer than 200ms"));
        for id in [late.id, waiting.id] {
            let task = ended(&system, id).await;
            assert_eq!((task.info.state, task.info.dead_reason), (TaskState::Dead, Some(DeadReason::Deadline)));
        }
        running.stop().await;
        assert_eq!(events(&fixture, 3).await.len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_key_run_one_at_a_time_in_their_order() {
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let order: Notes<(String, u32)> = Notes::default();
        let at_once = Arc::new(AtomicU32::new(0));
        let noted = order.clone();
        let worker = system.worker().handler("step", move |task: TaskContext| {
            let (noted, at_once) = (noted.clone(), at_once.clone());
            async move {
                let is_keyed = task.ordering_key().is_some();
                if is_keyed {
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two of one key at once");
                }
                tokio::task::yield_now().await;
                let name = String::from_utf8_lossy(task.payload()).into_owned();
                noted.lock().unwrap().push((name.clone(), task.attempt()));
                if is_keyed {
                    at_once.fetch_sub(1, Ordering::SeqCst);
                }
                // The second task fails once, and stays the head of the key.
                if name == "1" && task.attempt() == 1 { Err("again") } else { Ok(()) }
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let mut made = Vec::new();
        for number in ["0", "1", "2", "3", "4"] {
            let keyed = task("step", number).ordering_key("customer").unwrap();
            made.push(create(&system, keyed).await.id);
        }
        let other = create(&system, task("step", "other")).await;
        for id in made.into_iter().chain([other.id]) {
            assert_eq!(ended(&system, id).await.info.state, TaskState::Succeeded, "{route:?}");
        }
        running.stop().await;
        let keyed: Vec<_> = order.lock().unwrap().iter().filter(|(name, _)| name != "other").cloned().collect();
        let expected = [("0", 1), ("1", 1), ("1", 2), ("2", 1), ("3", 1), ("4", 1)];
        assert_eq!(keyed, expected.map(|(name, attempt)| (name.to_owned(), attempt)), "{route:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_urgent_waiting_task_goes_first() {
    let fixture = Fixture::new(Route::Polling);
    let system = fixture.system().await;
    let order: Notes<u8> = Notes::default();
    for priority in [1, 9, 4, 7] {
        create(&system, task("step", "").priority(Priority::new(priority).unwrap())).await;
    }
    let noted = order.clone();
    let worker = system.worker().max_workers(1).stop_when_empty(true).handler("step", move |task: TaskContext| {
        noted.lock().unwrap().push(task.priority().get());
        async { Ok::<_, HandlerError>(()) }
    });
    worker.build().unwrap().run(postrider_tasks::Shutdown::new()).await.unwrap();
    assert_eq!(*order.lock().unwrap(), [9, 7, 4, 1]);
}

/// A broker that loses a message, and its lease, while the task runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_lost_during_an_attempt_does_not_end_it() {
    for route in [Route::Here, Route::Outbox] {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let lease = Duration::from_secs(2);
        let go_on = Arc::new(Semaphore::new(0));
        let gate = go_on.clone();
        let worker = system.worker().lease(lease).handler("long", move |task: TaskContext| {
            let gate = gate.clone();
            async move {
                tokio::select! {
                    opened = gate.acquire() => opened.unwrap().forget(),
                    () = task.cancellation().cancelled() => return Err(format!("cancelled: {:?}", task.stop_reason())),
                }
                Ok("done")
            }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let made = create(&system, task("long", "").max_attempts(1)).await;
        until("it runs", TIME_LIMIT, || async { state(&system, made.id).await == TaskState::Processing }).await;
        let queues = fixture.queues().await;
        queues.delete_queue(&QueueName::new("task_long").unwrap(), soon()).await.unwrap();
        // Until then the leases of the message and of the task must be renewed.
        let end = lease_end(&system, made.id).await.unwrap().saturating_add(lease);
        until("its lease outlasts the message's", TIME_LIMIT, || async {
            lease_end(&system, made.id).await >= Some(end)
        })
        .await;
        go_on.add_permits(1);
        let done = ended(&system, made.id).await;
        let what = (done.info.state, done.info.attempt_count, done.info.last_error.as_deref());
        assert_eq!(what, (TaskState::Succeeded, 1, None), "{route:?}");
        running.stop().await;
    }
}

/// Messages that the enqueuer has not sent, or that are repeated: they change nothing, and none stays in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_and_repeated_messages_are_settled_and_change_nothing() {
    for route in [Route::Here, Route::Outbox] {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let worker = system.worker().handler("step", move |_: TaskContext| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, HandlerError>(()) }
        });
        let running = Running::start(&system, worker.build().unwrap());
        let done = create(&system, task("step", "")).await;
        ended(&system, done.id).await;
        let canceled = create(&system, task("step", "").scheduled_in(Duration::from_secs(3600))).await;
        system.client().cancel(canceled.id, soon()).await.unwrap();
        let later = create(&system, task("step", "").scheduled_in(Duration::from_secs(3600))).await;
        let of_another_type = create(&system, task("other", "")).await;

        let queues = fixture.queues().await;
        let queue = QueueName::new("task_step").unwrap();
        let forged = [done.id, done.id, canceled.id, of_another_type.id, postrider_core::TaskId::generate()];
        let mut messages: Vec<Message> =
            forged.iter().map(|id| TaskMessage::message(*id, Priority::default()).unwrap()).collect();
        messages.push(Message::new(vec![0xff, 0x00, 0x7f]));
        messages.push(Message::new(""));
        messages.push(TaskMessage::message(later.id, Priority::default()).unwrap());
        for row in queues.send_batch(&queue, messages, soon()).await.unwrap() {
            row.unwrap();
        }
        until("every message is settled", TIME_LIMIT, || async {
            let stats = queues.queue_stats(&queue, soon()).await.unwrap();
            // The message that came too early waits until its task is due.
            (stats.ready.value(), stats.in_flight.value(), stats.delayed.value()) == (Some(0), Some(0), Some(1))
        })
        .await;
        assert_eq!(
            queues.queue_stats(&queue, soon()).await.unwrap().dead.value(),
            Some(2),
            "messages without a task id"
        );
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{route:?}");
        assert_eq!(state(&system, done.id).await, TaskState::Succeeded);
        assert_eq!(get(&system, done.id).await.info.attempt_count, 1);
        assert_eq!(state(&system, canceled.id).await, TaskState::Canceled);
        assert_eq!(get(&system, later.id).await.info.attempt_count, 0);
        let other = get(&system, of_another_type.id).await.info;
        assert_eq!((other.state, other.attempt_count), (TaskState::Enqueued, 0), "it waits for a worker of its type");
        running.stop().await;
    }
}

/// A process that is suspended, like a closed laptop, finds several claimed tasks when it continues.
#[tokio::test]
async fn no_task_starts_whose_lease_ended_while_the_process_was_suspended() {
    const LEASE: Duration = Duration::from_secs(1);
    for route in Route::ALL {
        let fixture = Fixture::new(route);
        let system = fixture.system().await;
        let begun: Notes<bool> = Notes::default();
        let (client, notes, is_frozen) = (system.client().clone(), begun.clone(), Arc::<AtomicU32>::default());
        let worker = system.worker().handler("step", move |task: TaskContext| {
            let (client, notes) = (client.clone(), notes.clone());
            let is_first = is_frozen.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first {
                std::thread::sleep(LEASE + LEASE / 2);
            }
            async move {
                let info = client.get(task.id(), soon()).await?.info;
                let is_leased = info.lease_expires_at.is_some_and(|end| end > Timestamp::now());
                if !is_first {
                    notes.lock().unwrap().push(is_leased && task.is_leased());
                }
                Ok::<_, HandlerError>(())
            }
        });
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(create(&system, task("step", "")).await.id);
        }
        let running = Running::start(&system, worker.lease(LEASE).max_workers(4).build().unwrap());
        for id in ids {
            ended(&system, id).await;
        }
        running.stop().await;
        let begun = begun.lock().unwrap();
        assert!(begun.len() >= 3 && begun.iter().all(|is_leased| *is_leased), "{route:?}: {begun:?}");
    }
}
