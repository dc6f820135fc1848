//! Creation of tasks inside the caller's transaction, from Rust and from SQL.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::task::{Created, TaskId, TaskNotice, TaskState, TaskStore};
use postrider_core::{MessagingError, Priority, RetryStrategy};
use uuid::Uuid;

use super::{claim, create, done, ids, keyed, mail, state, task, tasks_of, wanted};
use crate::wake_ups::{PATIENCE, listening};
use crate::{Fixture, client, soon};

#[tokio::test]
async fn a_task_is_there_if_and_only_if_the_callers_changes_are() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let mut own = client().await;

    let mut transaction = own.transaction().await.unwrap();
    let rolled_back = tasks.create_in(&mut transaction, &task()).await.unwrap();
    assert!(rolled_back.is_new);
    transaction.rollback().await.unwrap();
    assert_eq!(state(&tasks, rolled_back.id).await, None);

    let strategy = RetryStrategy::constant(Duration::from_secs(2)).with_max_attempts(5);
    let new = task()
        .scheduled_in(Duration::from_secs(3600))
        .deadline_in(Duration::from_secs(7200))
        .retry_strategy(strategy)
        .priority(Priority::HIGHEST)
        .tag("a, b")
        .idempotency_key("order-7")
        .unwrap();
    let mut transaction = own.transaction().await.unwrap();
    let created = tasks.create_in(&mut transaction, &new).await.unwrap();
    assert_eq!(created, Created { id: new.id, is_new: true, state: TaskState::Pending });
    assert_eq!(state(&tasks, new.id).await, None, "it is not there yet");
    let again = tasks.create_in(&mut transaction, &new.clone().id(TaskId::generate())).await.unwrap();
    assert_eq!(again, Created { is_new: false, ..created });
    transaction.commit().await.unwrap();
    let seen = tasks.get(new.id, soon()).await.unwrap().unwrap().info;
    assert_eq!((seen.retry_strategy, seen.max_attempts), (new.retry_strategy, 5));
    assert_eq!((seen.priority, seen.tags), (new.priority, new.tags));
    assert_eq!(seen.scheduled_for.since(seen.created_at), Duration::from_secs(3600));
    assert_eq!(seen.deadline.unwrap().since(seen.created_at), Duration::from_secs(7200));
}

#[tokio::test]
async fn a_creation_that_fails_leaves_the_callers_transaction_as_it_was() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let taken = create(&tasks, vec![task()]).await[0];
    let mut own = client().await;
    let mut transaction = own.transaction().await.unwrap();
    let refused = tasks.create_in(&mut transaction, &task().id(taken)).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "task id", .. })), "{refused:?}");
    let refused = tasks.create_in(&mut transaction, &task().tag("")).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "tag", .. })), "{refused:?}");
    let fine = tasks.create_in(&mut transaction, &task()).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(state(&tasks, fine.id).await, Some(TaskState::Pending));
}

#[tokio::test]
async fn an_open_transaction_delays_only_its_idempotency_key() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let mut own = client().await;
    let mut transaction = own.transaction().await.unwrap();
    let open = keyed("k").idempotency_key("taken").unwrap();
    tasks.create_in(&mut transaction, &open).await.unwrap();

    // Other tasks of the same ordering key, created before and after it, run meanwhile.
    let others = create(&tasks, vec![keyed("k"), keyed("k"), task()]).await;
    let first = claim(&tasks, 9).await;
    assert_eq!(HashSet::from_iter(ids(&first)), HashSet::from([others[0], others[2]]));
    let both = tasks.finish_and_claim(vec![done(first[0].lease), done(first[1].lease)], Some(wanted(9)), soon()).await;
    let second = both.unwrap().claimed;
    assert_eq!(ids(&second), [others[1]]);

    // A task with the same idempotency key fails with a retryable error; the rest of the batch is created.
    let batch = vec![task(), task().idempotency_key("taken").unwrap(), task()];
    let rows = tokio::time::timeout(Duration::from_secs(10), tasks.create(batch, soon())).await.unwrap().unwrap();
    assert!(rows[0].is_ok() && rows[2].is_ok(), "{rows:?}");
    assert!(rows[1].as_ref().is_err_and(MessagingError::is_retryable), "{rows:?}");
    transaction.commit().await.unwrap();
    let again = tasks.create(vec![task().idempotency_key("taken").unwrap()], soon()).await.unwrap();
    assert!(matches!(again[0], Ok(Created { id, is_new: false, .. }) if id == open.id), "{again:?}");

    // Its key has a head that was claimed before.
    let claimed = ids(&claim(&tasks, 9).await);
    assert!(!claimed.contains(&open.id), "two of a key run at once");
    tasks.finish(vec![done(second[0].lease)], soon()).await.unwrap();
    assert_eq!(ids(&claim(&tasks, 9).await), [open.id]);
}

