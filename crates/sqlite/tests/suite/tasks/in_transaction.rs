//! Tasks that are created inside the caller's own transaction.

use postrider_core::MessagingError;
use postrider_core::task::{Created, NewTask, TaskNotice, TaskState, TaskStore};
use postrider_sqlite::SqliteTasks;
use postrider_sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{claim, mail, succeeded, task};
use crate::{TestStore, soon};

fn callers_own(test_store: &TestStore) -> Connection {
    let connection = Connection::open(test_store.file()).unwrap();
    connection.execute_batch("create table if not exists orders (id integer primary key)").unwrap();
    connection
}

fn begin(connection: &mut Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

#[tokio::test]
async fn a_task_and_the_callers_changes_are_committed_together() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let mut own = callers_own(&test_store);
    let (taken_back, kept) = (task("rolled back"), task("committed"));
    for new in [&taken_back, &kept] {
        let transaction = begin(&mut own);
        transaction.execute("insert into orders default values", []).unwrap();
        let created = tasks.create_in(&transaction, new).unwrap();
        assert_eq!(created, Created { id: new.id, is_new: true, state: TaskState::Pending });
        if new.id == kept.id { transaction.commit() } else { transaction.rollback() }.unwrap();
    }
    assert_eq!(tasks.get(taken_back.id, soon()).await.unwrap(), None);
    let claimed = claim(&tasks, 9).await;
    assert_eq!(claimed.iter().map(|task| task.lease.id).collect::<Vec<_>>(), [kept.id]);
    let orders: i64 = own.query_row("select count(*) from orders", [], |row| row.get(0)).unwrap();
    assert_eq!(orders, 1);
}

#[tokio::test]
async fn a_key_keeps_its_order_over_both_ways_of_creation() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let mut own = callers_own(&test_store);
    let keyed = |payload: &str| task(payload).ordering_key("customer-7").unwrap();
    let (first, second, third) = (keyed("1"), keyed("2"), keyed("3"));
    let ids = [first.id, second.id, third.id];
    let transaction = begin(&mut own);
    tasks.create_in(&transaction, &first).unwrap();
    tasks.create_in(&transaction, &second).unwrap();
    transaction.commit().unwrap();
    super::create(&tasks, third).await;
    for id in ids {
        let claimed = claim(&tasks, 9).await;
        assert_eq!(claimed.iter().map(|task| task.lease.id).collect::<Vec<_>>(), [id], "one at a time, in order");
        let _ = tasks.finish(claimed.iter().map(succeeded).collect(), soon()).await.unwrap();
    }
}

#[tokio::test]
async fn the_rules_are_the_same_as_for_any_creation_and_a_refusal_leaves_the_transaction() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let mut own = callers_own(&test_store);
    let once = || task("x").idempotency_key("order-7").unwrap();
    let transaction = begin(&mut own);
    let first = tasks.create_in(&transaction, &once()).unwrap();
    let again = tasks.create_in(&transaction, &once()).unwrap();
    assert_eq!(again, Created { id: first.id, is_new: false, state: TaskState::Pending });
    let too_large = NewTask::of(mail(), vec![b'x'; tasks.max_payload_bytes() + 1]);
    let refused = tasks.create_in(&transaction, &too_large);
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "payload", .. })), "{refused:?}");
    transaction.execute("insert into orders default values", []).expect("the transaction stays usable");
    transaction.commit().unwrap();
    assert_eq!(claim(&tasks, 9).await.len(), 1);
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let test_store = TestStore::new();
    let tasks = test_store.tasks().await;
    let mut elsewhere = Connection::open(test_store.folder.path().join("elsewhere.db")).unwrap();
    let refused = tasks.create_in(&elsewhere.transaction().unwrap(), &task("x"));
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "transaction", .. })), "{refused:?}");
}

#[tokio::test]
async fn a_waiting_worker_gets_a_hint() {
    let test_store = TestStore::new();
    let tasks: SqliteTasks = test_store.tasks().await;
    let mut own = callers_own(&test_store);
    let mut hints = tasks.subscribe_tasks(TaskNotice::Claimable(vec![mail()]), soon()).await.unwrap();
    let transaction = begin(&mut own);
    tasks.create_in(&transaction, &task("x")).unwrap();
    transaction.commit().unwrap();
    let hint = tokio::time::timeout(std::time::Duration::from_secs(20), hints.next()).await;
    assert_eq!(hint.expect("a hint"), Some(()));
    assert_eq!(claim(&tasks, 9).await.len(), 1);
}
