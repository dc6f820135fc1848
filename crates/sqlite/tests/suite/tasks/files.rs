//! Files without the task tables, and files that another program has damaged.

use std::time::Duration;

use postrider_core::task::{Finish, TaskId, TaskOutcome, TaskQuery, TaskStanding, TaskState, TaskStore};
use postrider_core::{Message, MessagingService, ReceiveOptions};
use postrider_sqlite::rusqlite::Connection;
use postrider_sqlite::{SqliteOptions, SqliteStore};

use super::{claim, create, succeeded, task};
use crate::{TestStore, queue, soon};

/// Creates a file with schema version 2, which has no tasks.
fn version_two(test_store: &TestStore) {
    let file = Connection::open(test_store.file()).unwrap();
    file.execute_batch(
        "create table postrider_migration (version integer not null primary key, name text not null, \
         works_since integer not null, applied_at integer not null)",
    )
    .unwrap();
    for step in SqliteStore::all_migrations().into_iter().filter(|step| step.version <= 2) {
        file.execute_batch(step.sql).unwrap();
        let row = (step.version, step.name, step.works_since);
        file.execute("insert into postrider_migration values (?1, ?2, ?3, 0)", row).unwrap();
    }
    file.execute_batch(
        "insert into queue values ('orders', 0); \
         insert into message (queue, blocked, priority, next_attempt_at, state, created_at, message_id, headers, payload) \
         values ('orders', 0, 4, 0, 'PENDING', 0, randomblob(16), '{}', x'61')",
    )
    .unwrap();
}

#[tokio::test]
async fn a_file_without_the_task_tables_is_upgraded() {
    let test_store = TestStore::new();
    version_two(&test_store);
    let pending = SqliteStore::pending_migrations(test_store.file(), SqliteOptions::default()).await.unwrap();
    let later = SqliteStore::all_migrations().into_iter().filter(|step| step.version > 2).collect::<Vec<_>>();
    assert_eq!(pending, later);
    assert!(pending.iter().all(|step| step.works_since == 1), "a program without tasks can still use the queues");
    let tasks = test_store.tasks().await;
    let id = create(&tasks, task("x")).await;
    assert_eq!(claim(&tasks, 9).await[0].lease.id, id);
    let orders = queue("orders");
    let left = tasks.provider().receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(left[0].message, "a", "the message from before the upgrade");
    tasks.provider().send_message(&orders, Message::new("b"), soon()).await.unwrap();
}

#[tokio::test]
async fn a_damaged_task_does_not_stop_the_others() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let mut ids = Vec::new();
    for payload in ["id", "strategy", "tags", "times", "type", "state", "well"] {
        ids.push(create(&tasks, task(payload).deadline_in(Duration::from_secs(3600)).tag("a")).await);
    }
    let damage = |change: &str, payload: &str| {
        let file = Connection::open(test_store.file()).unwrap();
        file.busy_timeout(Duration::from_secs(5)).unwrap();
        let sql = format!("update task set {change} where payload = cast(?1 as blob)");
        assert_eq!(file.execute(&sql, [payload]).unwrap(), 1);
    };
    damage("task_id = x'07'", "id");
    damage("retry_strategy = '{'", "strategy");
    damage("tags = 7", "tags");
    damage("created_at = 'yesterday'", "times");
    damage("state = 'LOST'", "state");
    let claimed = claim(&tasks, 9).await;
    let seen: Vec<&[u8]> = claimed.iter().map(|task| &*task.payload).collect();
    assert_eq!(seen, [&b"strategy"[..], b"tags", b"type", b"well"], "their readable columns are enough");
    assert!(claimed[0].retry_strategy.is_none() && claimed[1].tags.is_empty());

    // Damaged while a worker holds it.
    damage("task_type = 'no type'", "type");
    let mut ends: Vec<Finish> = claimed.iter().map(succeeded).collect();
    ends[2].outcome = TaskOutcome::Retry { after: Duration::ZERO, error: "again".into() };
    let standings = tasks.finish(ends, soon()).await.unwrap();
    assert_eq!(standings[2], TaskStanding::Lost(None));
    assert_eq!([standings[0], standings[1], standings[3]], [TaskStanding::Held; 3]);
    damage("deadline = 1", "type");
    assert_eq!(tasks.expire_overdue(9, soon()).await.unwrap(), Vec::<TaskId>::new());
    let listed = tasks.list(&TaskQuery::default(), soon()).await.unwrap();
    assert_eq!(listed.tasks.iter().map(|task| task.state).collect::<Vec<_>>(), [TaskState::Succeeded; 3]);
    assert_eq!(listed.next, None);
    create(&tasks, task("another")).await;
    assert_eq!(claim(&tasks, 9).await.len(), 1);
}
