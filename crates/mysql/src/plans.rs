//! Tests of how much the statements read.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use postrider_core::archive::ArchiveWalk;
use postrider_core::{ArchiveFilter, ArchiveQuery, Deadline, MessageId, QueueName, ReceiveOptions};

use crate::archived;
use crate::literal::{self, fill};
use crate::{MysqlOptions, MysqlStore, rows};

fn server() -> String {
    std::env::var("POSTRIDER_MYSQL_URL").unwrap_or_else(|_| {
        panic!(
            "POSTRIDER_MYSQL_URL is not set: start a server with `scripts/services up mysql`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Returns a store in a new database, and a connection to it. The caller drops the database.
async fn new_store() -> (String, MysqlStore, Conn) {
    let name = format!("test_{:016x}", rand::random::<u64>());
    let server = server();
    let mut client = Conn::from_url(&server).await.unwrap();
    client.query_drop(format!("create database {name}; use {name}")).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    (name, MysqlStore::open(&url, MysqlOptions::default()).await.unwrap(), client)
}

/// Fills thirty other queues with due messages, and as many delayed ones, half of them in the queue itself.
async fn fill_other_queues(client: &mut Conn, each: usize) {
    client.query_drop(format!("set session max_recursive_iterations = {}", each + 1)).await.unwrap();
    for (queue, time) in [
        ("concat('other', n % 30)", "utc_timestamp(6) - interval n microsecond"),
        ("if(n % 2, 'orders', concat('other', n % 30))", "utc_timestamp(6) + interval 1 + n % 7 day"),
    ] {
        let insert = format!(
            "insert into message (queue, message_id, priority, next_attempt_at, created_at, headers, payload) \
             with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {each}) \
             select {queue}, unhex(lpad(hex(n), 32, '0')), n % 10, {time}, utc_timestamp(6), '{{}}', 'x' from numbers"
        );
        client.query_drop(insert).await.unwrap();
    }
    client.query_drop("analyze table message").await.unwrap();
}

#[tokio::test]
async fn an_empty_poll_reads_only_what_is_due_in_its_queue() {
    let each = if std::env::var_os("POSTRIDER_LONG").is_some() { 300_000 } else { 15_000 };
    let (name, store, mut client) = new_store().await;
    fill_other_queues(&mut client, each).await;
    let shared = &store.shared;
    let orders = QueueName::new("orders").unwrap();
    let claim = crate::claim::Claim::new(shared, &orders, 100, &ReceiveOptions::default());
    for look in [claim.look(&shared.database.sql), shared.look_for_next_due(&orders)] {
        let mut session = shared.database.session("test", Deadline::default()).await.unwrap();
        session.ask("flush status".to_owned()).await.unwrap();
        session.ask(look.clone()).await.unwrap();
        let reads = "select sum(variable_value) as reads_count from information_schema.session_status \
                     where variable_name like 'handler_read%'";
        let reads = rows::number(&session.ask(reads.to_owned()).await.unwrap().concat()[0], "reads_count");
        assert!((1..=60).contains(&reads), "{reads} rows were read by {look}");
    }
    client.query_drop(format!("drop database {name}")).await.unwrap();
}

/// Values for statements that address rows by id.
const VALUES: &[(&str, &str)] = &[
    ("ids", "1, 2, 3"),
    ("lock", "for update skip locked"),
    ("stripes", "1, 2, 3"),
    ("delays", "0"),
    ("extensions", "0"),
    ("errors", "null"),
    ("reasons", "'x'"),
    ("worker", "'x'"),
    ("lease", "1"),
    ("now", "utc_timestamp(6)"),
    ("until", "utc_timestamp(6)"),
];

#[tokio::test]
async fn statements_by_id_never_read_a_whole_table() {
    let (name, store, mut client) = new_store().await;
    // One row more than ids: the server would rather read such a small table whole, and wait for every locked row.
    let row = "('orders', 'aaaaaaaaaaaaaaaa', utc_timestamp(6), utc_timestamp(6), '{}', 'x')";
    let columns = "(queue, message_id, next_attempt_at, created_at, headers, payload)";
    client.query_drop(format!("insert into message {columns} values {row}, {row}, {row}, {row}")).await.unwrap();
    client.query_drop("analyze table message").await.unwrap();
    let attempts = "insert into failed_attempt (queue, message_id, attempt, failed_at, worker) \
                    select queue, message_id, id, created_at, 'w' from message";
    client.query_drop(attempts).await.unwrap();
    client.query_drop("analyze table failed_attempt").await.unwrap();
    let messages = [("orders", b"aaaaaaaaaaaaaaaa"), ("other", b"aaaaaaaaaaaaaaaa"), ("orders", b"aaaaaaaaaaaaaaab")];
    let sql = &store.shared.database.sql;
    let by_number = [
        &sql.archive,
        &sql.dead_letter,
        &sql.expired,
        &sql.extend,
        &sql.forget_attempts,
        &sql.give_up,
        &sql.held,
        &sql.lease,
        &sql.lease_dead,
        &sql.lock_free_stripes,
        &sql.lock_stripes,
        &sql.note_attempts,
        &sql.note_last_attempts,
        &sql.promote,
        &sql.record_deaths,
        &sql.release,
        &sql.remove,
        &sql.retry,
    ];
    for statement in by_number {
        let messages = literal::attempts_of(messages.map(|(queue, id)| (queue, literal::bytes(id))));
        let statement =
            fill(&fill(statement, VALUES), &[("these", &literal::these("1, 2, 3")), ("messages", &messages)]);
        let plan: Vec<Row> = client.query(format!("explain {statement}")).await.unwrap();
        for step in plan.iter().filter(|step| step.get::<Option<String>, _>("table").flatten().is_some()) {
            let access: Option<String> = step.get::<Option<String>, _>("type").flatten();
            // An insert lists its target too, without reading it.
            let is_target = step.get::<Option<String>, _>("select_type").flatten().as_deref() == Some("INSERT");
            assert!(is_target || !matches!(access.as_deref(), Some("ALL" | "index")), "{statement}: {step:?}");
        }
    }
    client.query_drop(format!("drop database {name}")).await.unwrap();
}

#[tokio::test]
async fn a_list_of_thousands_is_looked_up_by_id() {
    let (name, store, mut client) = new_store().await;
    fill_other_queues(&mut client, 5000).await;
    let ids = literal::list(1..=1500);
    let held = crate::lease::held(&store.shared.database.sql, &ids, "for update skip locked");
    let mut session = store.shared.database.session("test", Deadline::default()).await.unwrap();
    let plan = session.ask(format!("explain {held}")).await.unwrap().concat();
    let access: Vec<String> = plan.iter().map(|step| rows::text(step, "type")).collect();
    assert_eq!(access, ["range"], "{plan:?}");
    drop(session);
    client.query_drop(format!("drop database {name}")).await.unwrap();
}

#[tokio::test]
async fn an_archive_is_searched_by_its_indexes() {
    let (name, store, mut client) = new_store().await;
    client.query_drop("set session max_recursive_iterations = 3001").await.unwrap();
    client
        .query_drop(
            "insert into message_archive (archived_at, id, created_at, deliveries_count, attempts_count, message_id, \
             state, priority, queue, headers, payload) \
             select utc_timestamp(6) - interval n second, n, utc_timestamp(6), 1, 0, unhex(md5(n)), 'COMPLETED', 4, \
             concat('other', n % 30), '{}', 'x' from (with recursive n (n) as (select 1 union all select n + 1 from n \
             where n < 3000) select n from n) numbers",
        )
        .await
        .unwrap();
    client.query_drop("analyze table message_archive").await.unwrap();
    let queue = QueueName::new("orders").unwrap();
    let of = |id| ArchiveQuery { filter: ArchiveFilter { id, ..ArchiveFilter::default() }, ..ArchiveQuery::default() };
    for (query, index) in
        [(of(None), "message_archive_queue"), (of(Some(MessageId::generate())), "message_archive_message")]
    {
        let step = ArchiveWalk::new(&query).unwrap().step();
        let look = archived::step(&store.shared.database.sql, &queue, &query.filter, step);
        let plan: Vec<Row> = client.query(format!("explain {look}")).await.unwrap();
        for step in &plan {
            let text = |name: &str| step.get::<Option<String>, _>(name).flatten();
            if text("table").as_deref() == Some("message_archive") {
                assert_eq!(text("key").as_deref(), Some(index), "{plan:?}");
                assert!(!matches!(text("type").as_deref(), Some("ALL" | "index")), "{plan:?}");
            }
        }
    }
    client.query_drop(format!("drop database {name}")).await.unwrap();
}
