//! Costs of task transitions, counted in SQLite's virtual machine instructions.

use std::time::Duration;

use postrider_core::task::{
    ClaimTasks, ClaimedTask, Enqueued, Finish, FinishedAndClaimed, NewTask, TaskCount, TaskMode, TaskOutcome,
    TaskRoutes, TaskState, TaskType,
};

use postrider_core::Measured;

use super::step::TaskStep;
use super::{look, upkeep};
use crate::costs::{Bench, NOW, later};

/// A number of tasks over which a scan shows in the cost.
const MANY: i64 = 50_000;

fn mail() -> TaskType {
    TaskType::new("mail").unwrap()
}

/// Inserts tasks without counting.
fn fill(bench: &Bench, task_type: &str, state: TaskState, count: i64, due: i64) {
    let is_held = state == TaskState::Processing;
    let sql = "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?1) \
               insert into task (task_id, task_type, state, priority, blocked, scheduled_for, max_attempts, created_at, \
                                 enqueued_at, lease_token, lease_expires_at, finished_at, idempotency_key, payload) \
               select randomblob(16), ?2, ?3, n % 10, 0, ?4, 3, 0, 0, case when ?5 then n end, \
                      case when ?5 then ?4 end, ?4, hex(randomblob(8)), x'00' from n";
    bench.connection.execute(sql, (count, task_type, state.as_str(), due, is_held)).unwrap();
}

/// Inserts ended tasks of the measured type and of another.
fn fill_with_ended(bench: &Bench, count: i64) {
    for state in TaskState::ALL.into_iter().filter(|state| state.is_terminal()) {
        fill(bench, "mail", state, count / 4, NOW.as_micros());
        fill(bench, "other", state, count / 12, NOW.as_micros());
    }
}

fn routes(mode: TaskMode) -> TaskRoutes {
    TaskRoutes { mode, ..TaskRoutes::default() }
}

fn claim_ten(bench: &mut Bench) -> (u64, Vec<ClaimedTask>) {
    let claim = ClaimTasks { types: vec![mail()], max: 10, lease: Duration::from_secs(60), worker: "test".to_owned() };
    let routes = routes(TaskMode::Polling);
    bench.cost(|session| {
        let mut answer = FinishedAndClaimed::default();
        TaskStep::new(session, &routes).claim(&claim, 0, &mut answer).unwrap();
        answer.claimed
    })
}

fn enqueue_ten(bench: &mut Bench) -> (u64, Enqueued) {
    let routes = routes(TaskMode::Queue);
    bench.cost(|session| TaskStep::new(session, &routes).enqueue_due(10, 0).unwrap())
}

/// The cost of every step with ten due tasks and the rows that `around` inserts.
fn costs(around: impl Fn(&Bench)) -> Vec<(&'static str, u64)> {
    let due = |around: &dyn Fn(&Bench)| {
        let bench = Bench::new();
        around(&bench);
        fill(&bench, "mail", TaskState::Pending, 10, NOW.as_micros());
        bench
    };
    let mut bench = due(&around);
    let (claim, claimed) = claim_ten(&mut bench);
    assert_eq!(claimed.len(), 10);
    let routes = routes(TaskMode::Polling);
    let (finish, ()) = bench.cost(|session| {
        let mut step = TaskStep::new(session, &routes);
        for task in &claimed {
            let finish = Finish { lease: task.lease, outcome: TaskOutcome::Succeeded { result: None } };
            let _ = step.finish(&finish).unwrap();
        }
    });
    let (empty, nothing) = claim_ten(&mut bench);
    assert!(nothing.is_empty());
    let (create, ()) = bench.cost(|session| {
        TaskStep::new(session, &routes).create(&NewTask::of(mail(), "x").idempotency_key("k").unwrap()).unwrap();
    });
    let (expire, expired) = bench.cost(|session| TaskStep::new(session, &routes).expire_overdue(10).unwrap());
    assert!(expired.is_empty());
    let (lost, _) = bench.cost(|session| look::lost_leases(session.connection, 10, NOW).unwrap());
    let mut bench = due(&around);
    let (enqueue, enqueued) = enqueue_ten(&mut bench);
    assert_eq!(enqueued.count, 10);
    let (enqueue_none, enqueued) = enqueue_ten(&mut bench);
    assert_eq!(enqueued.count, 0);
    let stranded = |session: &mut crate::session::Session<'_>| {
        upkeep::stranded(session.connection, &routes, Duration::from_secs(3600), NOW).unwrap()
    };
    let (strand, _) = bench.cost(stranded);
    vec![
        ("claim", claim),
        ("finish", finish),
        ("claim of nothing", empty),
        ("create", create),
        ("expire", expire),
        ("lost leases", lost),
        ("enqueue", enqueue),
        ("enqueue of nothing", enqueue_none),
        ("stranded", strand),
    ]
}

