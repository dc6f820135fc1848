//! Long delays wait beside the queue, and short ones in it.

use std::time::Duration;

use postrider_core::{Message, MessagingService, QueueAdmin, ReceiveOptions};
use postrider_pgmq::PgmqOptions;
use postrider_pgmq::tokio_postgres::SimpleQueryMessage;
use tokio::time::Instant;

use crate::{Fixture, client, is_empty, soon, take};

async fn rows(table: &str) -> i64 {
    let count = format!("select count(*) from {table}");
    client().await.query_one(&count, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn only_long_delays_without_keys_wait_beside_the_queue() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    let hour = Duration::from_secs(3600);
    let messages = vec![
        Message::new("now"),
        Message::new("soon").delay(Duration::from_secs(30)),
        Message::new("later").delay(hour).expires_in(hour * 2),
        Message::new("keyed").delay(hour).ordering_key("k").unwrap(),
        Message::new("single").delay(hour).dedup_key("d").unwrap(),
    ];
    let ids = provider.send_batch(&queue, messages, soon()).await.unwrap();
    assert_eq!(rows(&format!("pgmq.q_{queue}")).await, 4);
    assert_eq!(rows(&format!("{}.delayed", fixture.schema)).await, 1);
    let stats = provider.queue_stats(&queue, soon()).await.unwrap();
    assert_eq!((stats.ready.value(), stats.delayed.value()), (Some(1), Some(4)));
    let peeked: Vec<_> = provider.peek(&queue, 10, soon()).await.unwrap().iter().map(|peeked| peeked.id).collect();
    assert_eq!(peeked.len(), 5);
    assert!(ids.iter().all(|id| peeked.contains(id.as_ref().unwrap())));
    let later = *ids[2].as_ref().unwrap();
    assert!(provider.receive_by_id(&queue, later, &ReceiveOptions::default(), soon()).await.unwrap().is_none());
    assert_eq!(provider.purge(&queue, soon()).await.unwrap(), 5);
    assert_eq!(rows(&format!("{}.delayed", fixture.schema)).await, 0);
}

#[tokio::test]
async fn delayed_messages_are_in_time_for_every_reader() {
    let fixture = Fixture::new();
    let options = PgmqOptions { long_delay: Duration::from_millis(100), ..fixture.options() };
    let (provider, queue) = (fixture.connect_with(options).await, fixture.queue("orders"));
    let delay = Duration::from_millis(600);
    let send = async || {
        let sent = Instant::now();
        provider.send_message(&queue, Message::new("late").delay(delay), soon()).await.unwrap();
        let waits = rows(&format!("{}.delayed", fixture.schema)).await == 1;
        assert!(waits || sent.elapsed() >= delay, "it does not wait beside the queue");
        assert!(is_empty(&provider, &queue).await || sent.elapsed() >= delay, "it was early");
        sent
    };
    let sent = send().await;
    let message = take(&provider, &queue).await;
    assert!(sent.elapsed() >= delay, "it was early");
    provider.ack_message(&queue, message, soon()).await.unwrap();
    // A reader of another client, without a waiting receiver here.
    let sent = send().await;
    let (client, end) = (client().await, Instant::now() + Duration::from_secs(20));
    loop {
        let read = client.query("select msg_id from pgmq.read($1, 60, 1)", &[&queue.as_str()]).await.unwrap();
        if !read.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "it did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sent.elapsed() >= delay, "it was early");
}

#[tokio::test]
async fn a_queue_that_refuses_messages_delays_no_other() {
    let fixture = Fixture::new();
    let options = PgmqOptions { long_delay: Duration::from_millis(100), ..fixture.options() };
    let (provider, good) = (fixture.connect_with(options).await, fixture.queue("m"));
    let client = client().await;
    let bad = ["a", "g", "t", "z"].map(|name| fixture.queue(name));
    for queue in bad.iter().chain([&good]) {
        provider.ensure_queue(queue, soon()).await.unwrap();
    }
    for queue in &bad {
        let refuse = format!("alter table pgmq.q_{queue} add constraint takes_nothing check (false)");
        client.batch_execute(&refuse).await.unwrap();
    }
    for queue in bad.iter().chain([&good]) {
        let message = Message::new("late").delay(Duration::from_millis(300));
        provider.send_message(queue, message, soon()).await.unwrap();
    }
    let (table, end) = (format!("pgmq.q_{good}"), Instant::now() + Duration::from_secs(20));
    while rows(&table).await == 0 {
        assert!(Instant::now() < end, "what is due was not moved");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rows(&format!("{}.delayed", fixture.schema)).await, 4, "the others wait");
}

#[tokio::test]
async fn a_ready_message_is_found_behind_many_that_are_delayed() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    let client = client().await;
    let fill = format!(
        "insert into pgmq.q_{queue} (vt, message) select now() + interval '1 day', '{{}}' from generate_series(1, 50000);
         insert into {0}.delayed (due_at, enqueued_at, queue, message, headers)
         select now() + interval '1 day', now(), q.name, '{{}}', '{{}}'
         from unnest(array['{queue}', 'another']) as q (name), generate_series(1, 20000)",
        fixture.schema
    );
    client.batch_execute(&fill).await.unwrap();
    provider.send_message(&queue, Message::new("ready"), soon()).await.unwrap();
    assert_eq!(take(&provider, &queue).await.message, "ready");
    // The claim uses an index of PGMQ that skips delayed messages.
    let explain = "explain (analyze, costs off, timing off, summary off) select msg_id from pgmq.q_";
    let explain = format!("{explain}{queue} where vt <= statement_timestamp() order by vt limit 10");
    let pinned = format!("set enable_sort = off; set enable_seqscan = off; set enable_bitmapscan = off; {explain}");
    let plan = client.simple_query(&pinned).await.unwrap();
    let lines = plan.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert!(lines.clone().count() > 1 && lines.clone().all(|line| !line.contains("Rows Removed")), "{plan:?}");
}
