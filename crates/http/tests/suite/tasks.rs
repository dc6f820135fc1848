//! Tasks and schedules of a server.

use std::time::Duration;

use postrider_core::task::{
    ClaimAnswer, ClaimTasks, Finish, Heartbeat, NewSchedule, Progress, ScheduleStore, ScheduleTiming, TaskCount,
    TaskLease, TaskMode, TaskNotice, TaskOutcome, TaskQuery, TaskStanding, TaskStore, TaskTemplate,
};
use postrider_core::{Measured, MessagingError, NewTask, TaskId, TaskState, TaskType};
use postrider_http::HttpTasks;
use postrider_wire::{Code, Problem};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fake::{Fake, Reply, Seen};
use crate::soon;

const LEASE: Duration = Duration::from_secs(30);

async fn open(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> (Fake, HttpTasks) {
    let fake = Fake::start(move |seen| match seen.path.as_str() {
        "/v1/tasks/routes" => Reply::ok(json!({"mode": "queue", "queue_prefix": "job_", "dead_events": null,
            "max_payload_bytes": 10, "store": "sqlite"})),
        _ => answer(seen),
    })
    .await;
    let tasks = HttpTasks::open(fake.connect().await, soon()).await.unwrap();
    fake.seen().await;
    (fake, tasks)
}

fn mail() -> TaskType {
    TaskType::new("mail").unwrap()
}

fn claim() -> ClaimTasks {
    ClaimTasks { types: vec![mail()], max: 2, lease: LEASE, worker: "host:7".into() }
}

fn claimed(id: TaskId, lease: &str) -> Value {
    json!({"lease": lease, "id": id, "type": "mail", "payload": "{}", "attempt_count": 1, "max_attempts": 3,
        "priority": 4, "tags": [], "created_at": "2026-01-01T00:00:00Z", "scheduled_for": "2026-01-01T00:00:00Z",
        "since_first_attempt": "0s", "time_left": null})
}

fn info(id: TaskId, state: &str) -> Value {
    json!({"id": id, "type": "mail", "state": state, "priority": 4, "attempt_count": 1, "max_attempts": 3,
        "created_at": "2026-01-01T00:00:00Z", "scheduled_for": "2026-01-01T00:00:00Z", "tags": [], "revision": 0,
        "replay_count": 0, "payload": "{}", "left": "PENDING",
        "attempts": [{"attempt": 1, "replay": 0, "worker": "w", "started_at": "2026-01-01T00:00:00Z",
            "outcome": "running"}],
        "revisions": []})
}

#[tokio::test]
async fn attempts_are_claimed_extended_and_finished_by_the_servers_lease() {
    let id = TaskId::generate();
    let (fake, tasks) = open(move |seen| match seen.path.as_str() {
        "/v1/tasks/claim" => {
            let held: Vec<_> =
                seen.body["finish"].as_array().into_iter().flatten().map(|_| json!({"held": true})).collect();
            Reply::ok(json!({"finished": held, "tasks": [claimed(id, "prl1.secret")], "next_due": null}))
        }
        "/v1/tasks/heartbeat" => Reply::ok(json!({"standings": [{"held": true}]})),
        "/v1/tasks/standings" => Reply::ok(json!({"standings": [{"held": true}]})),
        "/v1/tasks/finish" => Reply::ok(json!({"finished": [{"held": false, "state": "CANCELED"}]})),
        other => panic!("{other}"),
    })
    .await;
    assert_eq!((tasks.routes().mode, tasks.max_payload_bytes()), (TaskMode::Queue, 10));
    let first = tasks.claim(claim(), soon()).await.unwrap().claimed.remove(0);
    assert_eq!((first.lease.id, &*first.payload), (id, &b"{}"[..]));
    let asked = json!({"types": ["mail"], "max": 2, "lease": "30s", "worker": "host:7"});
    assert_eq!(fake.seen().await.body, asked);
    let progress = Some(Progress::new(Some(0.5), None).unwrap());
    let standing = tasks.heartbeat(vec![Heartbeat { lease: first.lease, progress }], LEASE, soon()).await.unwrap();
    assert_eq!(standing, [TaskStanding::Held]);
    let sign = json!({"heartbeats": [{"lease": "prl1.secret", "progress": {"fraction": 0.5}}], "extend": "30s"});
    assert_eq!(fake.seen().await.body, sign);
    assert_eq!(tasks.standings(&[first.lease], soon()).await.unwrap(), [TaskStanding::Held]);
    assert_eq!(fake.seen().await.body, json!({"leases": ["prl1.secret"]}));
    let end = Finish { lease: first.lease, outcome: TaskOutcome::Succeeded { result: None } };
    let done = tasks.finish_and_claim(vec![end], Some(claim()), soon()).await.unwrap();
    assert_eq!(done.finished, [TaskStanding::Held]);
    assert_eq!(fake.seen().await.body["finish"], json!([{"lease": "prl1.secret", "outcome": "succeeded"}]));
    let second = done.claimed[0].lease;
    assert_ne!(second, first.lease);
    let retry = TaskOutcome::Retry { after: Duration::from_secs(5), error: "no".into() };
    let lost = tasks.finish(vec![Finish { lease: second, outcome: retry }], soon()).await.unwrap();
    assert_eq!(lost, [TaskStanding::Lost(Some(TaskState::Canceled))]);
    let end = json!([{"lease": "prl1.secret", "outcome": "retry", "after": "5s", "error": "no"}]);
    assert_eq!(fake.seen().await.body["finish"], end);
}

#[tokio::test]
async fn outcomes_are_unknown_if_only_one_half_is_refused() {
    let (fake, tasks) = open(move |seen| match seen.path.as_str() {
        "/v1/tasks/claim" => {
            let both = [claimed(TaskId::generate(), "prl1.a"), claimed(TaskId::generate(), "prl1.b")];
            Reply::ok(json!({ "tasks": both }))
        }
        _ => match seen.body["finish"].as_array().unwrap().as_slice() {
            [one] if one["lease"] == "prl1.a" => Reply::ok(json!({"finished": [{"held": true}]})),
            _ => Reply::problem(&Problem::new(Code::PayloadTooLarge, "too much")),
        },
    })
    .await;
    let both = tasks.claim(claim(), soon()).await.unwrap().claimed;
    let ends = both.iter().map(|task| Finish { lease: task.lease, outcome: TaskOutcome::Released }).collect();
    let error = tasks.finish(ends, soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::OutcomeUnknown { .. }), "{error:?}");
    drop(fake);
}

