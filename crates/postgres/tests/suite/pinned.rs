//! Claims keep their rate while a session in an old transaction prevents vacuum.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingService, ReceiveOptions, Settlement};
use postrider_postgres::PostgresProvider;
use postrider_postgres::tokio_postgres::Client;
use tokio::time::Instant;

use crate::{Fixture, client, is_long, queue, soon};

/// Opens a session in an old transaction.
async fn forgotten() -> Client {
    let forgotten = client().await;
    forgotten.batch_execute("begin isolation level repeatable read; select count(*) from pg_class").await.unwrap();
    forgotten
}

async fn send(provider: &PostgresProvider, count: usize) {
    let messages = (0..count).map(|_| Message::new(vec![b'x'; 200])).collect();
    for row in provider.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

/// Returns how many index entries were read. Sessions report it when they end.
async fn entries_read(fixture: &Fixture) -> i64 {
    let client = client().await;
    let sessions = "select count(*) from pg_stat_activity where application_name = $1";
    let end = Instant::now() + Duration::from_secs(20);
    while client.query_one(sessions, &[&fixture.schema]).await.unwrap().get::<_, i64>(0) > 0 {
        assert!(Instant::now() < end, "sessions did not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let read = "select idx_tup_read from pg_stat_user_indexes where schemaname = $1 and indexrelname = 'message_claim'";
    client.query_one(read, &[&fixture.schema]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_does_not_walk_what_was_claimed_before() {
    const GONE: usize = 3000;
    const CLAIMS: usize = 100;
    let fixture = Fixture::new();
    let forgotten = forgotten().await;
    let provider = fixture.connect().await;
    let options = ReceiveOptions::batch(100);
    send(&provider, GONE).await;
    let mut acks = Vec::new();
    let (mut drained, mut rounds) = (0, 0);
    while drained < GONE + CLAIMS {
        if (GONE / 100..GONE / 100 + CLAIMS).contains(&rounds) {
            send(&provider, 1).await;
        }
        let both = provider.settle_and_receive(acks, &[queue("orders")], &options, soon()).await.unwrap();
        let received = both.received.unwrap();
        drained += received.len();
        rounds += 1;
        assert!(rounds < 1000, "{drained} messages came");
        acks = received.into_iter().map(Settlement::ack).collect();
    }
    provider.close(soon()).await.unwrap();
    drop(provider);
    let read = entries_read(&fixture).await;
    drop(forgotten);
    // Each claim would read the dead entries of all before it, more than 300 000. A few claims are full scans.
    let most = i64::try_from(GONE * CLAIMS / 4).unwrap();
    assert!(read > 0 && read < most, "{read} entries were read, {most} are too many");
}

/// Sends at a steady rate and drains at the same time. Returns how many messages were drained.
async fn load(fixture: &Fixture, rate: usize, time: Duration) -> usize {
    let (sender, worker) = (fixture.connect().await, fixture.connect().await);
    let (drained, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let sending = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(100) / u32::try_from(rate).unwrap());
        let end = Instant::now() + time;
        while Instant::now() < end {
            ticks.tick().await;
            send(&sender, 100).await;
        }
    });
    let draining = tokio::spawn({
        let (drained, is_over) = (drained.clone(), is_over.clone());
        async move {
            let options = ReceiveOptions::batch(200).wait(Duration::from_millis(100));
            let mut acks = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let both = worker.settle_and_receive(acks, &[queue("orders")], &options, soon()).await.unwrap();
                let received = both.received.unwrap();
                drained.fetch_add(received.len(), Ordering::SeqCst);
                acks = received.into_iter().map(Settlement::ack).collect();
            }
        }
    });
    tokio::time::sleep(time).await;
    let count = drained.load(Ordering::SeqCst);
    sending.await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    draining.await.unwrap();
    count
}

/// Rates are meaningful only on an idle machine: the short form requires half of a low one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_beside_a_forgotten_session_keeps_its_rate() {
    // Tenths of the rate that must be kept.
    let (rate, time, tenths) =
        if is_long() { (10_000, Duration::from_secs(60), 9) } else { (500, Duration::from_secs(2), 5) };
    let free = load(&Fixture::new(), rate, time).await;
    let forgotten = forgotten().await;
    let pinned = load(&Fixture::new(), rate, time).await;
    drop(forgotten);
    println!("{free} messages in {time:?} alone, {pinned} beside a session in an old transaction");
    let sent = rate * usize::try_from(time.as_secs()).unwrap();
    assert!(free > 0 && (!is_long() || free * 10 >= sent * tenths), "{free} of {sent} alone");
    assert!(pinned * 10 >= free * tenths, "{pinned} of {free}");
}
