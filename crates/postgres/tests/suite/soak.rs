//! The table stays small under hours of steady load. With POSTRIDER_LONG it takes an hour and prints the sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::{Message, MessagingService, ReceiveOptions, Settlement};
use postrider_postgres::{ArchivePolicy, PostgresOptions};
use tokio::time::Instant;

use crate::{Fixture, client, is_long, queue, soon};

/// Messages a second.
const RATE: u32 = 2000;

/// Upper bound of the size: three times what a minute leaves until vacuum. A message leaves about a kilobyte, two row
/// versions and their entries in two indexes.
const MOST_BYTES: i64 = 3 * 60 * RATE as i64 * 1000;

fn seconds() -> u64 {
    let chosen = std::env::var("POSTRIDER_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    chosen.unwrap_or(if is_long() { 3600 } else { 3 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_stays_small_under_steady_load() {
    let fixture = Fixture::new();
    let options = PostgresOptions { archive: ArchivePolicy::None, ..fixture.options() };
    let (sender, worker) = (fixture.connect_with(options.clone()).await, fixture.connect_with(options).await);
    let time = Duration::from_secs(seconds());
    let (drained, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let sending = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(50) / RATE);
        let (end, mut sent) = (Instant::now() + time, 0);
        while Instant::now() < end {
            ticks.tick().await;
            let messages: Vec<_> = (0..50).map(|_| Message::new(vec![b'x'; 200])).collect();
            for row in sender.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
                row.unwrap();
                sent += 1;
            }
        }
        sent
    });
    let draining = tokio::spawn({
        let (drained, is_over) = (drained.clone(), is_over.clone());
        async move {
            let options = ReceiveOptions::batch(100).wait(Duration::from_millis(500));
            let mut acks = Vec::new();
            loop {
                let both = worker.settle_and_receive(acks, &[queue("orders")], &options, soon()).await.unwrap();
                let received = both.received.unwrap();
                if received.is_empty() && is_over.load(Ordering::SeqCst) {
                    return;
                }
                drained.fetch_add(received.len() as u64, Ordering::SeqCst);
                acks = received.into_iter().map(Settlement::ack).collect();
            }
        }
    });
    let looks = client().await;
    let size = "select pg_table_size(c.oid), pg_indexes_size(c.oid), s.n_dead_tup, s.autovacuum_count \
                from pg_class c join pg_stat_user_tables s on s.relid = c.oid \
                where s.schemaname = $1 and s.relname = 'message'";
    println!(
        "{:>8} {:>12} {:>10} {:>10} {:>10} {:>8}",
        "SECONDS", "DRAINED", "TABLE MB", "INDEX MB", "DEAD", "VACUUMS"
    );
    let (begun, mut largest) = (Instant::now(), 0);
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_secs(10).min(time)).await;
        let row = looks.query_one(size, &[&fixture.schema]).await.unwrap();
        let (table, index, dead, vacuums): (i64, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        largest = largest.max(table + index);
        let (second, drained) = (begun.elapsed().as_secs(), drained.load(Ordering::SeqCst));
        let megabytes = |bytes: i64| bytes as f64 / 1e6;
        println!(
            "{second:>8} {drained:>12} {:>10.1} {:>10.1} {dead:>10} {vacuums:>8}",
            megabytes(table),
            megabytes(index)
        );
    }
    let sent: u64 = sending.await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    draining.await.unwrap();
    assert_eq!(drained.load(Ordering::SeqCst), sent);
    assert!(largest < MOST_BYTES, "the table had {largest} bytes, {MOST_BYTES} are too many");
}
