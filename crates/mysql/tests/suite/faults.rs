//! Calls while the server, the network or the pool fails.

use std::collections::HashSet;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use postrider_core::{Message, MessagingError, MessagingService, QueueAdmin, ReceiveOptions, Settlement};
use postrider_mysql::{MysqlOptions, MysqlStore, mysql_async};
use tokio::time::Instant;

use crate::{Fixture, options, queue, soon};

#[tokio::test]
async fn a_pool_that_is_exhausted_says_so_and_recovers() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let options = MysqlOptions { pool_size: 1, connect_timeout: Duration::from_secs(1), ..options() };
    let provider = fixture.connect_with(options).await;
    let mut own = fixture.client().await;
    own.query_drop("lock tables message write").await.unwrap();
    let send = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.send_message(&queue("orders"), Message::new("x"), soon()).await })
    };
    let waits = format!(
        "select count(*) from information_schema.processlist where db = '{}' and state like 'Waiting for%'",
        fixture.name
    );
    let (mut looking, end) = (fixture.client().await, Instant::now() + Duration::from_secs(20));
    while looking.query_first::<u32, _>(&waits).await.unwrap() == Some(0) {
        assert!(Instant::now() < end, "the send does not wait for the lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let busy = provider.queue_stats(&queue("orders"), soon()).await.unwrap_err();
    assert!(matches!(busy, MessagingError::Busy { .. }) && busy.is_retryable(), "{busy:?}");
    assert!(busy.to_string().contains("pool_size"), "{busy}");
    own.query_drop("unlock tables").await.unwrap();
    send.await.unwrap().unwrap();
    assert_eq!(provider.queue_stats(&queue("orders"), soon()).await.unwrap().message_count(), Some(1));
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_has_done_nothing() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let provider = fixture.connect_with(MysqlOptions { statement_timeout: Duration::from_secs(1), ..options() }).await;
    let mut own = fixture.client().await;
    own.query_drop("lock tables message write").await.unwrap();
    let lost = [
        provider.queue_stats(&queue("orders"), soon()).await.unwrap_err(),
        provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(1), soon()).await.unwrap_err(),
    ];
    own.query_drop("unlock tables").await.unwrap();
    for lost in lost {
        assert!(matches!(lost, MessagingError::Connection { .. }) && lost.is_retryable(), "{lost:?}");
    }
}

/// Whether an error is allowed while sessions are being ended.
fn is_passing(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_in_a_loop_lose_nothing() {
    const MESSAGES: usize = 300;
    let fixture = Fixture::new();
    let (sender, worker) = (fixture.connect().await, fixture.connect().await);
    let sessions = format!("select id from information_schema.processlist where db = '{}'", fixture.name);
    let ending = tokio::spawn(async move {
        let mut client = Conn::from_url(crate::url()).await.unwrap();
        loop {
            let ids: Vec<u64> = client.query(&sessions).await.unwrap();
            for id in ids {
                // It may have ended by itself.
                let _ = client.query_drop(format!("kill {id}")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    });
    let sending = async {
        let (mut accepted, mut perhaps) = (HashSet::new(), HashSet::new());
        for n in 0..MESSAGES {
            // Some with keys: their transactions have more steps.
            let message = Message::new(format!("{n}"));
            let message = if n % 3 == 0 { message.ordering_key(format!("k{}", n % 5)).unwrap() } else { message };
            loop {
                match sender.send_message(&queue("orders"), message.clone(), soon()).await {
                    Ok(id) => {
                        accepted.insert(id);
                        break;
                    }
                    Err(MessagingError::OutcomeUnknown { .. }) => {
                        perhaps.insert(message.id);
                        break;
                    }
                    Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        (accepted, perhaps)
    };
    let (accepted, perhaps) = sending.await;
    let mut seen = HashSet::new();
    let mut acks: Vec<Settlement> = Vec::new();
    let options = ReceiveOptions::batch(20).visibility(Duration::from_secs(3)).max_receive_count(1000);
    let end = Instant::now() + Duration::from_secs(90);
    while !accepted.is_subset(&seen) {
        assert!(Instant::now() < end, "{} messages did not come back", accepted.difference(&seen).count());
        let options = options.clone().wait(Duration::from_millis(200));
        match worker.settle_and_receive(std::mem::take(&mut acks), &[queue("orders")], &options, soon()).await {
            Ok(both) => match both.received {
                Ok(messages) => {
                    seen.extend(messages.iter().map(|message| message.id()));
                    acks.extend(messages.into_iter().map(Settlement::ack));
                }
                Err(error) => assert!(is_passing(&error), "{error:?}"),
            },
            Err(error) => assert!(is_passing(&error), "{error:?}"),
        }
        if seen.len() > MESSAGES / 2 {
            // Without further cuts: lost leases must expire first.
            ending.abort();
        }
    }
    ending.abort();
    assert!(seen.iter().all(|id| accepted.contains(id) || perhaps.contains(id)));
}

#[tokio::test]
async fn a_message_that_is_too_large_for_the_server_is_refused_alone() {
    let fixture = Fixture::new();
    let url = format!("{}?max_allowed_packet=100000", fixture.url());
    let provider = MysqlStore::open(&url, options()).await.unwrap().connect().unwrap();
    let messages = [10, 80_000, 40_000, 40_000].map(|length| Message::new(vec![0xff; length]));
    let sent = provider.send_batch(&queue("orders"), messages.into(), soon()).await.unwrap();
    let refused = sent[1].as_ref().unwrap_err();
    assert!(!refused.is_retryable() && refused.to_string().contains("max_allowed_packet"), "{refused:?}");
    assert!([0, 2, 3].iter().all(|row| sent[*row].is_ok()), "{sent:?}");
    let received = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(10), soon()).await.unwrap();
    assert_eq!(received.len(), 3);
}