#[tokio::test]
async fn invalid_progress_is_refused_without_a_request() {
    let id = TaskId::generate();
    let (fake, tasks) = open(move |_| Reply::ok(json!({"tasks": [claimed(id, "prl1.a")]}))).await;
    let lease = tasks.claim(claim(), soon()).await.unwrap().claimed.remove(0).lease;
    fake.seen().await;
    let progress = Some(Progress { fraction: Some(2.0), text: None });
    let error = tasks.heartbeat(vec![Heartbeat { lease, progress }], LEASE, soon()).await.unwrap_err();
    assert!(matches!(error, MessagingError::InvalidInput { what: "progress", .. }), "{error:?}");
    assert!(fake.rest().await.is_empty());
}

#[tokio::test]
async fn an_unknown_lease_is_lost_with_the_state_of_its_task() {
    let (here, gone) = (TaskId::generate(), TaskId::generate());
    let (fake, tasks) = open(move |seen| match seen.path.as_str() {
        "/v1/tasks/claim" => Reply::ok(json!({"tasks": [claimed(here, "prl1.mine")]})),
        "/v1/tasks/finish" => Reply::ok(json!({"finished": [{"held": true}]})),
        path if path.ends_with(&here.to_string()) => Reply::ok(info(here, "SUCCEEDED")),
        _ => Reply::problem(&Problem::of(&MessagingError::TaskNotFound { id: gone })),
    })
    .await;
    let mine = tasks.claim(claim(), soon()).await.unwrap().claimed.remove(0).lease;
    let other = |id| TaskLease { id, token: 4711 };
    let end = |lease| Finish { lease, outcome: TaskOutcome::Released };
    let ends = vec![end(other(gone)), end(mine), end(other(here))];
    let standings = tasks.finish(ends, soon()).await.unwrap();
    let expected = [TaskStanding::Lost(None), TaskStanding::Held, TaskStanding::Lost(Some(TaskState::Succeeded))];
    assert_eq!(standings, expected);
    // A finished lease is removed.
    assert_eq!(tasks.standings(&[mine], soon()).await.unwrap(), [TaskStanding::Lost(Some(TaskState::Succeeded))]);
    drop(fake);
}

