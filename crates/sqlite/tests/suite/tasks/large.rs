//! Files with many tasks.

use std::time::Duration;

use postrider_core::Timestamp;
use postrider_core::task::{DeadReason, Finish, TaskFilter, TaskOutcome, TaskQuery, TaskState, TaskStore};
use postrider_sqlite::SqliteTasks;
use postrider_sqlite::rusqlite::Connection;

use super::{claim, create, task};
use crate::{TestStore, soon};

const HOUR: Duration = Duration::from_secs(3600);

/// Inserts tasks that ended this long ago.
fn fill(test_store: &TestStore, state: TaskState, count: i64, ago: Duration) {
    let file = Connection::open(test_store.file()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    let ended = Timestamp::now().saturating_sub(ago).as_micros();
    file.execute(
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?1) \
         insert into task (task_id, task_type, state, priority, blocked, scheduled_for, max_attempts, attempt_count, \
                           created_at, started_at, finished_at, worker_id, payload) \
         select randomblob(16), 'mail', ?2, 4, 0, ?3, 3, 1, ?3, ?3, ?3, 'test', x'00' from n",
        (count, state.as_str(), ended),
    )
    .unwrap();
}

fn rows(test_store: &TestStore, sql: &str) -> i64 {
    Connection::open(test_store.file()).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

async fn kill_one(tasks: &SqliteTasks) {
    let claimed = claim(tasks, 1).await.remove(0);
    let outcome = TaskOutcome::Dead { reason: DeadReason::Permanent, error: "over".into() };
    let _ = tasks.finish(vec![Finish { lease: claimed.lease, outcome }], soon()).await.unwrap();
}

#[tokio::test]
async fn a_page_reads_a_bounded_number_of_tasks() {
    let test_store = TestStore::in_memory();
    let tasks = test_store.tasks().await;
    let dead = create(&tasks, task("dead")).await;
    kill_one(&tasks).await;
    let oldest = create(&tasks, task("oldest")).await;
    fill(&test_store, TaskState::Succeeded, 25_000, Duration::ZERO);
    let filter = TaskFilter { states: vec![TaskState::Pending], ..TaskFilter::default() };
    let mut query = TaskQuery { filter, limit: 10, after: None };
    let mut pages = Vec::new();
    loop {
        let page = tasks.list(&query, soon()).await.unwrap();
        pages.push(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>());
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec![], vec![], vec![oldest]]);

    // Dead tasks have an index of their own, so those that succeeded are not read.
    query.filter.states = vec![TaskState::Canceled, TaskState::Dead];
    let page = tasks.list(&query, soon()).await.unwrap();
    assert_eq!((page.tasks.len(), page.tasks[0].id, page.next), (1, dead, None));
    // Tasks older than `created_since` are not read either.
    let filter = TaskFilter { created_since: Some(Timestamp::now().saturating_add(HOUR)), ..TaskFilter::default() };
    let page = tasks.list(&TaskQuery { filter, ..TaskQuery::default() }, soon()).await.unwrap();
    assert_eq!((page.tasks.len(), page.next), (0, None));
    let refused = tasks.list(&TaskQuery { limit: 0, ..TaskQuery::default() }, soon()).await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn old_tasks_are_forgotten_chunk_by_chunk() {
    let test_store = TestStore::in_memory();
    let tasks = test_store.tasks().await;
    // A dead task is the first row, with a history. It stays, and so do the young tasks behind it.
    let dead = create(&tasks, task("dead")).await;
    kill_one(&tasks).await;
    fill(&test_store, TaskState::Succeeded, 2500, HOUR * 3);
    fill(&test_store, TaskState::Dead, 1200, HOUR * 3);
    fill(&test_store, TaskState::Canceled, 700, HOUR * 2);
    fill(&test_store, TaskState::Succeeded, 300, HOUR);
    // A task that failed once has a history, which is removed with it.
    let failed = create(&tasks, task("failed")).await;
    let lease = claim(&tasks, 1).await[0].lease;
    let retry = TaskOutcome::Retry { after: Duration::ZERO, error: "again".into() };
    let _ = tasks.finish(vec![Finish { lease, outcome: retry }], soon()).await.unwrap();
    let _ = tasks.finish(claim(&tasks, 1).await.iter().map(super::succeeded).collect(), soon()).await.unwrap();
    assert_eq!(rows(&test_store, "select count(*) from task_attempt"), 2);

    assert_eq!(tasks.forget_finished(HOUR * 24, soon()).await.unwrap(), 0);
    // The first task was created just now, so no task behind it counts as old: rows are in the order of creation.
    assert_eq!(tasks.forget_finished(HOUR * 2, soon()).await.unwrap(), 0);
    let file = Connection::open(test_store.file()).unwrap();
    let long_ago = Timestamp::now().saturating_sub(HOUR * 4).as_micros();
    file.execute("update task set created_at = ?1 where id = 1", [long_ago]).unwrap();
    assert_eq!(tasks.forget_finished(HOUR * 2, soon()).await.unwrap(), 3200);
    assert_eq!(rows(&test_store, "select count(*) from task where state = 'DEAD'"), 1201);
    assert_eq!(tasks.attempts(dead, soon()).await.unwrap().len(), 1);
    assert_eq!(tasks.forget_finished(Duration::ZERO, soon()).await.unwrap(), 301);
    assert_eq!(tasks.get(failed, soon()).await.unwrap(), None);
    assert_eq!(rows(&test_store, "select count(*) from task_attempt"), 1, "the attempt of the dead task");
    assert_eq!(rows(&test_store, "select count(*) from task"), 1201);
    create(&tasks, task("x")).await;
    assert_eq!(claim(&tasks, 9).await.len(), 1);
}