fn assert_same(alone: &[(&'static str, u64)], crowded: &[(&'static str, u64)], around: &str) {
    for ((step, alone), (_, crowded)) in alone.iter().zip(crowded) {
        assert!(*crowded <= alone + alone / 10 + 50, "{step}: {alone} instructions alone, {crowded} with {around}");
    }
}

#[test]
fn ended_tasks_add_no_cost_to_living_ones() {
    let alone = costs(|_| {});
    let crowded = costs(|bench| fill_with_ended(bench, MANY));
    assert_same(&alone, &crowded, "50 000 ended tasks");
}

#[test]
fn tasks_that_are_not_due_and_other_types_add_no_cost_to_a_claim() {
    let some = |count: i64| {
        move |bench: &Bench| {
            let later = later().as_micros();
            for (task_type, state) in [
                ("mail", TaskState::Pending),
                ("mail", TaskState::Enqueued),
                ("mail", TaskState::Processing),
                ("other", TaskState::Enqueued),
            ] {
                fill(bench, task_type, state, count / 4, later);
            }
        }
    };
    // Both runs have a few of each: a type without claimable tasks is not searched at all.
    assert_same(&costs(some(40)), &costs(some(MANY)), "50 000 tasks that are not due");
}

#[test]
fn the_enqueuer_does_not_scan_enqueued_tasks() {
    let mut few = Bench::new();
    fill(&few, "mail", TaskState::Enqueued, 10, NOW.as_micros());
    fill(&few, "mail", TaskState::Pending, 10, NOW.as_micros());
    let mut many = Bench::new();
    fill(&many, "mail", TaskState::Enqueued, MANY, NOW.as_micros());
    fill(&many, "mail", TaskState::Pending, 10, NOW.as_micros());
    let ((few, _), (many, enqueued)) = (enqueue_ten(&mut few), enqueue_ten(&mut many));
    assert_eq!(enqueued.count, 10);
    assert!(many <= few + few / 10, "{few} instructions with ten enqueued tasks, {many} with {MANY}");
}

#[test]
fn a_key_with_many_tasks_costs_no_more_than_a_key_with_few() {
    let routes = routes(TaskMode::Polling);
    let cost_of_one = |length: usize| {
        let mut bench = Bench::new();
        let task = || NewTask::of(mail(), "x").ordering_key("k").unwrap();
        bench.cost(|session| {
            let mut step = TaskStep::new(session, &routes);
            for _ in 0..length {
                step.create(&task()).unwrap();
            }
        });
        let (create, _) = bench.cost(|session| TaskStep::new(session, &routes).create(&task()).unwrap());
        let (claim, claimed) = claim_ten(&mut bench);
        assert_eq!(claimed.len(), 1, "the head of the key");
        let finish = Finish { lease: claimed[0].lease, outcome: TaskOutcome::Succeeded { result: None } };
        let (end, _) = bench.cost(|session| TaskStep::new(session, &routes).finish(&finish).unwrap());
        create + claim + end
    };
    let (short, long) = (cost_of_one(10), cost_of_one(20_000));
    assert!(long <= short + short / 10, "{short} instructions with ten, {long} with twenty thousand");
}

#[test]
fn ended_tasks_are_counted_up_to_a_bound() {
    const MAX: u32 = 20;
    let count_of = |ended: i64| {
        let mut bench = Bench::new();
        fill_with_ended(&bench, ended);
        fill(&bench, "mail", TaskState::Pending, 40, NOW.as_micros());
        bench.cost(|session| look::counts(session.connection, MAX).unwrap())
    };
    let ((few, _), (many, counts)) = (count_of(400), count_of(MANY));
    assert!(many <= few + few / 2, "{few} instructions with 400 ended tasks, {many} with {MANY}");
    let of = |task_type: TaskType, state, count| TaskCount { task_type, state, count };
    let other = TaskType::new("other").unwrap();
    // Living tasks are counted exactly. They fill the newest rows up to the bound, before those that succeeded.
    let expected = [
        of(mail(), TaskState::Pending, Measured::Exact(40)),
        of(mail(), TaskState::Succeeded, Measured::Approximate(0)),
        of(other.clone(), TaskState::Canceled, Measured::Approximate(20)),
        of(other, TaskState::Dead, Measured::Approximate(20)),
    ];
    assert_eq!(counts, expected);
    let all = count_of(40).1;
    let exact = |count: &TaskCount| count.state == TaskState::Succeeded || matches!(count.count, Measured::Exact(_));
    assert!(all.iter().all(exact), "{all:?}");
}
