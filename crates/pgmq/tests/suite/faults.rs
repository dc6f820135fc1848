//! Calls while the server, the network or the pool fails.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{Message, MessagingError, MessagingService, QueueAdmin, ReceiveOptions, Settlement};
use postrider_pgmq::PgmqOptions;
use tokio::time::Instant;

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
    let send = {
        let (provider, orders) = (provider.clone(), orders.clone());
        tokio::spawn(async move { provider.send_message(&orders, Message::new("x"), soon()).await })
    };
    let waits = "select exists (select 1 from pg_stat_activity \
                 where application_name = $1 and wait_event_type = 'Lock')";
    let (looking, end) = (client().await, Instant::now() + Duration::from_secs(20));
    while !looking.query_one(waits, &[&fixture.schema]).await.unwrap().get::<_, bool>(0) {
        assert!(Instant::now() < end, "the send does not wait for the lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let busy = provider.queue_stats(&fixture.queue("orders"), soon()).await.unwrap_err();
    assert!(matches!(busy, MessagingError::Busy { .. }) && busy.is_retryable(), "{busy:?}");
    assert!(busy.to_string().contains("pool_size"), "{busy}");
    lock.rollback().await.unwrap();
    send.await.unwrap().unwrap();
    assert_eq!(provider.queue_stats(&fixture.queue("orders"), soon()).await.unwrap().message_count(), Some(1));
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
    let schema = fixture.schema.clone();
    let ending = tokio::spawn(async move {
        let client = client().await;
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
        loop {
            client.query(end, &[&schema]).await.unwrap();
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
                match sender.send_message(&fixture.queue("orders"), message.clone(), soon()).await {
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
    let (mut seen, mut looks) = (HashSet::new(), 0);
    let mut acks: Vec<Settlement> = Vec::new();
    let options = ReceiveOptions::batch(20).visibility(Duration::from_secs(3)).max_receive_count(1000);
    let end = Instant::now() + Duration::from_secs(90);
    while !accepted.is_subset(&seen) {
        let missing = accepted.difference(&seen).count();
        assert!(Instant::now() < end, "{missing} of {} messages did not come back in {looks} looks", accepted.len());
        let options = options.clone().wait(Duration::from_millis(200));
        match worker.settle_and_receive(std::mem::take(&mut acks), &[fixture.queue("orders")], &options, soon()).await {
            Ok(both) => match both.received {
                Ok(messages) => {
                    seen.extend(messages.iter().map(|message| message.id()));
                    acks.extend(messages.into_iter().map(Settlement::ack));
                }
                Err(error) => assert!(is_passing(&error), "{error:?}"),
            },
            Err(error) => assert!(is_passing(&error), "{error:?}"),
        }
        looks += 1;
        if looks == 50 {
            // Without further cuts: lost leases must expire, and no message may be stuck.
            ending.abort();
        }
    }
    ending.abort();
    assert!(seen.iter().all(|id| accepted.contains(id) || perhaps.contains(id)));
}
