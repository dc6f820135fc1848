//! Every workload on a store in memory and on a file: it succeeds, its numbers are consistent, and no queue is left.

// Shared functions may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

use postrider_bench::{Bench, BenchError, Load, Measured, Mismatch, Workload};
use postrider_core::{Deadline, MemoryStore, Message, MessagingService, Provider, QueueAdmin, QueueName};
use postrider_sqlite::{SqliteOptions, SqliteStore};

fn load() -> Load {
    Load { messages: 200, callers: 7, batch: 30, workers: 3, pace: 2000, ..Load::default() }
}

async fn every_workload(provider: impl Provider + Clone) {
    let bench = Bench::new(provider.clone(), load()).unwrap();
    for workload in Workload::ALL {
        let measured = bench.run(workload).await.unwrap();
        match measured {
            Measured::Rate(rate) => {
                assert_eq!((rate.workload, rate.messages), (workload, 200));
                assert!(rate.seconds > 0.0 && (rate.per_second * rate.seconds - 200.0).abs() < 0.001, "{rate:?}");
            }
            Measured::Latency(latency) => {
                assert_eq!(workload, Workload::Latency);
                assert!(latency.p50_ms > 0.0 && latency.p50_ms <= latency.p95_ms, "{latency:?}");
                assert!(latency.p95_ms <= latency.p99_ms, "{latency:?}");
            }
        }
    }
    assert_eq!(provider.list_queues(Deadline::default()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_runs_in_memory() {
    every_workload(MemoryStore::new().open()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_runs_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("queues.db"), SqliteOptions::default()).await.unwrap();
    every_workload(store.connect().await.unwrap()).await;
}

#[tokio::test]
async fn an_unknown_message_fails_the_workload_and_clean_up_deletes_its_queue() {
    let store = MemoryStore::new();
    let provider = store.open();
    let bench = Bench::new(store.open(), load()).unwrap();
    let queue = QueueName::new(bench.prefix() + "send_batch").unwrap();
    let unknown = provider.send_message(&queue, Message::new("unknown"), Deadline::default()).await.unwrap();
    let error = bench.run(Workload::SendBatch).await.unwrap_err();
    assert!(matches!(&error, BenchError::Mismatch(Mismatch::Stranger { id }) if *id == unknown), "{error}");
    assert_eq!(provider.list_queues(Deadline::default()).await.unwrap(), [queue]);
    bench.clean_up(&provider).await.unwrap();
    assert_eq!(provider.list_queues(Deadline::default()).await.unwrap(), []);
}

#[test]
fn an_empty_load_is_refused() {
    let error = Bench::new(MemoryStore::new().open(), Load { batch: 0, ..load() }).unwrap_err();
    assert!(error.to_string().contains("batch"), "{error}");
}