#[tokio::test]
async fn transactions_that_end_in_reverse_order_have_their_tasks_run_one_at_a_time() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let (mut one, mut other) = (client().await, client().await);
    let mut first = one.transaction().await.unwrap();
    let mut second = other.transaction().await.unwrap();
    let early = tasks.create_in(&mut first, &keyed("k")).await.unwrap().id;
    let late = tasks.create_in(&mut second, &keyed("k")).await.unwrap().id;
    assert_eq!(ids(&claim(&tasks, 9).await), []);
    second.commit().await.unwrap();
    let running = claim(&tasks, 9).await;
    assert_eq!(ids(&running), [late], "uncommitted tasks are not waited for");
    first.commit().await.unwrap();
    assert_eq!(ids(&claim(&tasks, 9).await), [], "the other one runs");
    tasks.finish(vec![done(running[0].lease)], soon()).await.unwrap();
    let next = claim(&tasks, 9).await;
    assert_eq!(ids(&next), [early]);
    tasks.finish(vec![done(next[0].lease)], soon()).await.unwrap();
    let left = format!("select count(*) from {}.task_unplaced", fixture.schema);
    assert_eq!(client().await.query_one(&left, &[]).await.unwrap().get::<_, i64>(0), 0, "notes are left");
}

#[tokio::test]
async fn any_program_can_create_tasks_by_sql() {
    let fixture = Fixture::new();
    let tasks = tasks_of(&fixture).await;
    let mut hints = tasks.subscribe_tasks(TaskNotice::Claimable(vec![mail()]), soon()).await.unwrap();
    listening(&fixture).await;
    let own = client().await;
    let call = |arguments: &str| format!("select {}.create_task({arguments})", fixture.schema);
    let made = |arguments: &str| {
        let (own, sql) = (&own, call(arguments));
        async move { TaskId::from_uuid(own.query_one(&sql, &[]).await.unwrap().get::<_, Uuid>(0)) }
    };
    let text = made("'mail', 'hello'").await;
    tokio::time::timeout(PATIENCE, hints.next()).await.expect("the subscriber is woken");
    let bytes = made(r"'mail', '\x00ff'::bytea, priority => 9, max_attempts => 7, tags => array['a', 'b c']").await;
    let json = made(
        r#"'mail', '{"order": 7}'::jsonb, idempotency_key => 'order-7', delay => '1 hour',
           retry_strategy => '{"strategy": "constant", "delay": "5s", "limits": {"max_attempts": 4}}'"#,
    )
    .await;
    assert_eq!(made("'mail', 'again', idempotency_key => 'order-7'").await, json);
    let read = async |id| tasks.get(id, soon()).await.unwrap().unwrap();
    let read_text = read(text).await;
    assert_eq!(read_text.payload, "hello");
    assert_eq!(read_text.info.max_attempts, task().attempts().get(), "as the library makes it");
    let read_bytes = read(bytes).await;
    assert_eq!((&*read_bytes.payload, read_bytes.info.max_attempts), (&b"\x00\xff"[..], 7));
    assert_eq!((read_bytes.info.priority, read_bytes.info.tags), (Priority::HIGHEST, vec!["a".into(), "b c".into()]));
    let read_json = read(json).await;
    assert_eq!(&*read_json.payload, br#"{"order": 7}"#);
    let strategy = RetryStrategy::constant(Duration::from_secs(5)).with_max_attempts(4);
    assert_eq!((read_json.info.retry_strategy, read_json.info.max_attempts), (Some(strategy), 4));
    assert_eq!(read_json.info.scheduled_for.since(read_json.info.created_at), Duration::from_secs(3600));

    own.batch_execute(&format!(
        "begin; {}; {}; rollback",
        call("'mail', 'x'"),
        call("'mail', 'y', ordering_key => 'k'")
    ))
    .await
    .unwrap();
    own.batch_execute(&format!("begin; {0}; {0}; commit", call("'mail', 'y', ordering_key => 'k'"))).await.unwrap();
    let claimed = claim(&tasks, 9).await;
    assert_eq!(claimed.len(), 3, "the two that are due, and the first of the key: {claimed:?}");
    assert_eq!(claimed[0].lease.id, bytes);

    for (arguments, why) in [
        ("'two words', 'x'", "invalid task type"),
        ("'mail_dlq', 'x'", "invalid task type"),
        ("'mail', null::text", "invalid payload"),
        ("'mail', 'x', priority => 10", "invalid priority"),
        ("'mail', 'x', max_attempts => 0", "invalid max_attempts"),
        ("'mail', 'x', delay => '-1 s'", "invalid delay"),
        ("'mail', 'x', scheduled_for => 'infinity'", "invalid time"),
        ("'mail', 'x', ordering_key => ''", "invalid ordering key"),
        ("'mail', 'x', idempotency_key => E'a\\nb'", "invalid idempotency key"),
        ("'mail', 'x', tags => array['']", "invalid tag"),
        ("'mail', 'x', retry_strategy => '{\"strategy\": \"hope\"}'", "invalid retry strategy"),
        ("'mail', 'x', retry_strategy => '{\"strategy\": \"no_retry\"}', max_attempts => 2", "contradict each other"),
        (&*format!("'mail', 'x', task_id => '{text}'"), "already"),
    ] {
        let refused = own.query_one(&call(arguments), &[]).await.unwrap_err();
        let text = refused.as_db_error().unwrap().message().to_owned();
        assert!(text.contains(why), "{arguments}: {text}");
    }
}