#[tokio::test]
async fn claims_of_a_canceled_call_are_released() {
    let id = TaskId::generate();
    let (open_gate, gate) = oneshot::channel();
    let gate = std::sync::Mutex::new(Some(gate));
    let (fake, tasks) = open(move |seen| match seen.path.as_str() {
        "/v1/tasks/claim" => {
            let gate = gate.lock().unwrap().take().unwrap();
            Reply::Gate(gate, json!({"tasks": [claimed(id, "prl1.unwanted")]}))
        }
        "/v1/tasks/finish" => Reply::ok(json!({"finished": [{"held": true}]})),
        other => panic!("{other}"),
    })
    .await;
    let mut claiming = Box::pin(tasks.claim(claim(), soon()));
    tokio::select! {
        _ = fake.seen() => {}
        claimed = &mut claiming => panic!("{claimed:?}"),
    }
    drop(claiming);
    open_gate.send(()).unwrap();
    let released = fake.seen().await;
    assert_eq!(released.body, json!({"finish": [{"lease": "prl1.unwanted", "outcome": "released"}]}));
}

#[tokio::test]
async fn claims_by_id_have_one_answer_each() {
    let ids: Vec<_> = (0..3).map(|_| TaskId::generate()).collect();
    let first = ids[0];
    let (_fake, tasks) = open(move |_| {
        let claimed = json!({"claimed": claimed(first, "prl1.x")});
        Reply::ok(json!({"answers": [claimed, {"not_due": "5s"}, {"not_claimable": true}]}))
    })
    .await;
    let answers = tasks.claim_by_id(&ids, LEASE, "host:7", soon()).await.unwrap();
    assert!(matches!(&answers[0], ClaimAnswer::Claimed(task) if task.lease.id == first));
    assert_eq!(answers[1..], [ClaimAnswer::NotDue(Duration::from_secs(5)), ClaimAnswer::NotClaimable]);
}

