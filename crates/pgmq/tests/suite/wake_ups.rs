//! Wake-ups of waiting receivers.

use std::time::Duration;

use postrider_core::{Message, MessagingService, QueueName, QueuedMessage, ReceiveOptions};
use postrider_pgmq::{PgmqOptions, PgmqProvider};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Fixture, client, soon};

/// Longer than any test: a receiver that is woken was not woken by its poll.
const NEVER: Duration = Duration::from_secs(600);

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn waiting(provider: &PgmqProvider, queue: &QueueName) -> JoinHandle<Vec<QueuedMessage>> {
    let (provider, queue) = (provider.clone(), queue.clone());
    let options = ReceiveOptions::default().wait(PATIENCE);
    tokio::spawn(async move { provider.receive_messages(&queue, &options, soon()).await.unwrap() })
}

/// Waits until the store listens to a queue's channel. Returns the session.
async fn listening(fixture: &Fixture, queue: &QueueName) -> i32 {
    let client = client().await;
    let sessions = "select pid, state = 'idle' and backend_xmin is null from pg_stat_activity \
                    where application_name = $1 and query like '%listen %' and query like '%' || $2 || '%' \
                      and state = 'idle'";
    let end = Instant::now() + PATIENCE;
    let channel = format!("pgmq.q_{queue}.INSERT");
    loop {
        if let Some(row) = client.query_opt(sessions, &[&fixture.schema, &channel]).await.unwrap() {
            assert!(row.get::<_, bool>(1), "a session that listens is in no transaction");
            return row.get(0);
        }
        assert!(Instant::now() < end, "no session listens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn never_looking(fixture: &Fixture) -> PgmqOptions {
    PgmqOptions { poll_interval: NEVER, ..fixture.options() }
}

async fn foreign_send(queue: &QueueName) {
    client().await.query("select pgmq.send($1, '{}'::jsonb)", &[&queue.as_str()]).await.unwrap();
}

#[tokio::test]
async fn a_receiver_is_woken_by_a_send_of_another_process() {
    let fixture = Fixture::new();
    let (receiver, queue) = (fixture.connect_with(never_looking(&fixture)).await, fixture.queue("orders"));
    let sender = fixture.connect().await;
    let received = waiting(&receiver, &queue);
    listening(&fixture, &queue).await;
    let id = sender.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    assert_eq!(received.await.unwrap()[0].id(), id);
}

#[tokio::test]
async fn a_receiver_is_woken_by_a_send_of_another_client() {
    let fixture = Fixture::new();
    let (receiver, queue) = (fixture.connect_with(never_looking(&fixture)).await, fixture.queue("orders"));
    client().await.query("select pgmq.create($1)", &[&queue.as_str()]).await.unwrap();
    let received = waiting(&receiver, &queue);
    listening(&fixture, &queue).await;
    foreign_send(&queue).await;
    assert_eq!(received.await.unwrap().len(), 1);
    // PGMQ's own functions show the setting and turn it off.
    let client = client().await;
    let throttle = "select throttle_interval_ms from pgmq.list_notify_insert_throttles() where queue_name = $1";
    assert_eq!(client.query_one(throttle, &[&queue.as_str()]).await.unwrap().get::<_, i32>(0), 250);
    client.query("select pgmq.disable_notify_insert($1)", &[&queue.as_str()]).await.unwrap();
    assert!(client.query_opt(throttle, &[&queue.as_str()]).await.unwrap().is_none());
}

#[tokio::test]
async fn a_listener_that_was_cut_off_listens_again() {
    let fixture = Fixture::new();
    let (receiver, queue) = (fixture.connect_with(never_looking(&fixture)).await, fixture.queue("orders"));
    receiver.ensure_queue(&queue, soon()).await.unwrap();
    let received = waiting(&receiver, &queue);
    let first = listening(&fixture, &queue).await;
    client().await.query("select pg_terminate_backend($1)", &[&first]).await.unwrap();
    let end = Instant::now() + PATIENCE;
    while listening(&fixture, &queue).await == first {
        assert!(Instant::now() < end, "it does not listen again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    foreign_send(&queue).await;
    assert_eq!(received.await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_notifications_polling_is_enough() {
    let fixture = Fixture::new();
    let options =
        PgmqOptions { enable_pg_notify: false, poll_interval: Duration::from_millis(50), ..fixture.options() };
    let (receiver, queue) = (fixture.connect_with(options).await, fixture.queue("orders"));
    receiver.ensure_queue(&queue, soon()).await.unwrap();
    let received = waiting(&receiver, &queue);
    foreign_send(&queue).await;
    assert_eq!(received.await.unwrap().len(), 1);
    let client = client().await;
    let sessions = "select count(*) from pg_stat_activity where application_name = $1 and query like '%listen %'";
    assert_eq!(client.query_one(sessions, &[&fixture.schema]).await.unwrap().get::<_, i64>(0), 0);
    let triggers = "select count(*) from pg_trigger where tgrelid = ('pgmq.q_' || $1)::text::regclass";
    assert_eq!(client.query_one(triggers, &[&queue.as_str()]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn nothing_is_left_in_a_session_without_notifications() {
    let fixture = Fixture::new();
    let options = PgmqOptions { enable_pg_notify: false, pool_size: 1, ..fixture.options() };
    let (provider, queue) = (fixture.connect_with(options).await, fixture.queue("orders"));
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    let message = crate::take(&provider, &queue).await;
    provider.ack_message(&queue, message, soon()).await.unwrap();
    // A pooler sees a session's settings only in the startup packet, and refuses unknown ones.
    let last = "select query from pg_stat_activity where application_name = $1";
    let last: String = client().await.query_one(last, &[&fixture.schema]).await.unwrap().get(0);
    assert_eq!(last, "commit", "every statement is inside a transaction");
}

#[tokio::test]
async fn an_idle_queue_is_polled_once_a_second() {
    let fixture = Fixture::new();
    let (receiver, queue) = (fixture.connect().await, fixture.queue("orders"));
    receiver.ensure_queue(&queue, soon()).await.unwrap();
    let mut seen = Vec::new();
    // On a busy machine a slow query is seen in several steps, but not each time.
    for _ in 0..4 {
        seen.push(queries_of_an_idle_wait(&fixture, &receiver, &queue).await);
        // One look a second in the three that are counted, and a piece of upkeep.
        if seen.last().is_some_and(|later| *later <= 3 + 1 + 1) {
            return;
        }
    }
    panic!("queries in three seconds of an idle wait, each time: {seen:?}");
}

/// The queries of a wait of five seconds for nothing, without those of its first two.
async fn queries_of_an_idle_wait(fixture: &Fixture, receiver: &PgmqProvider, queue: &QueueName) -> usize {
    let options = ReceiveOptions::default().wait(Duration::from_secs(5));
    let (receiver, queue) = (receiver.clone(), queue.clone());
    let waiting = tokio::spawn(async move { receiver.receive_messages(&queue, &options, soon()).await.unwrap() });
    // Every query of a session has a beginning of its own, and an idle worker's are far apart.
    let (client, mut asked, begin) = (client().await, std::collections::HashSet::new(), Instant::now());
    let mut at_first = 0;
    let sessions = "select pid, query_start::text from pg_stat_activity \
                    where application_name = $1 and query not like 'listen %' and query_start is not null";
    while !waiting.is_finished() {
        for row in client.query(sessions, &[&fixture.schema]).await.unwrap() {
            asked.insert((row.get::<_, i32>(0), row.get::<_, String>(1)));
        }
        if begin.elapsed() < Duration::from_secs(2) {
            // What it takes to open the store, to claim and to listen.
            at_first = asked.len();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(waiting.await.unwrap().is_empty());
    asked.len() - at_first
}
