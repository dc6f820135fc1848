//! Wake-ups of waiting receivers by other processes.

use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{Message, MessagingService, QueuedMessage, ReceiveOptions};
use postrider_postgres::{PostgresOptions, PostgresProvider, WakeUpMode};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Fixture, client, queue, soon};

/// Longer than any test: a receiver that is woken was not woken by its poll.
const NEVER: Duration = Duration::from_secs(600);

/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn waiting(provider: &PostgresProvider) -> JoinHandle<Vec<QueuedMessage>> {
    let provider = provider.clone();
    let options = ReceiveOptions::default().wait(PATIENCE);
    tokio::spawn(async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
}

/// Waits until the store listens. Returns the session.
pub(crate) async fn listening(fixture: &Fixture) -> i32 {
    let client = client().await;
    let sessions = "select pid, backend_xmin is null from pg_stat_activity \
                    where application_name = $1 and query like 'listen %' and state = 'idle'";
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(row) = client.query_opt(sessions, &[&fixture.schema]).await.unwrap() {
            assert!(row.get::<_, bool>(1), "a session that listens is in no transaction");
            return row.get(0);
        }
        assert!(Instant::now() < end, "no session listens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn never_looking(fixture: &Fixture) -> PostgresOptions {
    PostgresOptions { poll_interval: NEVER, ..fixture.options() }
}

#[tokio::test]
async fn a_receiver_is_woken_by_a_send_of_another_process() {
    let fixture = Fixture::new();
    let receiver = fixture.connect_with(never_looking(&fixture)).await;
    let sender = fixture.connect().await;
    let received = waiting(&receiver);
    listening(&fixture).await;
    let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(received.await.unwrap()[0].id(), id);
}

#[tokio::test]
async fn a_listener_that_was_cut_off_listens_again() {
    let fixture = Fixture::new();
    let receiver = fixture.connect_with(never_looking(&fixture)).await;
    let sender = fixture.connect().await;
    let received = waiting(&receiver);
    let first = listening(&fixture).await;
    client().await.query("select pg_terminate_backend($1)", &[&first]).await.unwrap();
    let end = Instant::now() + PATIENCE;
    while listening(&fixture).await == first {
        assert!(Instant::now() < end, "it does not listen again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(received.await.unwrap()[0].id(), id);
}

#[tokio::test]
async fn a_burst_of_sends_makes_few_notifications() {
    let fixture = Fixture::new();
    let sender = fixture.connect().await;
    let (own, mut connection) =
        postrider_postgres::tokio_postgres::connect(&crate::url(), postrider_postgres::tokio_postgres::NoTls)
            .await
            .unwrap();
    let (told, mut hints) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let postrider_postgres::tokio_postgres::AsyncMessage::Notification(hint) = message {
                told.send(hint.payload().to_owned()).unwrap();
            }
        }
    });
    own.batch_execute(&format!("listen {}", channel(&fixture.schema))).await.unwrap();
    let began = Instant::now();
    for n in 0..200 {
        sender.send_message(&queue("orders"), Message::new(format!("{n}")), soon()).await.unwrap();
    }
    sender.close(soon()).await.unwrap();
    let took = began.elapsed();
    // Notifications before this one arrive before it.
    own.batch_execute(&format!("notify {}, 'end'", channel(&fixture.schema))).await.unwrap();
    let mut count = 0;
    while let Some(hint) = hints.recv().await {
        if hint == "end" {
            break;
        }
        let is_known = hint.starts_with("fresh ") || hint.starts_with("late:");
        assert!(is_known && hint.ends_with(" orders"), "{hint}");
        count += 1;
    }
    let most = took.as_millis() / 5 + 2;
    assert!((1..=most).contains(&count), "{count} notifications for 200 sends in {took:?}");
}

/// Returns the channel of a schema, computed as an operator would.
fn channel(schema: &str) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("postrider_{:016x}", schema.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step))
}

#[tokio::test]
async fn without_notifications_polling_is_enough() {
    let fixture = Fixture::new();
    let options = PostgresOptions {
        wake_up: WakeUpMode::PollOnly,
        poll_interval: Duration::from_millis(50),
        ..fixture.options()
    };
    let receiver = fixture.connect_with(options.clone()).await;
    let sender = fixture.connect_with(options).await;
    let received = waiting(&receiver);
    tokio::task::yield_now().await;
    let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(received.await.unwrap()[0].id(), id);
    let sessions = "select count(*) from pg_stat_activity where application_name = $1 and query like 'listen %'";
    let listening: i64 = client().await.query_one(sessions, &[&fixture.schema]).await.unwrap().get(0);
    assert_eq!(listening, 0);
}

#[tokio::test]
async fn nothing_is_left_in_a_session_without_notifications() {
    let fixture = Fixture::new();
    let options = PostgresOptions { wake_up: WakeUpMode::PollOnly, pool_size: 1, ..fixture.options() };
    let provider = fixture.connect_with(options).await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    let received = provider.receive_messages(&queue("orders"), &ReceiveOptions::default(), soon()).await.unwrap();
    provider.ack_message(&queue("orders"), received.into_iter().next().unwrap(), soon()).await.unwrap();
    // A pooler sees a session's settings only in the startup packet, and refuses unknown ones.
    let client = client().await;
    let began: String = client
        .query_one("select query from pg_stat_activity where application_name = $1", &[&fixture.schema])
        .await
        .unwrap()
        .get(0);
    assert_eq!(began, "commit", "every statement is inside a transaction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_of_an_idle_queue_share_one_look_a_second() {
    const WAITING: u64 = 8;
    const SECONDS: u64 = 3;
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let options = ReceiveOptions::default().wait(Duration::from_secs(SECONDS));
    let waiting = (0..WAITING).map(|_| {
        let (provider, options) = (provider.clone(), options.clone());
        async move { provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap() }
    });
    let hints = (0..WAITING).map(|_| async {
        let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
        let _ =
            tokio::time::timeout(Duration::from_secs(SECONDS), async { while hints.next().await.is_some() {} }).await;
    });
    let (received, _) = tokio::join!(join_all(waiting), join_all(hints));
    assert!(received.iter().all(Vec::is_empty));
    provider.close(soon()).await.unwrap();
    drop(provider);
    let client = client().await;
    let sessions = "select count(*) from pg_stat_activity where application_name = $1";
    let end = Instant::now() + PATIENCE;
    while client.query_one(sessions, &[&fixture.schema]).await.unwrap().get::<_, i64>(0) > 0 {
        assert!(Instant::now() < end, "sessions did not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Every claim and every look reads once whether the queue is paused.
    let asked = "select coalesce(idx_scan, 0) + seq_scan from pg_stat_user_tables \
                 where schemaname = $1 and relname = 'queue_pause'";
    let asked: i64 = client.query_one(asked, &[&fixture.schema]).await.unwrap().get(0);
    // Each receiver claims at its start, when the store begins to listen, and at its end.
    let most = 3 * WAITING + SECONDS + 5;
    assert!(asked > 0 && asked.unsigned_abs() <= most, "{asked} looks in {SECONDS} seconds, {most} would do");
}