#[tokio::test]
async fn tasks_are_created_in_one_request_and_an_invalid_one_fails_alone() {
    let (fake, tasks) = open(move |seen| {
        let rows: Vec<_> = seen.body["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| json!({"id": task["id"], "state": "PENDING", "is_new": true}))
            .collect();
        Reply::ok(json!({ "results": rows }))
    })
    .await;
    let task = |payload: &'static str| NewTask::of(mail(), payload);
    let new = vec![task("a"), task("far too long"), task("b")];
    let ids: Vec<_> = new.iter().map(|task| task.id).collect();
    let rows = tasks.create(new, soon()).await.unwrap();
    assert!(matches!(&rows[0], Ok(created) if created.id == ids[0] && created.is_new));
    assert!(matches!(&rows[1], Err(MessagingError::InvalidInput { what: "payload", .. })));
    assert!(matches!(&rows[2], Ok(created) if created.id == ids[2]));
    let seen = fake.seen().await;
    assert!(seen.is("POST", "/v1/tasks/batch"));
    assert_eq!(seen.body["tasks"][1], json!({"id": ids[2], "type": "mail", "payload": "b"}));
}

#[tokio::test]
async fn tasks_are_read_listed_and_changed() {
    let (living, dead, gone) = (TaskId::generate(), TaskId::generate(), TaskId::generate());
    let (fake, tasks) = open(move |seen| {
        let path = seen.path.strip_prefix("/v1/tasks").unwrap();
        if path.starts_with('?') {
            assert_eq!(path, "?state=DEAD&limit=100");
            return Reply::ok(json!({"tasks": [info(dead, "DEAD")], "next": null}));
        }
        if path == "/counts" {
            let row = |state, count, approximate: bool| {
                json!({"type": "mail", "state": state, "count": count, "approximate": approximate})
            };
            return Reply::ok(json!({"counts": {"PENDING": 1, "DEAD": 20_000}, "looked_at": 20_001, "complete": false,
                "by_type": [row("PENDING", 1, false), row("DEAD", 20_000, true)]}));
        }
        if path.contains(&gone.to_string()) {
            return Reply::problem(&Problem::of(&MessagingError::TaskNotFound { id: gone }));
        }
        match path.rsplit('/').next().unwrap() {
            "payload" => Reply::ok(json!({"revision": 1})),
            _ if path.contains(&dead.to_string()) => Reply::ok(info(dead, "DEAD")),
            _ => Reply::ok(info(living, "PENDING")),
        }
    })
    .await;
    assert_eq!(tasks.get(living, soon()).await.unwrap().unwrap().info.id, living);
    assert!(tasks.get(gone, soon()).await.unwrap().is_none());
    assert_eq!(tasks.attempts(living, soon()).await.unwrap().len(), 1);
    assert!(tasks.revisions(gone, soon()).await.unwrap().is_empty());
    let mut query = TaskQuery::default();
    query.filter.states = vec![TaskState::Dead];
    assert_eq!(tasks.list(&query, soon()).await.unwrap().tasks[0].id, dead);
    let counted = |state, count| TaskCount { task_type: mail(), state, count };
    let counts =
        [counted(TaskState::Pending, Measured::Exact(1)), counted(TaskState::Dead, Measured::Approximate(20_000))];
    assert_eq!(tasks.counts(soon()).await.unwrap(), counts);
    let canceled = tasks.cancel(&[living, gone], soon()).await.unwrap();
    assert!(matches!(canceled[0], Ok(TaskState::Pending)));
    assert!(matches!(canceled[1], Err(MessagingError::TaskNotFound { id }) if id == gone));
    assert!(tasks.replay(&[dead], soon()).await.unwrap()[0].is_ok());
    assert_eq!(tasks.edit_payload(dead, "b".into(), soon()).await.unwrap(), 1);
    fake.rest().await;
    let ran = tasks.run_now(&[living, dead, gone], soon()).await.unwrap();
    assert!(ran[0].is_ok());
    assert!(matches!(ran[1], Err(MessagingError::TaskConflict { state: TaskState::Dead, .. })));
    assert!(matches!(ran[2], Err(MessagingError::TaskNotFound { .. })));
    let retried: Vec<_> = fake.rest().await.into_iter().filter(|seen| seen.path.ends_with("/retry")).collect();
    assert_eq!(retried.len(), 1, "a dead task is not replayed by it");
}

#[tokio::test]
async fn chores_are_refused_because_the_server_runs_them() {
    let (fake, tasks) = open(|seen| panic!("{seen:?}")).await;
    let refusals = [
        tasks.lost_leases(1, soon()).await.unwrap_err(),
        tasks.reap(Vec::new(), soon()).await.unwrap_err(),
        tasks.expire_overdue(1, soon()).await.unwrap_err(),
        tasks.enqueue_due(1, soon()).await.unwrap_err(),
        tasks.stranded(LEASE, soon()).await.unwrap_err(),
        tasks.resend(&mail(), 1, LEASE, soon()).await.unwrap_err(),
        tasks.take_outbox(1, LEASE, soon()).await.unwrap_err(),
        tasks.outbox_sent(&[], soon()).await.unwrap_err(),
        tasks.forget_finished(LEASE, soon()).await.unwrap_err(),
        tasks.due_schedules(1, soon()).await.unwrap_err(),
        tasks.fire_schedule("a", 0, Vec::new(), None, None, soon()).await.unwrap_err(),
        tasks.subscribe_tasks(TaskNotice::ToSend, soon()).await.unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(error, MessagingError::InvalidInput { .. }), "{error:?}");
        assert!(error.to_string().contains("by itself"), "{error}");
    }
    assert!(fake.rest().await.is_empty());
}

