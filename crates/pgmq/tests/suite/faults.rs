//! Calls while the server, the network or the pool fails.

use std::time::Duration;

use postrider_conformance::sessions::{an_exhausted_pool_says_so_and_recovers, ended_sessions_lose_nothing};
use postrider_core::MessagingService;
use postrider_pgmq::PgmqOptions;

use crate::{Fixture, client, soon};

#[tokio::test]
async fn a_pool_that_is_exhausted_says_so_and_recovers() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let options = PgmqOptions { pool_size: 1, connect_timeout: Duration::from_secs(1), ..fixture.options() };
    let (provider, orders) = (fixture.connect_with(options).await, fixture.queue("orders"));
    provider.ensure_queue(&orders, soon()).await.unwrap();
    let mut own = client().await;
    let lock = own.transaction().await.unwrap();
    lock.batch_execute(&format!("lock table pgmq.q_{orders} in access exclusive mode")).await.unwrap();
    let looking = client().await;
    let waits = async || {
        let any = "select exists (select 1 from pg_stat_activity \
                   where application_name = $1 and wait_event_type = 'Lock')";
        looking.query_one(any, &[&fixture.schema]).await.unwrap().get(0)
    };
    let unlock = async { lock.rollback().await.unwrap() };
    an_exhausted_pool_says_so_and_recovers(&provider, &orders, waits, unlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_in_a_loop_lose_nothing() {
    let fixture = Fixture::new();
    let (sender, worker) = (fixture.connect().await, fixture.connect().await);
    let schema = fixture.schema.clone();
    let ending = async move {
        let client = client().await;
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
        loop {
            client.query(end, &[&schema]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    };
    ended_sessions_lose_nothing(&sender, &worker, &fixture.queue("orders"), ending).await;
}
