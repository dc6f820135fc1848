//! Calls while the server, the network or the pool fails.

use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use postrider_conformance::sessions::{an_exhausted_pool_says_so_and_recovers, ended_sessions_lose_nothing};
use postrider_core::{Message, MessagingError, MessagingService, QueueAdmin, ReceiveOptions};
use postrider_mysql::{MysqlOptions, MysqlStore, mysql_async};

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
    let mut looking = fixture.client().await;
    let waits = async || {
        let any = format!(
            "select count(*) > 0 from information_schema.processlist where db = '{}' and state like 'Waiting for%'",
            fixture.name
        );
        looking.query_first(any).await.unwrap() == Some(true)
    };
    let unlock = async { own.query_drop("unlock tables").await.unwrap() };
    an_exhausted_pool_says_so_and_recovers(&provider, &queue("orders"), waits, unlock).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_in_a_loop_lose_nothing() {
    let fixture = Fixture::new();
    let (sender, worker) = (fixture.connect().await, fixture.connect().await);
    let sessions = format!("select id from information_schema.processlist where db = '{}'", fixture.name);
    let ending = async move {
        let mut client = Conn::from_url(crate::url()).await.unwrap();
        loop {
            let ids: Vec<u64> = client.query(&sessions).await.unwrap();
            for id in ids {
                // It may have ended by itself.
                let _ = client.query_drop(format!("kill {id}")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    };
    ended_sessions_lose_nothing(&sender, &worker, &queue("orders"), ending).await;
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