fn schedule(name: &str, is_paused: bool) -> Value {
    json!({"name": name, "type": "mail", "every": "1m", "missed": "one", "paused": is_paused,
        "paused_at": is_paused.then_some("2026-01-01T00:00:00Z"), "created_at": "2026-01-01T00:00:00Z",
        "next_run_at": (!is_paused).then_some("2026-01-01T00:01:00Z"), "payload": "{}", "priority": 4, "tags": []})
}

#[tokio::test]
async fn schedules_are_put_read_paused_triggered_and_deleted() {
    let task = TaskId::generate();
    let (fake, tasks) = open(move |seen| {
        let absent = || Reply::problem(&Problem::new(Code::NotFound, "no such schedule"));
        match (seen.method.as_str(), seen.path.as_str()) {
            ("GET", "/v1/session") => Reply::ok(json!({"open": true, "authenticated": true, "name": null, "roles": [],
                "queues": null, "provider": "sqlite", "store": "x", "version": "1", "now": "2026-01-01T00:00:30Z"})),
            ("GET", "/v1/schedules") => {
                Reply::ok(json!({"schedules": [schedule("held", true), schedule("daily", false)]}))
            }
            ("GET" | "PUT", "/v1/schedules/daily") => Reply::ok(schedule("daily", false)),
            ("DELETE", "/v1/schedules/daily") => Reply::Json(204, Value::Null),
            ("POST", "/v1/schedules/daily/pause" | "/v1/schedules/daily/resume") => Reply::ok(schedule("daily", true)),
            ("POST", "/v1/schedules/daily/trigger") => {
                Reply::Json(201, json!({"id": task, "state": "PENDING", "is_new": true}))
            }
            _ => absent(),
        }
    })
    .await;
    let definition = NewSchedule {
        name: "daily".into(),
        timing: ScheduleTiming::Every(Duration::from_secs(60)),
        task: TaskTemplate::new(mail(), "{}"),
        missed: Default::default(),
    };
    let put = tasks.put_schedule(&definition, None, soon()).await.unwrap();
    assert_eq!(put.definition, definition);
    let asked = json!({"type": "mail", "payload": "{}", "every": "1m", "missed": "one"});
    assert_eq!(fake.seen().await.body, asked);
    assert!(tasks.get_schedule("daily", soon()).await.unwrap().is_some());
    assert!(tasks.get_schedule("other", soon()).await.unwrap().is_none());
    assert!(tasks.get_schedule("..", soon()).await.unwrap().is_none());
    assert!(tasks.get_schedule("../tokens", soon()).await.unwrap().is_none());
    assert_eq!(tasks.list_schedules(soon()).await.unwrap().len(), 2);
    assert_eq!(tasks.next_schedule_due(soon()).await.unwrap(), Some(Duration::from_secs(30)));
    assert!(tasks.set_schedule_paused("daily", 0, true, None, soon()).await.unwrap());
    assert!(!tasks.set_schedule_paused("other", 0, true, None, soon()).await.unwrap());
    assert!(tasks.delete_schedule("daily", soon()).await.unwrap());
    assert!(!tasks.delete_schedule("other", soon()).await.unwrap());
    let own = definition.task.task("daily").unwrap();
    let created = tasks.create(vec![own.clone()], soon()).await.unwrap().remove(0).unwrap();
    assert_eq!(created.id, task);
    let forged = NewTask { payload: "x".into(), ..own };
    let refused = tasks.create(vec![forged], soon()).await.unwrap().remove(0);
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "schedule", .. })), "{refused:?}");
    assert!(fake.rest().await.iter().all(|seen| !seen.path.contains("..")));
}
