//! Adoption of queues that other clients created and use.

use std::time::Duration;

use postrider_core::{Message, MessagingService, QueueName};
use postrider_pgmq::tokio_postgres::Client;
use tokio::time::Instant;

use crate::{Fixture, client, soon};

async fn valid_indexes(client: &Client, queue: &QueueName) -> i64 {
    let count = "select count(*) from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid \
                 where i.indisvalid and c.relname in ('q_' || $1 || '_pr_group', 'q_' || $1 || '_pr_free')";
    client.query_one(count, &[&queue.as_str()]).await.unwrap().get(0)
}

async fn until_indexed(client: &Client, queue: &QueueName) {
    let end = Instant::now() + Duration::from_secs(60);
    while valid_indexes(client, queue).await < 2 {
        assert!(Instant::now() < end, "the queue has no indexes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates and fills a queue as another client.
async fn fill(client: &Client, queue: &QueueName, count: usize) {
    client.query("select pgmq.create($1)", &[&queue.as_str()]).await.unwrap();
    let fill = format!(
        "insert into pgmq.q_{queue} (vt, message) \
         select now() + interval '1 day', to_jsonb(repeat('x', 900)) from generate_series(1, {count})"
    );
    client.batch_execute(&fill).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_queue_gets_its_indexes_while_others_write() {
    let fixture = Fixture::new();
    let (own, queue) = (client().await, fixture.queue("orders"));
    fill(&own, &queue, 12_000).await;
    let mut other = client().await;
    let writing = other.transaction().await.unwrap();
    let write = format!("insert into pgmq.q_{queue} (vt, message) values (now() + interval '1 day', '{{}}')");
    writing.batch_execute(&write).await.unwrap();
    let provider = fixture.connect().await;
    let sending = {
        let (provider, queue) = (provider.clone(), queue.clone());
        tokio::spawn(async move { provider.send_message(&queue, Message::new("x"), soon()).await })
    };
    let waits = "select exists (select 1 from pg_stat_activity \
                 where application_name = $1 and wait_event_type = 'Lock')";
    let end = Instant::now() + Duration::from_secs(20);
    while !own.query_one(waits, &[&fixture.schema]).await.unwrap().get::<_, bool>(0) {
        assert!(Instant::now() < end, "it does not wait for the writer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    own.batch_execute("set lock_timeout = '2s'").await.unwrap();
    own.batch_execute(&write).await.expect("another writer need not wait");
    sending.await.unwrap().unwrap();
    assert_eq!(valid_indexes(&own, &queue).await, 0, "they wait for the writer");
    writing.commit().await.unwrap();
    until_indexed(&own, &queue).await;
}

#[tokio::test]
async fn an_unfinished_index_is_created_again() {
    let fixture = Fixture::new();
    let (own, queue) = (client().await, fixture.queue("orders"));
    fill(&own, &queue, 10).await;
    let mut other = client().await;
    let writing = other.transaction().await.unwrap();
    writing.batch_execute(&format!("delete from pgmq.q_{queue} where msg_id = 1")).await.unwrap();
    own.batch_execute("set lock_timeout = '50ms'").await.unwrap();
    let make = format!("create index concurrently q_{queue}_pr_free on pgmq.q_{queue} (vt)");
    own.batch_execute(&make).await.expect_err("the writer is in the way");
    writing.rollback().await.unwrap();
    let left = "select not indisvalid from pg_catalog.pg_index where indexrelid = to_regclass($1)";
    let left = own.query_one(left, &[&format!("pgmq.q_{queue}_pr_free")]).await.unwrap();
    assert!(left.get::<_, bool>(0), "the index is invalid");
    let provider = fixture.connect().await;
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    until_indexed(&own, &queue).await;
}
